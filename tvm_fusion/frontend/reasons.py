"""Why converters gave up, in words: what went wrong inside them tells a user nothing."""

import re

from ..errors import named

_INSIDE = (
    *(TypeError, AttributeError, LookupError, AssertionError, NameError, ArithmeticError),
    RecursionError,
)
# What only code says: of Python's own errors, and of TVM's checks.
_CODE = re.compile(
    r"has no attribute|not enough values|too many values|must be (a|an) .*, not '|hint: use tvm"
    r"|Check failed|InternalError|PrimExpr|tirx\.|tvm\.|object at 0x|/src/|not operator to Expr"
)
_SYMBOLIC = re.compile(
    r"'(Var|Add|Sub|Mul|Div|FloorDiv|FloorMod|Min|Max|Call|Cast)'|Expr\b|[Ss]ymbolic"
)

NOT_FORESEEN = "it is used in a way that its converter does not foresee"
SYMBOLIC = "an extent is read as a number there, and is known only when the model runs"


def reason_in_words(error: BaseException) -> tuple[str, str | None]:
    """Say why a converter gave up, and what to do about it.

    Parameters
    ----------
    error
        What it raised. One that was written for readers is told as it is; with ``--debug`` the
        command line prints all of them.

    Returns
    -------
    str, str or None
        The reason in words, and advice where there is any.
    """
    text = str(error).strip()
    line = named(text.splitlines()[0]).strip().rstrip(".") if text else ""
    if line and not isinstance(error, _INSIDE) and not _CODE.search(text):
        return line, None
    if _SYMBOLIC.search(text):
        return SYMBOLIC, "give the dimensions numbers (--dim NAME=NUMBER)"
    return NOT_FORESEEN, None
