"""Write slices of several tensors in place, in one launch: caches of keys, states of a model.

GPU:  blocks of 256 threads for each tensor, one tensor's after the other's (see copies.py)
CPU:  a loop for each tensor, one after the other
    vector i of tensor s:  p = number[s][i's place along the axis]
                           if 0 <= p < extent[s]:
                               state[s][.., p, .., vector i] = values[s][.., vector i]
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx
from tvm.target import Target

from ..._tvm.ir.buffer import declare
from ...core.tir.loops import Body, block, constant, coordinates, loop, product, sequence, when
from ...core.untouched import SCHEDULED
from ..cuda_graph.copies import in_blocks, side_by_side

_SLICES = "tvm_fusion.slices"  # of a kernel: what it writes


@dataclass(frozen=True)
class Slice:
    """``state[..., number[j], ...] = values[..., j, ...]`` along an axis, or ``state = values``."""

    # What is written to; the values, which are cast to its dtype, and whose extents are the state's
    # or 1, along the axis the count of numbers.
    state: relax.TensorType
    values: relax.TensorType
    # Whole numbers: one, of any shape, or an axis of them. Of a number that comes twice the last
    # values count on CPUs. Without, the whole state is written.
    number: relax.TensorType | None = None
    axis: int = 0  # of the state
    # Whether a negative number counts from the end; otherwise it writes nothing, as all numbers do
    # that the axis does not have.
    counts_from_end: bool = False

    @property
    def extents(self) -> list[ir.Expr]:
        """Of what is written: along the axis the count of numbers."""
        extents = list(self.state.shape.values)
        if self.number is not None:
            extents[self.axis] = product(self.number.shape.values)
        return extents

    @property
    def width(self) -> int:
        """Contiguous elements that a thread writes."""
        if not self.extents or not len(self.values.shape.values):
            return 1
        last, given = (constant(ty.shape.values[-1]) for ty in (self.state, self.values))
        is_along = self.number is not None and self.axis == len(self.extents) - 1
        if last is None or last != given or is_along:
            return 1
        return side_by_side(last, str(self.state.dtype))


def write_slices(slices: Sequence[Slice], target: Target) -> tirx.PrimFunc:
    """Make the kernel.

    Returns
    -------
    PrimFunc
        Scheduled; over the states, then of each its number, if there is one, and its values.
    """
    states, values = (
        [_declare(getattr(s, name), f"{name}{i}") for i, s in enumerate(slices)]
        for name in ("state", "values")
    )
    numbers = [
        None if s.number is None else _declare(s.number, f"number{i}") for i, s in enumerate(slices)
    ]
    rows = [_row(*parts) for parts in zip(slices, states, numbers, values, strict=True)]
    pieces = list(zip(map(_vectors, slices), rows, strict=True))
    if "gpu" in target.keys:
        body = in_blocks(pieces)
    else:
        body = sequence([loop("vector", count, row) for count, row in pieces])
    given = [p for pair in zip(numbers, values, strict=True) for p in pair if p is not None]
    written = [[s.number is not None, s.axis, s.counts_from_end] for s in slices]
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True, _SLICES: json.dumps(written)}
    return tirx.PrimFunc([*states, *given], block("root", body)).with_attrs(attrs)


def slices_of(func: tirx.PrimFunc) -> list[Slice]:
    """Read what a kernel of :func:`write_slices` writes; nothing of any other kernel."""
    if func.attrs is None or _SLICES not in func.attrs:
        return []
    written = json.loads(func.attrs[_SLICES])
    states, given = list(func.params[: len(written)]), iter(func.params[len(written) :])
    found = []
    for state, (has_number, axis, counts_from_end) in zip(states, written, strict=True):
        number = _type(next(given)) if has_number else None
        found.append(Slice(_type(state), _type(next(given)), number, axis, counts_from_end))
    return found


def _type(buffer: ir.Var) -> relax.TensorType:
    return relax.TensorType(buffer.ty.shape, str(buffer.ty.dtype))


def _vectors(one: Slice) -> ir.Expr:
    extents = one.extents
    return product([*extents[:-1], tirx.floordiv(extents[-1], one.width)] if extents else [])


def _declare(ty: relax.TensorType, name: str) -> ir.Var:
    return declare(ty.shape.values, ty.dtype, name)


def _row(one: Slice, state: ir.Var, number: ir.Var | None, values: ir.Var) -> Body:
    """Write one vector of a slice."""
    extents = one.extents
    if extents:
        extents[-1] = tirx.floordiv(extents[-1], one.width)

    def place_of(j: ir.Expr) -> ir.Expr:
        assert number is not None
        at = [0] * len(number.shape) if _is_one(number) else [j]
        place = tirx.Cast("int64", tirx.BufferLoad(number, at))
        if not one.counts_from_end:
            return place
        return tirx.Select(place < 0, place + one.state.shape.values[one.axis], place)

    def row(vector: ir.Expr) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            where = coordinates(vector, extents)
            if where:
                where[-1] = where[-1] * one.width + lane
            read = where[len(where) - len(values.shape) :]
            read = [
                tirx.IntImm("int64", 0) if constant(e) == 1 else i
                for i, e in zip(read, values.shape, strict=True)
            ]
            if number is not None:
                where[one.axis] = place_of(where[one.axis])
            value = tirx.BufferLoad(values, read)
            if str(one.state.dtype) != str(one.values.dtype):
                value = tirx.Cast(str(one.state.dtype), value)
            return tirx.BufferStore(state, value, where)

        written = loop("lane", one.width, element, tirx.ForKind.VECTORIZED)
        if number is None:
            return written
        place = place_of(coordinates(vector, extents)[one.axis])
        inside = tirx.And(place >= 0, place < one.state.shape.values[one.axis])
        return when(inside, written)

    return row


def _is_one(number: ir.Var) -> bool:
    return all(constant(extent) == 1 for extent in number.shape)
