"""NaN, infinities, zeros' signs: what operators make of them, and so who can tell them apart.

A law may write a number where the original had NaN or an infinity, or the other way round:
``x / x = 1`` is no NaN for 0. That is no harm as long as every result that is computed from the
element is non-finite in the original. It is one where an operator in between makes a number of it:
because it asks (``isnan``, a comparison, a cast to integers), or by what it computes
(``1 / inf = 0``, ``tanh(inf) = 1``, ``maximum(-inf, 0) = 0``).

The same holds of a zero that becomes the other one: ``-(x - 1) = 1 - x`` is -0 for 1, and 0. They
are equal, but for who divides by them.
"""

import enum
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from tvm import ir, relax


class NonFinite(enum.Flag):
    """Values that a law may change: those that are no finite numbers, and the sign of a zero.

    Of what becomes of them also numbers, which tell one from the other.
    """

    NONE = 0
    NAN = enum.auto()
    PLUS = enum.auto()
    MINUS = enum.auto()
    ZERO = enum.auto()
    NUMBER = enum.auto()
    INFINITE = PLUS | MINUS
    ALL = NAN | PLUS | MINUS


NONE, NAN, PLUS, MINUS = NonFinite.NONE, NonFinite.NAN, NonFinite.PLUS, NonFinite.MINUS
INFINITE, ALL, NUMBER = NonFinite.INFINITE, NonFinite.ALL, NonFinite.NUMBER
ZERO = NonFinite.ZERO
KINDS = (NAN, PLUS, MINUS)

#: What becomes of NaN, infinity and minus infinity in an operand, whatever the other operands are.
#: An element that is not read at all does not count.
Becomes: TypeAlias = tuple[NonFinite, NonFinite, NonFinite]

_SAME: Becomes = (NAN, PLUS, MINUS)
_STAYS: Becomes = (NAN, ALL, ALL)  # non-finite, of either kind
_SUM: Becomes = (NAN, PLUS | NAN, MINUS | NAN)
_LARGEST: Becomes = (NAN, PLUS | NAN, MINUS | NUMBER | ALL)
_SMALLEST: Becomes = (NAN, PLUS | NUMBER | ALL, MINUS | NAN)
_NOT_A_NUMBER: Becomes = (NAN, NAN, NAN)
_BOUNDED: Becomes = (NAN, NUMBER, NUMBER)
_DIVISOR: Becomes = (NAN, NUMBER | ALL, NUMBER | ALL)
_RISES: Becomes = (NAN, PLUS, NUMBER)  # from 0 or another bound on
_LOGARITHM: Becomes = (NAN, PLUS, NAN)
_EVEN: Becomes = (NAN, PLUS, PLUS)
_SCORES: Becomes = (NAN, NAN, NUMBER | ALL)
_ASKED: Becomes = (NUMBER | ALL,) * 3

_OF: dict[str, tuple[Becomes, ...]] = {
    **dict.fromkeys(
        (
            *("reshape", "permute_dims", "squeeze", "expand_dims", "flatten", "broadcast_to"),
            *("flip", "strided_slice", "dynamic_strided_slice", "concat", "stack", "split"),
            *("repeat", "tile", "take", "gather_elements", "gather_nd", "index_tensor", "nn.pad"),
            *("tril", "triu", "layout_transform", "nn.dropout", "nn.pixel_shuffle", "meshgrid"),
            *("nn.batch_flatten", "reverse_sequence", "slice_scatter", "floor", "ceil", "round"),
            *("trunc", "sinh", "asinh", "to_vdevice", "hint_on_device", "memory.view"),
        ),
        (_SAME,),
    ),
    "negative": ((NAN, MINUS, PLUS),),
    **dict.fromkeys(("abs", "square", "cosh"), (_EVEN,)),
    **dict.fromkeys(
        ("sqrt", "log", "log2", "log10", "log1p", "acosh"),
        (_LOGARITHM,),
    ),
    **dict.fromkeys(("exp", "expm1", "nn.relu", "nn.softplus", "log_add_exp"), (_RISES,)),
    **dict.fromkeys(("nn.silu", "nn.gelu", "nn.gelu_tanh"), ((NAN, PLUS, NUMBER | ALL),)),
    "nn.selu": (_RISES,),
    "nn.leakyrelu": ((NAN, PLUS, ALL),),
    "nn.prelu": ((NAN, PLUS, ALL), _STAYS),
    "rsqrt": ((NAN, NUMBER, NAN),),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atanh"), (_NOT_A_NUMBER,)),
    **dict.fromkeys(("tanh", "sigmoid", "erf", "atan", "clip"), (_BOUNDED,)),
    "add": (_SUM,),
    "subtract": (_SUM, (NAN, MINUS | NAN, PLUS | NAN)),
    **dict.fromkeys(("multiply", "ewise_fma", "outer", "einsum"), (_STAYS,)),
    "divide": (_STAYS, _DIVISOR),
    **dict.fromkeys(("maximum", "max", *(f"nn.max_pool{n}d" for n in (1, 2, 3))), (_LARGEST,)),
    **dict.fromkeys(("minimum", "min"), (_SMALLEST,)),
    "where": (_ASKED, _SAME, _SAME),
    **dict.fromkeys(("sum", "mean", "cumsum"), (_SUM,)),
    **dict.fromkeys(("prod", "cumprod", "matmul", "image.resize2d", "image.resize3d"), (_STAYS,)),
    **dict.fromkeys((f"nn.conv{n}d{t}" for n in (1, 2, 3) for t in ("", "_transpose")), (_STAYS,)),
    **dict.fromkeys((f"nn.{a}avg_pool{n}d" for n in (1, 2, 3) for a in ("", "adaptive_")), (_SUM,)),
    **dict.fromkeys(("variance", "std"), (_NOT_A_NUMBER,)),
    **dict.fromkeys(("nn.softmax", "nn.log_softmax"), (_SCORES,)),
    **dict.fromkeys(
        ("nn.layer_norm", "nn.group_norm", "nn.instance_norm"), (_NOT_A_NUMBER, _STAYS)
    ),
    "nn.rms_norm": (_BOUNDED, _STAYS),  # next to an infinite element the others become 0
    "nn.batch_norm": (_STAYS, _STAYS, _STAYS, _STAYS, _DIVISOR),
    # A score of minus infinity is a masked one.
    "nn.attention": (_BOUNDED, _BOUNDED, _STAYS, _SCORES),
    "nn.attention_bias": (_BOUNDED, _BOUNDED, _STAYS, _SCORES),
}

# Operators to which both zeros are the same, or that give the same number for both.
_ONE_ZERO = frozenset(
    (
        *("abs", "square", "exp", "cos", "cosh", "acos", "log", "log2", "log10", "sigmoid"),
        *("nn.softplus", "nn.softmax", "nn.log_softmax", "log_add_exp", "isnan", "isinf"),
        *("isfinite", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("argmax", "argmin", "argsort", "nonzero"),
    )
)


def becomes(call: relax.Call, index: int, other: np.ndarray | None = None) -> Becomes:
    """Say what an operator makes of NaN, infinity and minus infinity.

    Parameters
    ----------
    index
        Which of its tensors has them, those in tuples counted one by one.
    other
        The other operand of two, where it is known: a positive exponent keeps what it is given.

    Returns
    -------
    tuple of NonFinite
        Of an operator that is not known here: anything.
    """
    if not isinstance(call.op, ir.Op):
        return _ASKED
    name = call.op.name.removeprefix("relax.")
    if name == "astype":
        dtype = str(call.attrs.dtype)
        keeps = dtype in ("float16", "bfloat16", "float32", "float64")
        return _SAME if keeps else _ASKED
    if name == "power":
        is_positive = other is not None and bool((other.astype("float64") > 0).all())
        return _STAYS if index == 0 and is_positive else _ASKED
    rows = _OF.get(name, (_ASKED,))
    return rows[min(index, len(rows) - 1)]


def of_zero(call: relax.Call, index: int, other: np.ndarray | None = None) -> NonFinite:
    """Say what becomes of a zero's sign in an operand; parameters as :func:`becomes` takes them.

    Returns
    -------
    NonFinite
        The sign of a zero, nothing, or a number.
    """
    name = call.op.name.removeprefix("relax.") if isinstance(call.op, ir.Op) else ""
    if name in _ONE_ZERO or (name == "astype" and "float" not in str(call.attrs.dtype)):
        return NONE
    if name == "nn.batch_norm":
        return ZERO if index < 4 else NONE  # of the variance, to which epsilon is added
    if name in ("add", "subtract", "maximum", "minimum") and other is not None:
        values = other.astype("float64")
        covers = {"maximum": values > 0, "minimum": values < 0}.get(name, values != 0)
        return NONE if covers.all() else ZERO
    if name == "clip":
        low, high = (float(end.value) for end in call.args[1:])
        return NONE if low > 0 or high < 0 else ZERO
    is_divisor = (name == "divide" and index == 1) or name == "rsqrt"
    is_kept = name == "astype" or (name in _OF and not is_divisor)
    if name == "power":
        is_kept = becomes(call, index, other) is _STAYS
    return ZERO if is_kept else ZERO | NUMBER


def asked(
    call: relax.Call, index: int, result: NonFinite, other: np.ndarray | None = None
) -> NonFinite:
    """Say which values of an operand, of those that a law may change, may turn into numbers.

    Parameters
    ----------
    index
        Which of its tensors it is.
    result
        Which ones of the result may.
    other
        As :func:`becomes` takes it.
    """
    kept = ZERO if of_zero(call, index, other) & (result | NUMBER) else NONE
    return _asked(becomes(call, index, other), result) | kept


@lru_cache(maxsize=1024)
def _asked(becoming: Becomes, result: NonFinite) -> NonFinite:
    found = NONE
    for kind, after in zip(KINDS, becoming, strict=True):
        if after & (result | NUMBER):
            found |= kind
    return found


def words(kinds: NonFinite) -> str:
    """Name kinds for a reader."""
    every = (NAN, "NaN"), (INFINITE, "infinities"), (ZERO, "the sign of a zero")
    named = [word for kind, word in every if kinds & kind]
    return " and ".join(named)
