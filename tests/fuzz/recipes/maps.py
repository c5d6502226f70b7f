"""Elementwise operators, comparisons, masks, integers, casts."""

from ..builder import Builder, Rejected
from ..operators.elementwise import COMPARISONS, UNARY
from .registry import broadcasts, mask_for, partner, positive, recipe, static_axes, within

# What an argument is put through where a function is defined, or bounded, in part only.
_POSITIVE = ("log", "sqrt", "rsqrt")
_WITHIN_ONE = ("asin", "acos", "atanh", "tan")
_GROWING = ("exp", "square")
# TVM's code generator for LLVM has no half form of these.
_SINGLE_ONLY = ("asin", "acos", "atan", "asinh", "acosh", "atan2")
_INTEGER_BINARY = (
    *("add", "subtract", "multiply", "maximum", "minimum"),
    *("bitwise_and", "bitwise_or", "bitwise_xor"),
)
_INTEGER_BY_CONSTANT = ("floor_divide", "floor_mod", "left_shift", "right_shift")
_INTEGER_UNARY = ("bitwise_not", "abs", "negative")


def _require_single(b: Builder, name: str, value: int) -> None:
    if name in _SINGLE_ONLY and b.dtype_of(value) != "float32":
        raise Rejected(f"{name} of a half type")


@recipe(10)
def unary(b: Builder) -> None:
    name, x = b.one_of(UNARY), b.pick_float()
    _require_single(b, name, x)
    if name in _POSITIVE:
        x = positive(b, x)
    elif name in _WITHIN_ONE:
        x = within(b, x, 0.75)
    elif name == "acosh":
        x = b.emit("add", positive(b, x), b.scalar(1, b.dtype_of(x)))
    elif name in _GROWING:
        x = within(b, x, 2)
    b.tame(b.emit(name, x))


@recipe(2)
def unary_with_attribute(b: Builder) -> None:
    name, x = b.one_of(["nn.leakyrelu", "nn.softplus", "clip"]), b.pick_float()
    if name == "nn.leakyrelu":
        b.emit(name, x, alpha=b.one_of([0.125, 0.25]))
    elif name == "nn.softplus":
        b.emit(name, x, beta=b.one_of([1.0, 2.0]))
    else:
        low = b.one_of([-1.0, -0.5, 0.0])
        b.emit(name, x, low=low, high=low + b.one_of([0.5, 1.5]))


@recipe(2)
def prelu(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(static_axes(shape)))
    if b.dtype_of(x) == "bfloat16":
        raise Rejected("Relax has no such prelu")
    axis = b.one_of(static_axes(b.shape(x)))
    b.emit("nn.prelu", x, b.leaf([b.shape(x)[axis]], b.dtype_of(x), constant=True), axis=axis)


@recipe(2)
def rounding(b: Builder) -> None:
    b.emit(b.one_of(["sign", "floor", "ceil", "trunc", "round"]), b.pick_float())


@recipe(10)
def binary(b: Builder) -> None:
    x = b.pick_float()
    pair = [x, partner(b, x)]
    if b.chance(0.5):
        pair.reverse()
    b.tame(b.emit(b.one_of(["add", "subtract", "multiply", "maximum", "minimum"]), *pair))


@recipe(24)
def reuse(b: Builder) -> None:
    """Combine two values that have a consumer already."""
    x = b.pick(lambda v: b.is_float(v) and b.uses.get(v) == 1 and bool(b.shape(v)))
    y = b.pick(
        lambda v: (
            v != x
            and b.uses.get(v) == 1
            and b.dtype_of(v) == b.dtype_of(x)
            and broadcasts(b.shape(v), b.shape(x))
        )
    )
    b.tame(b.emit(b.one_of(["add", "subtract", "multiply", "maximum", "minimum"]), x, y))


@recipe(3)
def guarded_binary(b: Builder) -> None:
    name, x = b.one_of(["divide", "divide", "atan2", "log_add_exp"]), b.pick_float()
    _require_single(b, name, x)
    if name == "divide":
        b.tame(b.emit(name, x, positive(b, partner(b, x))))
    else:
        b.emit(name, x, positive(b, partner(b, x)))


@recipe(4)
def power(b: Builder) -> None:
    """Raise to a constant, which the passes may spell as products and roots, or to a tensor."""
    x = b.pick_float()
    x = positive(b, within(b, x, 1))
    if b.chance(0.75):
        y = b.scalar(b.one_of([0.5, 2.0, 3.0, -0.5, 1.5]), b.dtype_of(x))
    else:
        y = within(b, partner(b, x), 1)
    b.tame(b.emit("power", x, y))


@recipe(4)
def comparison(b: Builder) -> None:
    x = b.pick_float()
    y = partner(b, x) if b.chance(0.5) else b.scalar(b.one_of([0.0, 0.25, 0.7]), b.dtype_of(x))
    mask = b.emit(b.one_of(COMPARISONS), x, y)
    if b.chance(0.5):
        _use_mask(b, mask)


def _use_mask(b: Builder, mask: int) -> None:
    x = b.pick_float(lambda shape: broadcasts(shape, b.shape(mask)))
    b.emit("where", mask, x, b.scalar(-1.5, b.dtype_of(x)) if b.chance(0.3) else partner(b, x))


@recipe(2)
def select(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(shape))
    mask = mask_for(b, b.shape(x))
    if b.chance(0.3) and b.shape(mask) == b.shape(x):
        b.emit("masked_fill", x, mask, fill=b.one_of([0.0, -2.0]))
    else:
        _use_mask(b, mask)


@recipe(6)
def logic(b: Builder) -> None:
    x = b.pick(lambda v: b.dtype_of(v) == "bool")
    name = b.one_of(["logical_and", "logical_or", "logical_xor", "logical_not"])
    b.emit(name, x, *([] if name == "logical_not" else [partner(b, x)]))


@recipe(1)
def classify(b: Builder) -> None:
    mask = b.emit(b.one_of(["isnan", "isinf", "isfinite"]), b.pick_float(lambda s: bool(s)))
    _use_mask(b, mask)


@recipe(6)
def integers(b: Builder) -> None:
    try:
        x = b.pick(lambda v: b.dtype_of(v).startswith("int"))
    except Rejected:
        x = b.leaf(b.shape(b.pick_float()), b.one_of(["int32", "int64"]), low=0, high=50)
    dtype = b.dtype_of(x)
    axes = [b.integer(0, len(b.shape(x)))] if b.shape(x) else []
    kind = b.one_of(["binary", "binary", "constant", "constant", "unary", "reduction"])
    if kind == "binary":
        b.emit(b.one_of(_INTEGER_BINARY), x, partner(b, x))
    elif kind == "constant":
        b.emit(b.one_of(_INTEGER_BY_CONSTANT), x, b.scalar(b.one_of([1, 2, 3]), dtype))
    elif kind == "unary":
        b.emit(b.one_of(_INTEGER_UNARY), x)
    elif axes:
        b.emit(b.one_of(["sum", "max", "min"]), x, axis=axes, keepdims=b.chance(0.5))


@recipe(2)
def cast(b: Builder) -> None:
    x = b.pick(lambda v: True)
    dtype = b.dtype_of(x)
    half = "float16" if b.dtype == "float32" else b.dtype
    choices = ["float32", half] if b.dtype == half or b.chance(0.1) else ["float32"]
    if dtype == "float32" and len(choices) == 1:
        choices = ["int32"]
    elif dtype == "bool":
        choices += ["int32"]
    elif dtype.startswith("int"):
        choices += ["int64" if dtype == "int32" else "int32"]
    to = b.one_of([c for c in choices if c != dtype])
    if to == "int32" and not all(v.is_finite for v in b.values[x]):
        raise Rejected("not a number")
    b.emit("astype", x, gives=to, dtype=to)


def join(b: Builder, one: int, two: int) -> None:
    """Bring two results together, by their elements or by what is left after a reduction."""
    one, two = _as_float(b, one), _as_float(b, two)
    if b.dtype_of(one) != b.dtype_of(two):
        two = b.emit("astype", two, gives=b.dtype_of(one), dtype=b.dtype_of(one))
    if not broadcasts(b.shape(one), b.shape(two)):
        name = b.one_of(["mean", "max", "min"])
        two = b.emit(name, two, axis=None, keepdims=b.chance(0.2) and _alike(b, one, two))
    b.tame(b.emit(b.one_of(["add", "subtract", "multiply", "maximum"]), one, two))


def _alike(b: Builder, one: int, two: int) -> bool:
    return len(b.shape(one)) == len(b.shape(two))


def _as_float(b: Builder, value: int) -> int:
    if b.is_float(value):
        return value
    return b.tame(b.emit("astype", value, gives=b.dtype, dtype=b.dtype))
