"""The one exception that a user's mistake raises."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user can put right, told in one sentence.

    The command line prints the sentence and exits with 2; no traceback without ``--debug``.

    Parameters
    ----------
    found : str
        What was found, with the offending name or value.
    expected : str, optional
        What would have been right.
    advice : str, optional
        What to do about it, as an imperative.

    Examples
    --------
    >>> str(UserError("input 'data' has dtype float64", "float32", "cast it"))
    "input 'data' has dtype float64; expected float32; cast it."
    """

    def __init__(self, found: str, expected: str | None = None, advice: str | None = None):
        self.found, self.expected, self.advice = found, expected, advice
        parts = [found, f"expected {expected}" if expected else None, advice]
        super().__init__("; ".join(part.rstrip(".") for part in parts if part) + ".")
