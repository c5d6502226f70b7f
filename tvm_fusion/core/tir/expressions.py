"""Questions and small changes to scalar expressions over buffer loads."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import Buffer

from ..._tvm.ir.structural import structural_map, structural_walk

_CHOICE = "if_then_else"
# Calls that cost about as much as an addition; every other intrinsic counts as expensive.
_CHEAP_CALLS = frozenset(
    (
        *("if_then_else", "likely", "reinterpret", "shift_left", "shift_right"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "fabs", "abs", "floor"),
        *("ceil", "round", "nearbyint", "trunc", "isnan", "isinf", "isfinite"),
    )
)


def substitute(expr: ir.Expr, values: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
    """Replace variables, buffers included, all at once."""
    if isinstance(expr, ir.Var):
        return values.get(expr, expr)
    if not values or isinstance(expr, tirx.IntImm | tirx.FloatImm):
        return expr
    return substitution(values)(expr)


def substitution(values: Mapping[ir.Var, ir.Expr]) -> Callable[[ir.Expr], ir.Expr]:
    """Return what replaces variables as :func:`substitute` does, for many expressions."""
    # Variables are their addresses; comparing two of them would make an expression first.
    by_hash = {hash(var): value for var, value in values.items()}

    def replaced(var: ir.Var) -> ir.Expr:
        return by_hash.get(hash(var), var)

    def change(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Var):
            return replaced(expr)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return expr
        return structural_map(expr, (ir.Var, replaced), order="post")

    return change


def map_loads(expr: ir.Expr, change: Callable[[ir.TensorLoad], ir.Expr]) -> ir.Expr:
    """Replace loads, those in the indices of others first."""
    return structural_map(expr, (ir.TensorLoad, change), order="post")


def loads(expr: ir.Expr) -> list[ir.TensorLoad]:
    """List all loads, those in the indices of others included."""
    found: list[ir.TensorLoad] = []
    structural_walk(expr, (ir.TensorLoad, found.append))
    return found


def has_load(expr: ir.Expr) -> bool:
    """Whether an expression depends on data."""
    return not isinstance(expr, ir.Var | tirx.IntImm) and bool(loads(expr))


def variables(expr: ir.Expr) -> set[ir.Var]:
    """Return the scalar variables that an expression mentions."""
    if isinstance(expr, ir.Var):
        return {expr}
    if isinstance(expr, tirx.IntImm):
        return set()
    found = tirx.analysis.undefined_vars(expr)
    return {v for v in found if isinstance(v.ty, ir.PrimType)}


def size(expr: ir.Expr) -> int:
    """Count the nodes of an expression, every repetition included.

    A load counts as one, with the nodes of those indices that must be computed.
    """
    count = 0

    def visit_load(found: ir.TensorLoad) -> tvm_ffi.WalkResult:
        nonlocal count
        count += 1 + sum(size(i) for i in found.indices if not isinstance(i, ir.Var | tirx.IntImm))
        return tvm_ffi.WalkResult.SKIP

    def visit(_node: ir.Expr) -> None:
        nonlocal count
        count += 1

    callbacks = [(ir.TensorLoad, visit_load), (ir.Expr, visit)]
    structural_walk(expr, callbacks, order="pre")
    return count


def has_division(expr: ir.Expr) -> bool:
    """Whether index arithmetic holds a floor division or its remainder."""
    if isinstance(expr, ir.Var | tirx.IntImm):
        return False
    found: list[ir.Expr] = []
    structural_walk(expr, ((tirx.FloorDiv, tirx.FloorMod), found.append))
    return bool(found)


def choice(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr] | None:
    """Return condition and both values of a conditional expression."""
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    if call_name(expr) == _CHOICE:
        return expr.args[0], expr.args[1], expr.args[2]
    return None


def is_movement(expr: ir.Expr) -> bool:
    """Whether an expression only moves elements: loads, casts of them, constants, a choice of them.

    Conditions may depend on positions, not on data.
    """
    if isinstance(expr, ir.TensorLoad | tirx.IntImm | tirx.FloatImm):
        return True
    if isinstance(expr, tirx.Cast):
        return is_movement(expr.value)
    chosen = choice(expr)
    if chosen is None:
        return False
    condition, then, otherwise = chosen
    return not has_load(condition) and is_movement(then) and is_movement(otherwise)


def is_expensive(expr: ir.Expr) -> bool:
    """Whether an expression calls a function that takes many instructions, such as ``exp``."""
    calls: list[ir.Call] = []
    structural_walk(expr, (ir.Call, calls.append))
    return any(call_name(call) not in _CHEAP_CALLS for call in calls)


def product(factors: Iterable[ir.Expr]) -> ir.Expr:
    """Multiply extents (int64); 1 for none."""
    constant, result = 1, None
    for factor in factors:
        if isinstance(factor, tirx.IntImm):
            constant *= int(factor.value)
        else:
            result = factor if result is None else result * factor
    if result is None:
        return tirx.IntImm("int64", constant)
    return result if constant == 1 else result * tirx.IntImm("int64", constant)


def int64(expr: ir.Expr | int) -> ir.Expr:
    """Widen index arithmetic to int64, down to its leaves, so that it can be proved about."""
    if isinstance(expr, int):
        return tirx.IntImm("int64", expr)
    if str(expr.ty.dtype) == "int64":
        return expr
    if isinstance(expr, tirx.IntImm):
        return tirx.IntImm("int64", expr.value)
    if isinstance(expr, tirx.Cast) and str(expr.value.ty.dtype) == "int64":
        # What a block iterator of a narrower type was replaced by: it fits.
        return expr.value
    for kind in (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max):
        if isinstance(expr, kind):
            return kind(int64(expr.a), int64(expr.b))
    return tirx.Cast("int64", expr)


def load(buffer: Buffer, indices: Sequence[ir.Expr]) -> ir.TensorLoad:
    """Read one element."""
    return tirx.BufferLoad(buffer, list(indices))


def call_name(expr: ir.Expr) -> str:
    """Return an intrinsic's name without its dialect (``tirx.exp`` is ``exp``); else ``""``."""
    if isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op):
        return str(expr.op.name).rpartition(".")[2]
    return ""


def is_load_of(expr: ir.Expr, buffer: ir.Var) -> bool:
    """Whether an expression is a load of a buffer."""
    return isinstance(expr, ir.TensorLoad) and expr.source.same_as(buffer)
