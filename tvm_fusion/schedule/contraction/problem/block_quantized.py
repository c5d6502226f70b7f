"""Operands in blocks: small integers with a scale, and a zero point, for each block of terms.

    operand[.., k] = (number[.., k] - zero[.., b]) * scale[.., b] - minimum[.., b],  b = k // size

What files store as MatMulNBits, Q4_0 or GPTQ's layout all reads so once unpacking is inlined: the
number is any integer expression of one tensor, such as the low or the high half of a byte. Scales
may be products, such as those of blocks times those of blocks of blocks (Q4_K).
"""

from dataclasses import dataclass

from tvm import DataType, ir, sym, tirx

from ....core.tir.expressions import choice, loads, variables
from ....core.tir.loops import constant, find, index, substitute
from ....program.stage import Axis

LEAST_SIZE = 16  # terms of a block: factors of fewer are as many bytes as the numbers
_FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Factor:
    """What the terms of a block share."""

    value: ir.Expr  # over the operand's axes: a constant, or of one tensor
    size: int  # terms of a block that share it


@dataclass(frozen=True)
class BlockQuantized:
    """An operand of small integers in blocks along the last axis of K."""

    numbers: ir.Expr  # the integers, over the operand's axes
    # Their range.
    low: int
    high: int
    zero: Factor  # the zero point, a float32
    # What they are the products of; no minimum without factors.
    scale: tuple[Factor, ...]
    minimum: tuple[Factor, ...]
    size: int  # terms of a block
    is_signed: bool = False  # whether numbers are stored from -128 up, rather than from 0

    @property
    def origin(self) -> int:
        """The number that is stored as 0."""
        return self.low + (128 if self.is_signed else 0)

    @property
    def bits(self) -> int:
        """Bits that a number takes: 2, 4 or 8."""
        return next(bits for bits in (2, 4, 8) if self.high - self.low < 1 << bits)


def block_quantized(operand: ir.Expr, axis: Axis) -> BlockQuantized | None:
    """Read an operand as numbers in blocks along an axis; ``None`` for any other.

    Numbers are of one tensor, and so are zero points and scales where they are no constants.
    """
    extent = constant(axis.extent)
    if extent is None:
        return None
    parts = _affine(operand, axis.var, extent)
    if parts is None:
        return None
    numbers, zero, scales, minimums = parts
    bounds = value_range(numbers)
    if bounds is None or bounds[1] - bounds[0] > 255:
        return None
    shared = [zero, *scales, *minimums]
    sources = [{x.source for x in loads(e)} for e in (numbers, *shared)]
    is_apart = len(set().union(*sources)) == sum(map(len, sources))
    if not is_apart or any(len(found) > 1 for found in sources):
        return None
    sizes = [_size(axis.var, extent, x) or 0 for x in shared]
    size = min(sizes)
    if any(s % size for s in sizes if s < extent):
        return None
    factors = [Factor(x, s) for x, s in zip(shared, sizes, strict=True)]
    ends = 1, 1 + len(scales)
    scale, minimum = tuple(factors[ends[0] : ends[1]]), tuple(factors[ends[1] :])
    return BlockQuantized(numbers, *bounds, Factor(_float32(zero), sizes[0]), scale, minimum, size)


def _affine(
    operand: ir.Expr, axis: ir.Var, extent: int
) -> tuple[ir.Expr, ir.Expr, list[ir.Expr], list[ir.Expr]] | None:
    """Split ``(number - zero) * scale - minimum``, parts of which may be missing.

    Numbers are what differs from term to term.
    """

    def is_shared(expr: ir.Expr) -> bool:
        return _size(axis, extent, expr) is not None

    operand, zero = _uncast(operand), tirx.const(0.0, "float32")
    minimums: list[ir.Expr] = []
    if isinstance(operand, tirx.Sub) and isinstance(_uncast(operand.a), tirx.Mul):
        if not is_shared(operand.b):
            return None
        operand, minimums = _uncast(operand.a), _factors(operand.b)
    scales: list[ir.Expr] = []
    while isinstance(operand, tirx.Mul):
        numbers, factor = operand.a, operand.b
        if is_shared(numbers):
            numbers, factor = factor, numbers
        if not is_shared(factor):
            return None
        operand = _uncast(numbers)
        scales += _factors(factor)
    if isinstance(operand, tirx.Sub):
        if not is_shared(operand.b):
            return None
        operand, zero = _uncast(operand.a), operand.b
    found = _integers(operand)
    return None if found is None or is_shared(found) else (found, zero, scales, minimums)


def _factors(expr: ir.Expr) -> list[ir.Expr]:
    """List the factors of a product."""
    expr = _uncast(expr)
    if isinstance(expr, tirx.Mul):
        return [*_factors(expr.a), *_factors(expr.b)]
    return [expr]


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


def _size(axis: ir.Var, extent: int, shared: ir.Expr) -> int | None:
    """Find the largest number of adjacent terms for which an expression is the same."""
    if axis not in variables(shared):
        return extent
    divided = [d for d in find(shared, tirx.FloorDiv) if axis in variables(d.a)]
    steps = {constant(d.b) or 0 for d in divided}
    # Quotients of quotients, such as those of halves of bytes.
    steps |= {a * b for a in steps for b in steps}
    for size in sorted((s for s in steps if LEAST_SIZE <= s < extent), reverse=True):
        block, term = tirx.Var("block", "int64"), tirx.Var("term", "int64")
        analyzer = sym.Analyzer()
        analyzer.bind(block, ir.Range.from_min_extent(index(0), index(-(-extent // size))))
        analyzer.bind(term, ir.Range.from_min_extent(index(0), index(size)))
        place = {axis: block * size + term}
        if term not in variables(analyzer.simplify(substitute(shared, place))):
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
