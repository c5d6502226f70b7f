"""The one exception that a user's mistake raises."""

import difflib
import operator
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")  # a terminal would obey them
_LISTED = 12  # names in a sentence
_LONG = re.compile(r"\S{1001,}")
_OP = re.compile(r"""ir\.Op\(span=None.*?name=["']([\w.]+)["'].*?support_level=\d+\)""", re.DOTALL)


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
        super().__init__("; ".join(_readable(part).rstrip(".") for part in parts if part) + ".")


def _readable(text: str) -> str:
    """Keep names that come from a file on one line, and of a length that can be read."""
    text = " ".join(filter(None, map(str.strip, text.splitlines())))
    text = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
    return _LONG.sub(lambda found: f"{found[0][:400]}...{found[0][-400:]}", text)


_POINTER = b"version https://git-lfs.github.com/spec/"


def refuse_lfs_pointer(path: str | os.PathLike[str]) -> None:
    """Refuse the few lines that Git LFS leaves in the place of a large file.

    Raises
    ------
    UserError
        Naming the file; what is no file at all is left to whoever reads it.
    """
    path = Path(path)
    try:
        with path.open("rb") if path.is_file() else open(os.devnull, "rb") as file:
            is_pointer = file.read(len(_POINTER)) == _POINTER
    except OSError:
        return
    if is_pointer:
        raise UserError(
            f"{path} is a pointer of Git LFS", "the file that it stands for", "run `git lfs pull`"
        )


def reason_of(error: Exception) -> str:
    """Keep the sentence of an error of TVM, which prints whole functions before or after it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("Error message:")]
    silent = "a check failed" if isinstance(error, AssertionError) else "no message"
    text = marked[-1].removeprefix("Error message:").strip() if marked else (lines or [silent])[0]
    return f"{type(error).__name__}: {named(text)}"


def named(text: str) -> str:
    """Name operators that TVM's messages print as objects: ``ir.Op(span=None, ...)``."""
    return _OP.sub(lambda found: found[1], text)


def unknown_name(kind: str, name: str, known: Collection[str]) -> UserError:
    """Say that a name is none of those that there are, and which are near."""
    near = difflib.get_close_matches(name, known, 3, 0.5) or sorted(known)
    more = ["..."] if len(near) > _LISTED else []
    return UserError(
        f"there is no {kind} {name!r}", f"one of {', '.join([*near[:_LISTED], *more])}"
    )


def whole_number(
    name: str, value: Any, least: int | None = None, wanted: str = "a whole number"
) -> int:
    """Return a user's whole number, which may be numpy's, as an int.

    Raises
    ------
    UserError
        For any other value, a truth value included, and for less than the least.
    """
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least):
        raise UserError(
            f"{name} is {value!r}", wanted if least is None else f"{wanted} from {least}"
        )
    return operator.index(value)
