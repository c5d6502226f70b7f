"""Convert loops: unrolled where they are short, otherwise as functions (:mod:`.recursion`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from ..tensor_types import static
from .lifted import extents_of

op = relax.op
# Trips times nodes of the body up to which a loop is unrolled: kernels then fuse across trips, and
# compiling takes as long as for a model of so many nodes.
UNROLLED = 256
# Trips of a loop that only its condition ends.
ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class Slices:
    """An output made of one slice a trip: along which axis, and whether the first comes last."""

    name: str
    axis: int = 0
    is_reversed: bool = False


@dataclass
class Loop:
    """A loop over a graph.

    Attributes
    ----------
    name
        Of the functions that it becomes.
    trips : int or tvm.ir.Expr
        Most trips.
    condition : tvm.relax.Expr
        Whether the first trip is made.
    states
        What the first trip is given.
    state_names
        For sentences and symbols.
    step
        From the number of the trip, the condition, the states, and the values around the graph by
        name (None for those of the importer) to the next condition, states, and a slice for each
        output.
    reads
        Names of those values.
    outputs
        What is made of slices.
    size
        Nodes of the body.
    is_conditional
        Whether the condition may end the loop.
    """

    name: str
    trips: Any
    condition: Any
    states: list[Any]
    state_names: Sequence[str]
    step: Callable[[Any, Any, list[Any], Any], tuple[Any, list[Any], list[Any]]]
    reads: Sequence[str]
    outputs: Sequence[Slices]
    size: int
    is_conditional: bool = False


def unrolled(importer: Any, loop: Loop) -> list[Any] | None:
    """Emit every trip of a short loop; returns the last states, then the outputs made of slices.

    None where the loop is too long, or where its length is known only at run time.
    """
    trips = static(loop.trips)
    if _constant(loop.condition) is False:
        trips = 0
    if trips is None or max(trips, 0) * loop.size * importer.copies > UNROLLED:
        return None
    if loop.is_conditional and not _stays_constant(importer, loop, trips):
        return None
    return _unrolled(importer, loop, trips)


def _unrolled(importer: Any, loop: Loop, trips: int) -> list[Any]:
    condition, states = loop.condition, list(loop.states)
    slices: list[list[Any]] = [[] for _ in loop.outputs]
    before, importer.copies = importer.copies, importer.copies * max(trips, 1)
    for trip in range(trips):
        condition, states, made = loop.step(trip, condition, states, None)
        for found, value in zip(slices, made, strict=True):
            found.append(importer.as_tensor(value))
        if _constant(condition) is False:
            break
    importer.copies = before
    if not all(slices):  # the slices' type is known from a trip that is not made
        slices = [[] for _ in loop.outputs]
        empty = _discarded(importer, lambda: loop.step(0, loop.condition, list(loop.states), None))
        types = [importer.bb.normalize(importer.as_tensor(v)).ty for v in empty[2]]
        return [*states, *(_no_slices(s, t) for s, t in zip(loop.outputs, types, strict=True))]
    return [*states, *map(_stacked, loop.outputs, slices)]


def _stacked(output: Slices, slices: list[Any]) -> Any:
    slices = slices[::-1] if output.is_reversed else slices
    return op.concat([op.expand_dims(value, output.axis) for value in slices], axis=output.axis)


def _no_slices(output: Slices, ty: Any) -> Any:
    extents = list(extents_of(ty))
    extents.insert(output.axis % (ty.ndim + 1), 0)
    return op.zeros(relax.ShapeExpr(extents), str(ty.dtype.dtype))


def _stays_constant(importer: Any, loop: Loop, trips: int) -> bool:
    """Tell whether the condition of every trip folds to a constant; what this emits is dropped."""

    def run() -> bool:
        condition, states = loop.condition, list(loop.states)
        for trip in range(trips):
            if _constant(condition) is None:
                return False
            if _constant(condition) is False:
                return True
            condition, states, _ = loop.step(trip, condition, states, None)
        return True

    return bool(_discarded(importer, run))


def _discarded(importer: Any, run: Callable[[], Any]) -> Any:
    importer.bb._begin_binding_block()
    result = run()
    importer.bb._end_block()
    return result


def _constant(condition: Any) -> bool | None:
    """Return a condition that is a constant."""
    return bool(condition.value.numpy().all()) if isinstance(condition, GenericConst) else None


def take_slice(bb: Any, value: Any, axis: int, at: Any) -> Any:
    """Take one slice of a tensor, at a number or an expression."""
    part = op.strided_slice(value, [axis], [at], [at + 1], assume_inbound=True)
    return bb.emit(op.squeeze(bb.emit(part), [axis]))
