"""What a claim promises about work, read off a program without building anything."""

import math
from collections.abc import Container, Hashable, Iterable, Sequence
from functools import lru_cache

import tvm_ffi
from tvm import DataType, ir, tirx

from ...core.contract.template import Refusal
from ...core.tir.expressions import choice, load
from ...core.tir.loops import find
from ...ecg.operation_count import operations as count
from ...ecg.work import at
from ...program.group import Group
from ...program.program import Program
from ...program.stage import Stage

# Bind subexpressions that occur more than once to variables.

_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
)


def shared_subexpressions(
    exprs: Sequence[ir.Expr],
) -> tuple[list[tuple[ir.Var, ir.Expr]], list[ir.Expr]]:
    """Name what occurs more than once.

    Returns
    -------
    bindings : list of (Var, PrimExpr)
        In an order in which each uses only earlier ones.
    exprs : list of PrimExpr
        The given ones over those variables.

    Notes
    -----
    Values of a conditional expression are evaluated under its condition only, so what occurs
    inside them is never moved out; the condition itself may be.
    """
    numbers = _Numbers()
    seen: dict[int, int] = {}
    for expr in exprs:
        for node in _movable(expr):
            key = numbers.of(node)
            seen[key] = seen.get(key, 0) + 1
    bindings: list[tuple[ir.Var, ir.Expr]] = []
    if all(count < 2 for count in seen.values()):
        return bindings, list(exprs)
    named: dict[int, ir.Var] = {}

    def rebuild(expr: ir.Expr) -> ir.Expr:
        if _is_leaf(expr):
            return expr
        key = numbers.of(expr)
        if key in named:
            return named[key]
        changed = _with_operands(expr, [rebuild(o) for o in _operands(expr)])
        if seen.get(key, 0) < 2:
            return changed
        named[key] = ir.Var(f"shared{len(bindings)}", expr.ty)
        bindings.append((named[key], changed))
        return named[key]

    return bindings, [rebuild(expr) for expr in exprs]


class _Numbers:
    """Numbers of subexpressions, equal where these are structurally equal.

    A node's number follows from those of its operands: a structural key of each would hash all that
    is below it, again for every node above.
    """

    def __init__(self) -> None:
        self._by_form: dict[Hashable, int] = {}
        self._by_address: dict[int, int] = {}

    def of(self, expr: ir.Expr) -> int:
        """Return the number of a subexpression of something that stays alive."""
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):  # their hashes are no addresses
            return self._number(tvm_ffi.StructuralKey(expr))
        address = hash(expr)
        number = self._by_address.get(address)
        if number is None:
            number = self._by_address[address] = self._number(self._form(expr))
        return number

    def _number(self, form: Hashable) -> int:
        return self._by_form.setdefault(form, len(self._by_form))

    def _form(self, expr: ir.Expr) -> Hashable:
        if isinstance(expr, ir.Var):
            return hash(expr)
        if isinstance(expr, ir.TensorLoad):
            return hash(expr.source), *map(self.of, expr.indices)
        if isinstance(expr, _BINARY):
            return type(expr), self.of(expr.a), self.of(expr.b)
        return tvm_ffi.StructuralKey(expr)


def _is_leaf(expr: ir.Expr) -> bool:
    return isinstance(expr, ir.Var | tirx.IntImm | tirx.FloatImm)


def _movable(expr: ir.Expr) -> Iterable[ir.Expr]:
    """Yield subexpressions that are evaluated wherever the whole is."""
    if _is_leaf(expr):
        return
    chosen = choice(expr)
    for operand in chosen[:1] if chosen else _operands(expr):
        yield from _movable(operand)
    yield expr


def _operands(expr: ir.Expr) -> list[ir.Expr]:
    if isinstance(expr, ir.TensorLoad):
        return list(expr.indices)
    if isinstance(expr, ir.Call):
        return list(expr.args)
    if isinstance(expr, tirx.Select):
        return [expr.condition, expr.true_value, expr.false_value]
    if isinstance(expr, tirx.Cast):
        return [expr.value]
    if isinstance(expr, tirx.Not | tirx.BitwiseNot):
        return [expr.a]
    return [expr.a, expr.b]


def _with_operands(expr: ir.Expr, operands: list[ir.Expr]) -> ir.Expr:
    if all(a.same_as(b) for a, b in zip(_operands(expr), operands, strict=True)):
        return expr
    if isinstance(expr, ir.TensorLoad):
        return load(expr.source, operands)
    if isinstance(expr, ir.Call):
        return ir.Call(expr.op, operands, expr.attrs, expr.ty_args, None, expr.ty)
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(expr.ty.dtype, operands[0])
    return type(expr)(*operands)


MAX_PARAMETERS = 120  # of a kernel: CUDA passes 4 KB of arguments, strides and extents among them


def too_many_parameters(program: Program) -> Refusal | None:
    """Refuse a kernel with more parameters than a launch can pass."""
    count = len(program.inputs) + len(program.scalars) + len(program.outputs)
    if count <= MAX_PARAMETERS:
        return None
    sentence = f"The kernel would have {count} parameters; a launch takes {MAX_PARAMETERS}."
    return Refusal("too_many_parameters", sentence)


def points(stage: Stage) -> int:
    """Count a stage's data-parallel points."""
    return math.prod(at(axis.extent) for axis in stage.axes)


def terms(stage: Stage) -> int:
    """Count the terms of one of a stage's sums; 1 for a map."""
    return math.prod(at(axis.extent) for axis in stage.reduce)


def operations(*exprs: ir.Expr) -> int:
    """Count the arithmetic of one element, in units of one addition; what is shared counts once."""
    bindings, rest = shared_subexpressions(exprs)
    return count(*rest, bindings=bindings)


def flops(stages: tuple[Stage, ...]) -> int:
    """Count the arithmetic of the stages."""
    return sum(points(s) * terms(s) * _operations(s) for s in stages)


@lru_cache(maxsize=1 << 13)  # templates that are asked about one group count the same stages
def _operations(stage: Stage) -> int:
    return operations(*stage.values)


def traffic(group: Group, stages: tuple[Stage, ...], unread: Container[ir.Var] = ()) -> int:
    """Count bytes read and written: outputs once, of each input no more than the loads touch.

    Parameters
    ----------
    unread
        Inputs that kernels do not read: constants whose elements they know.
    """
    touched: dict[ir.Var, int] = {}
    for stage in stages:
        count = points(stage) * terms(stage)
        for expr in (*stage.values, *(i for where in stage.indices for i in where)):
            for read in find(expr, ir.TensorLoad):
                touched[read.source] = touched.get(read.source, 0) + count
    inputs = group.program.inputs
    read = 0
    for buffer, value in zip(inputs, group.inputs, strict=True):
        if buffer in unread:
            continue
        size = DataType(value.dtype).itemsize
        read += min(value.bytes, touched.get(buffer, 0) * size)
    return read + sum(v.bytes for v in group.outputs)
