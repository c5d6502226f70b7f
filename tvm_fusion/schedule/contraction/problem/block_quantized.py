"""Operands in blocks: small integers with a scale, and a zero point, for each block of terms.

    operand[.., k] = (number[.., k] - zero[.., k // size]) * scale[.., k // size]

What files store as MatMulNBits, Q4_0 or GPTQ's layout all reads so once unpacking is inlined: the
number is any integer expression of one tensor, such as the low or the high half of a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import DataType, ir, sym, tirx

from ....core.expressions import choice, loads, variables
from ....core.loops import constant, find, index, substitute
from ....program.stage import Axis

LEAST_SIZE = 16  # terms of a block: factors of fewer are as many bytes as the numbers
_FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class BlockQuantized:
    """An operand of small integers in blocks along the last axis of K.

    Attributes
    ----------
    numbers : Expr
        The integers, over the operand's axes.
    low, high : int
        Their range.
    zero : Expr
        The zero point, a float32: a constant, or over the operand's axes, equal in a block.
    scale : Expr
        The scale, likewise, of a floating type; a constant where the operand has none.
    size : int
        Terms of a block.
    """

    numbers: ir.Expr
    low: int
    high: int
    zero: ir.Expr
    scale: ir.Expr
    size: int

    @property
    def bits(self) -> int:
        """Bits that a number takes: 4 or 8."""
        return 4 if self.high - self.low < 16 else 8


def block_quantized(operand: ir.Expr, axis: Axis) -> BlockQuantized | None:
    """Read an operand as numbers in blocks along an axis; ``None`` for any other.

    Numbers are of one tensor, and so are zero points and scales where they are no constants.
    """
    extent = constant(axis.extent)
    parts = _affine(operand)
    if extent is None or parts is None:
        return None
    numbers, zero, scale = parts
    bounds = value_range(numbers)
    if bounds is None or bounds[1] - bounds[0] > 255:
        return None
    sources = [x for e in (numbers, zero, scale) for x in {x.source for x in loads(e)}]
    if len(sources) != len(set(sources)) or len(sources) != sum(
        bool(loads(e)) for e in (numbers, zero, scale)
    ):
        return None
    if len(variables(numbers)) == 0 or axis.var not in variables(numbers):
        return None
    size = _size(axis.var, extent, (zero, scale))
    if size is None:
        return None
    return BlockQuantized(numbers, *bounds, _float32(zero), scale, size)


def _affine(operand: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr] | None:
    """Split ``(number - zero) * scale``, factors of which may be missing, into its parts."""
    one, none = tirx.const(1.0, "float32"), tirx.const(0.0, "float32")
    operand = _uncast(operand)
    scale: ir.Expr = one
    if isinstance(operand, tirx.Mul):
        left, right = operand.a, operand.b
        if _integers(left) is None and _integers(_difference(left)[0]) is None:
            left, right = right, left
        operand, scale = _uncast(left), _uncast(right)
        if _integers(scale) is not None:
            return None  # two integers: which one has the blocks is not told
    core, zero = _difference(operand)
    numbers = _integers(core)
    return None if numbers is None else (numbers, none if zero is None else zero, scale)


def _difference(operand: ir.Expr) -> tuple[ir.Expr, ir.Expr | None]:
    operand = _uncast(operand)
    return (operand.a, operand.b) if isinstance(operand, tirx.Sub) else (operand, None)


def _uncast(operand: ir.Expr) -> ir.Expr:
    """Take conversions between floating types off."""
    while (
        isinstance(operand, tirx.Cast)
        and str(operand.ty.dtype) in _FLOATS
        and str(operand.value.ty.dtype) in _FLOATS
    ):
        operand = operand.value
    return operand


def _integers(operand: ir.Expr) -> ir.Expr | None:
    """Return the integers that an operand makes floats of."""
    operand = _uncast(operand)
    if not isinstance(operand, tirx.Cast) or str(operand.ty.dtype) not in _FLOATS:
        return None
    is_integer = str(operand.value.ty.dtype).startswith(("int", "uint"))
    return operand.value if is_integer and loads(operand.value) else None


def _float32(expr: ir.Expr) -> ir.Expr:
    if isinstance(expr, tirx.FloatImm):
        return tirx.const(float(expr.value), "float32")
    return expr if str(expr.ty.dtype) == "float32" else tirx.Cast("float32", expr)


def _size(axis: ir.Var, extent: int, factors: tuple[ir.Expr, ...]) -> int | None:
    """Find the largest number of adjacent terms that share their factors."""
    if not any(axis in variables(f) for f in factors):
        return extent
    steps = {
        constant(d.b) or 0
        for f in factors
        for d in find(f, tirx.FloorDiv)
        if axis in variables(d.a)
    }
    for size in sorted((s for s in steps if s >= LEAST_SIZE), reverse=True):
        block, term = tirx.Var("block", "int64"), tirx.Var("term", "int64")
        analyzer = sym.Analyzer()
        analyzer.bind(block, ir.Range.from_min_extent(index(0), index(-(-extent // size))))
        analyzer.bind(term, ir.Range.from_min_extent(index(0), index(size)))
        place = {axis: block * size + term}
        if all(term not in variables(analyzer.simplify(substitute(f, place))) for f in factors):
            return size
    return None


def value_range(expr: ir.Expr) -> tuple[int, int] | None:
    """Bound an integer expression of tensor elements; ``None`` where its type alone would."""
    if isinstance(expr, tirx.IntImm):
        return int(expr), int(expr)
    chosen = choice(expr)
    if chosen is not None:
        sides = [value_range(x) for x in chosen[1:]]
        if sides[0] is None or sides[1] is None:
            return None
        return min(s[0] for s in sides if s), max(s[1] for s in sides if s)
    if isinstance(expr, ir.TensorLoad):
        return _of_type(str(expr.ty.dtype))
    if isinstance(expr, tirx.Cast):
        inner, own = value_range(expr.value), _of_type(str(expr.ty.dtype))
        if inner is None or own is None:
            return inner
        return inner if own[0] <= inner[0] and inner[1] <= own[1] else own
    found = _of_operation(expr)
    own = _of_type(str(expr.ty.dtype))
    if found is None or (own is not None and not (own[0] <= found[0] and found[1] <= own[1])):
        return own
    return found


def _of_operation(expr: ir.Expr) -> tuple[int, int] | None:
    """Bound the result of an operation of two integers, as if it did not wrap around."""
    sides = [getattr(expr, "a", None), getattr(expr, "b", None)]
    name = type(expr).__name__
    if isinstance(expr, ir.Call):
        name, sides = str(expr.op.name).split(".")[-1], list(expr.args)[:2]
    if len(sides) != 2 or any(s is None for s in sides):
        return None
    a, b = (value_range(s) for s in sides)
    if name in ("bitwise_and", "BitwiseAnd"):
        masks = [s[1] for s in (a, b) if s is not None and s[0] >= 0]
        return (0, min(masks)) if masks else None
    if a is None or b is None:
        return None
    if name in ("Add", "Sub"):
        low, high = b if name == "Add" else (-b[1], -b[0])
        return a[0] + low, a[1] + high
    if name in ("bitwise_xor", "BitwiseXor", "bitwise_or", "BitwiseOr") and min(*a, *b) >= 0:
        return 0, (1 << max(a[1], b[1]).bit_length()) - 1
    if name in ("shift_right", "RShift") and b[0] >= 0:
        ends = [x >> n for x in a for n in (b[0], min(b[1], 63))]
        return min(ends), max(ends)
    return None


def _of_type(dtype: str) -> tuple[int, int] | None:
    kind, bits = DataType(dtype), DataType(dtype).bits
    if bits > 16 or not str(kind).startswith(("int", "uint")):
        return None
    if str(kind).startswith("uint"):
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1
