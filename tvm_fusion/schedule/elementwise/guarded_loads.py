"""Loads of a map with the conditions that guard them: whole vectors may be loaded first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from ..._tvm.ir.structural import structural_map
from ...core.tir.expressions import call_name, loads, variables
from ...core.tir.loops import find
from ..gpu.launch import VECTOR_TYPES
from ..index.address import same
from .iteration_space import IterationSpace

_CHOSEN = "chosen"  # placeholder of a conditional load


@dataclass(frozen=True)
class GuardedLoad:
    """A load, and the condition under which it happens."""

    element: ir.TensorLoad
    condition: ir.Expr | None


def bytes_of(value: ir.Var | ir.TensorLoad) -> int:
    """Return the size of an element."""
    return DataType(str(value.ty.dtype)).itemsize


def has_vector_type(value: ir.Var | ir.TensorLoad) -> bool:
    """Whether CUDA loads and stores vectors of a type."""
    return str(value.ty.dtype) in VECTOR_TYPES


def guarded_loads(space: IterationSpace) -> list[GuardedLoad]:
    """List the different loads of types that have vectors, with their conditions.

    Loads under several different conditions are left out.
    """
    found: list[GuardedLoad] = []
    for store in space.stores:
        for element, condition in _conditional([store.value, *store.indices], None):
            is_known = any(same(element, known.element) for known in found)
            if not is_known and element.source not in space.registers and has_vector_type(element):
                found.append(GuardedLoad(element, condition))

    def times(element: ir.TensorLoad) -> int:
        return sum(same(element, other) for other in space.loads)

    return [read for read in found if read.condition is None or times(read.element) == 1]


def _conditional(
    exprs: Sequence[ir.Expr], condition: ir.Expr | None
) -> Iterator[tuple[ir.TensorLoad, ir.Expr | None]]:
    """Yield loads with their conditions, unconditional ones first.

    Not those whose indices depend on conditional loads.
    """
    later: list[tuple[ir.Expr, ir.Expr]] = []
    for expr in exprs:
        choices: list[ir.Call] = []

        def hide(call: ir.Call, choices: list[ir.Call] = choices) -> ir.Expr:
            if call_name(call) != "if_then_else" or not loads(call):
                return call
            choices.append(call)
            return tirx.Var(_CHOSEN, str(call.ty.dtype))

        visible = structural_map(expr, (ir.Call, hide), order="pre")
        for x in find(visible, ir.TensorLoad):
            if not any(v.name == _CHOSEN for i in x.indices for v in variables(i)):
                yield x, condition
        for call in choices:
            later.append((call.args[0], condition))
            for holds, branch in (
                (call.args[0], call.args[1]),
                (tirx.Not(call.args[0]), call.args[2]),
            ):
                both = holds if condition is None else tirx.And(condition, holds)
                later.append((branch, both))
    for branch, both in later:
        yield from _conditional([branch], both)
