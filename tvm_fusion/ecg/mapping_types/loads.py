"""Which elements an expression reads, and under which conditions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ...core.tir.loops import substitute

_PURE = 1  # tirx.CallEffectKind.Pure; larger kinds read or write memory
_LEAVES = (tirx.IntImm, tirx.FloatImm, ir.StringImm)


class Unreadable(Exception):
    """The accesses of a PrimFunc cannot be read; the message goes on after "The function"."""


@dataclass(frozen=True)
class Load:
    """One element read by an expression."""

    buffer: ir.Var  # the buffer read
    indices: tuple[ir.Expr, ...]  # one index per dimension
    conditions: tuple[ir.Expr, ...]  # the load happens only where all of these hold


def loads_of(expr: ir.Expr, conditions: tuple[ir.Expr, ...] = ()) -> Iterator[Load]:
    """Yield every load of `expr`, those in indices and conditions of other loads included.

    Parameters
    ----------
    conditions
        What holds where `expr` is evaluated.

    Raises
    ------
    Unreadable
        If the expression holds a node whose reads are unknown, such as a call with side effects.
    """
    if isinstance(expr, ir.TensorLoad):
        yield Load(expr.source, tuple(expr.indices), conditions)
        for index in expr.indices:
            yield from loads_of(index, conditions)
        return
    if isinstance(expr, tirx.Let):
        yield from loads_of(expr.value, conditions)
        yield from loads_of(substitute(expr.body, {expr.var: expr.value}), conditions)
        return
    choice = _choice(expr)
    if choice is not None:
        condition, then, otherwise = choice
        yield from loads_of(condition, conditions)
        yield from loads_of(then, (*conditions, condition))
        yield from loads_of(otherwise, (*conditions, tirx.Not(condition)))
        return
    for operand in _operands(expr):
        yield from loads_of(operand, conditions)


def has_load(expr: ir.Expr) -> bool:
    """Whether `expr` depends on data."""
    return next(loads_of(expr), None) is not None


def variables_of(*exprs: ir.Expr) -> set[ir.Var]:
    """Return the variables that occur in `exprs`, buffers excepted."""
    return {
        var
        for expr in exprs
        for var in tirx.analysis.undefined_vars(expr)
        if isinstance(var.ty, ir.PrimType)
    }


def function_name(call: ir.Call) -> str | None:
    """Return an intrinsic's name without its dialect: ``floor`` for ``tirx.floor``."""
    return call.op.name.rsplit(".", 1)[-1] if isinstance(call.op, ir.Op) else None


def _choice(expr: ir.Expr) -> Sequence[ir.Expr] | None:
    """Return condition, value if true and value if false of a conditional expression."""
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, ir.Call) and function_name(expr) == "if_then_else":
        return expr.args
    return None


def _operands(expr: ir.Expr) -> Sequence[ir.Expr]:
    if isinstance(expr, ir.Call):
        _check_call(expr)
        return expr.args
    if isinstance(expr, _LEAVES) or (isinstance(expr, ir.Var) and isinstance(expr.ty, ir.PrimType)):
        return ()
    if isinstance(expr, tirx.Cast):
        return (expr.value,)
    if hasattr(expr, "a"):
        return (expr.a, expr.b) if hasattr(expr, "b") else (expr.a,)
    raise Unreadable(f"contains a {type(expr).__name__} expression")


def _check_call(call: ir.Call) -> None:
    name = function_name(call)
    if name is None:
        raise Unreadable("calls a function that is not an intrinsic")
    effect = call.op.get_attr("TCallEffectKind")
    if effect is None or effect > _PURE or name == "address_of":
        raise Unreadable(f"calls {name}, which accesses memory in a way that its loads do not show")
