"""Write one slice of each of several tensors in place, in one launch (KV-cache updates).

GPU:  blocks of 256 threads for each slice, one slice's after the other's (see copies.py)
CPU:  a loop for each slice, one after the other
    vector i of slice s:  if 0 <= number[s] < extent[s]:
                              state[s][.., number[s], .., vector i] = values[s][.., vector i]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx
from tvm.target import Target

from ..._tvm.buffer import declare
from ...core.loops import Body, block, constant, coordinates, loop, product, sequence, when
from ...core.untouched import SCHEDULED
from ..cuda_graph.copies import in_blocks, side_by_side


@dataclass(frozen=True)
class Slice:
    """``state[..., number, ...] = values``, along one axis.

    Attributes
    ----------
    state, number, values : TensorType
        What is written to; one whole number, and the values, whose extents are the state's or 1.
    axis : int
        Of the state.
    counts_from_end : bool
        Whether a negative number counts from the end; otherwise it writes nothing, as all numbers
        do that the axis does not have.
    """

    state: relax.TensorType
    number: relax.TensorType
    values: relax.TensorType
    axis: int
    counts_from_end: bool

    @property
    def extents(self) -> list[ir.Expr]:
        """Of what is written: 1 along the axis."""
        extents = list(self.state.shape.values)
        extents[self.axis] = tirx.IntImm("int64", 1)
        return extents

    @property
    def width(self) -> int:
        """Contiguous elements that a thread writes."""
        last, given = (constant(ty.shape.values[-1]) for ty in (self.state, self.values))
        if last is None or last != given or self.axis == len(self.extents) - 1:
            return 1
        return side_by_side(last, str(self.state.dtype))


def write_slices(slices: Sequence[Slice], target: Target) -> tirx.PrimFunc:
    """Make the kernel.

    Returns
    -------
    PrimFunc
        Scheduled; over the states, then number and values of each.
    """
    states, numbers, values = (
        [_declare(getattr(s, name), f"{name}{i}") for i, s in enumerate(slices)]
        for name in ("state", "number", "values")
    )
    rows = [_row(*parts) for parts in zip(slices, states, numbers, values, strict=True)]
    counts = [product([*s.extents[:-1], tirx.floordiv(s.extents[-1], s.width)]) for s in slices]
    pieces = list(zip(counts, rows, strict=True))
    if "gpu" in target.keys:
        body = in_blocks(pieces)
    else:
        body = sequence([loop("vector", count, row) for count, row in pieces])
    params = [*states, *(p for pair in zip(numbers, values, strict=True) for p in pair)]
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
    return tirx.PrimFunc(params, block("root", body)).with_attrs(attrs)


def _declare(ty: relax.TensorType, name: str) -> ir.Var:
    return declare(ty.shape.values, ty.dtype, name)


def _row(one: Slice, state: ir.Var, number: ir.Var, values: ir.Var) -> Body:
    """Write one vector of a slice."""
    extent = one.state.shape.values[one.axis]
    place = tirx.Cast("int64", tirx.BufferLoad(number, [0] * len(number.shape)))
    if one.counts_from_end:
        place = tirx.Select(place < 0, place + extent, place)
    extents = one.extents
    extents[-1] = tirx.floordiv(extents[-1], one.width)

    def row(vector: ir.Expr) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            where = coordinates(vector, extents)
            where[-1] = where[-1] * one.width + lane
            read = where[len(where) - len(values.shape) :]
            read = [
                tirx.IntImm("int64", 0) if constant(e) == 1 else i
                for i, e in zip(read, values.shape, strict=True)
            ]
            where[one.axis] = place
            return tirx.BufferStore(state, tirx.BufferLoad(values, read), where)

        inside = tirx.And(place >= 0, place < extent)
        return when(inside, loop("lane", one.width, element, tirx.ForKind.VECTORIZED))

    return row
