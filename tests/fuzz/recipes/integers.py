"""Integers of 32 and 64 bits and booleans, in the operators that models use them in."""

from ..builder import Builder, Rejected
from ..operators.elementwise import COMPARISONS
from .registry import mask_for, partner, recipe, static, static_axes

_ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")


def _integer(b: Builder, least: int = 0) -> int:
    return b.pick(lambda v: b.dtype_of(v).startswith("int") and len(b.shape(v)) >= least)


def _bool(b: Builder, least: int = 0) -> int:
    return b.pick(lambda v: b.dtype_of(v) == "bool" and len(b.shape(v)) >= least)


@recipe(4, wide=True)
def integer_arithmetic(b: Builder) -> None:
    x = _integer(b)
    b.emit(b.one_of(_ARITHMETIC), x, partner(b, x))


@recipe(2, wide=True)
def integer_clip(b: Builder) -> None:
    x, low = _integer(b), b.one_of([-3, 0, 1])
    name = b.one_of(["maximum", "minimum"])
    b.emit(name, x, b.scalar(low, b.dtype_of(x)))


@recipe(3, wide=True)
def integer_comparison(b: Builder) -> None:
    x = _integer(b)
    y = partner(b, x) if b.chance(0.5) else b.scalar(b.one_of([0, 1, -2]), b.dtype_of(x))
    mask = b.emit(b.one_of(COMPARISONS), x, y)
    if b.chance(0.5):
        b.emit("where", mask, x, partner(b, x))


@recipe(3, wide=True)
def integer_reduction(b: Builder) -> None:
    x = _integer(b, 1)
    axis = b.integer(0, len(b.shape(x)))
    b.emit(b.one_of(["sum", "max", "min", "prod"]), x, axis=[axis], keepdims=b.chance(0.5))


@recipe(1.5, wide=True)
def integer_position(b: Builder) -> None:
    x = _integer(b, 1)
    axis = b.integer(0, len(b.shape(x)))
    name = b.one_of(["argmax", "argmin"])
    b.emit(name, x, gives="int64", axis=axis, keepdims=b.chance(0.4))


@recipe(2, wide=True)
def integer_scan(b: Builder) -> None:
    x = _integer(b, 1)
    axis = b.integer(0, len(b.shape(x)))
    b.emit("cumsum", x, axis=axis, exclusive=b.chance(0.3))


@recipe(2, wide=True)
def integer_product(b: Builder) -> None:
    x = _integer(b, 2)
    weight = b.leaf([b.shape(x)[-1], b.one_of([1, 3, 8, 17])], b.dtype_of(x), low=-9, high=10)
    b.emit("matmul", x, weight)


@recipe(1.5, wide=True)
def integer_division(b: Builder) -> None:
    x = _integer(b)
    divisor = b.emit("add", b.emit("abs", partner(b, x)), b.scalar(1, b.dtype_of(x)))
    b.emit(b.one_of(["floor_divide", "floor_mod"]), x, divisor)


@recipe(3, wide=True)
def integer_movement(b: Builder) -> None:
    """Join, cut, border or repeat integers or booleans."""
    x = b.pick(lambda v: not b.is_float(v) and bool(b.shape(v)))
    shape, dtype = b.shape(x), b.dtype_of(x)
    axis = b.integer(0, len(shape))
    name = b.one_of(["concat", "stack", "nn.pad", "repeat", "split"])
    if name in ("concat", "stack"):
        same = b.pick(lambda v: b.types[v] == (shape, dtype))
        b.emit(name, x, same, axis=axis)
    elif name == "nn.pad":
        if dtype == "bool":
            raise Rejected("no border of booleans")
        width = [b.integer(0, 3) for _ in range(2 * len(shape))]
        b.emit(name, x, width=width, mode="constant", fill=0.0)
    elif name == "repeat":
        b.emit(name, x, repeats=2, axis=axis)
    else:
        axis = b.one_of(static_axes(shape, 2))
        at = b.integer(1, static(shape[axis]))
        b.emit_all("split", x, gives=[None, None], sections=[at], axis=axis)


@recipe(2, wide=True)
def integer_lookup(b: Builder) -> None:
    """Rows of a table of integers, at places that the graph may have computed."""
    x = b.leaf([b.one_of([5, 17]), b.one_of([3, 8])], "int64", low=-(2**40), high=2**40)
    places = _integer(b)
    places = b.emit("abs", places)
    bound = b.scalar(static(b.shape(x)[0]), b.dtype_of(places))
    b.emit("take", x, b.emit("floor_mod", places, bound), axis=0, mode="fast")


@recipe(3, wide=True)
def bool_logic(b: Builder) -> None:
    x = _bool(b)
    names = ["logical_and", "logical_or", "logical_xor", "logical_not", "maximum", "minimum"]
    name = b.one_of(names)
    b.emit(name, x, *([] if name == "logical_not" else [partner(b, x)]))


@recipe(2, wide=True)
def bool_reduction(b: Builder) -> None:
    """All or any of the elements, or how many are true."""
    x = _bool(b, 1)
    axis, keepdims = b.integer(0, len(b.shape(x))), b.chance(0.5)
    name = b.one_of(["max", "min", "sum"])
    if name == "sum":
        x = b.emit("astype", x, gives="int64", dtype="int64")
    b.emit(name, x, axis=[axis], keepdims=keepdims)


@recipe(2, wide=True)
def bool_choice(b: Builder) -> None:
    x = b.pick(lambda v: not b.is_float(v) and bool(b.shape(v)))
    b.emit("where", mask_for(b, b.shape(x)), x, partner(b, x))


@recipe(4, wide=True)
def wide_cast(b: Builder) -> None:
    """Cast between all types; out of range is not defined, nor is NaN as an integer."""
    x = b.pick(lambda v: True)
    to = b.one_of(["float32", "bfloat16", "float16", "int32", "int64", "bool"])
    if to == b.dtype_of(x):
        raise Rejected("no cast")
    finite = all(v.is_finite for v in b.values[x])
    if not finite and to not in ("float32", "bfloat16", "float16"):
        raise Rejected("not a number")
    b.emit("astype", x, gives=to, dtype=to)
