"""Iteration spaces: stores over the same axes, which share a loop nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from tvm import ir, tirx

from ...core.tir.expressions import load, loads
from ...core.tir.loops import block, constant, index, local, product, sequence, substitute
from ...program.stage import Axis
from ..index.address import offset, same, stride

TILED_STRIDE = 16  # elements: loads with a longer stride use a fraction of a cache line
_NO_FILES: Mapping[ir.Var, ir.Var] = MappingProxyType({})


@dataclass(frozen=True)
class Store:
    """``buffer[indices] = value``."""

    buffer: ir.Var
    indices: tuple[ir.Expr, ...]
    value: ir.Expr

    def moved(self, places: Mapping[ir.Var, ir.Expr]) -> Store:
        """Substitute expressions for axes."""
        where = tuple(substitute(i, places) for i in self.indices)
        return Store(self.buffer, where, substitute(self.value, places))

    def reading(self, loaded: Sequence[tuple[ir.TensorLoad, ir.Expr]]) -> Store:
        """Redirect the loads of the value to what holds them already."""

        def swap(found: ir.TensorLoad) -> ir.Expr:
            return next((where for x, where in loaded if same(found, x)), found)

        return replace(self, value=substitute(self.value, {}, swap))

    def at(
        self,
        places: Mapping[ir.Var, ir.Expr],
        files: Mapping[ir.Var, ir.Var] = _NO_FILES,
        lane: ir.Expr | None = None,
    ) -> tirx.BufferStore:
        """Write the statement for one point.

        Parameters
        ----------
        files
            Registers, one element for each lane, instead of buffers.
        lane
            Element of the registers; the first when omitted.
        """
        slot = [index(0) if lane is None else lane]

        def swap(found: ir.TensorLoad) -> ir.Expr:
            file = files.get(found.source)
            return found if file is None else load(file, slot)

        value = substitute(substitute(self.value, {}, swap) if files else self.value, places)
        if self.buffer in files:
            return tirx.BufferStore(files[self.buffer], value, slot)
        return tirx.BufferStore(self.buffer, value, [substitute(i, places) for i in self.indices])


@dataclass(frozen=True)
class IterationSpace:
    """Stores over the same axes; along the last axis the first output is contiguous."""

    axes: tuple[Axis, ...]  # none has extent 1; no two neighbours are contiguous as one
    stores: tuple[Store, ...]  # in order
    # Stored buffers that are read at the same point only, so they live in registers.
    registers: frozenset[ir.Var]

    @cached_property
    def outputs(self) -> tuple[Store, ...]:
        """Stores to memory."""
        return tuple(s for s in self.stores if s.buffer not in self.registers)

    def files(self, lanes: int) -> dict[ir.Var, ir.Var]:
        """Declare the registers of some lanes."""
        kept = [s.buffer for s in self.stores if s.buffer in self.registers]
        return {b: local(f"{b.name}_register", [lanes], str(b.ty.dtype)) for b in kept}

    def point(self, place: Sequence[ir.Expr]) -> tirx.Stmt:
        """Compute one point."""
        places = dict(zip(self.variables, place, strict=True))
        files = self.files(1)
        body = sequence([store.at(places, files) for store in self.stores])
        return block("point", body, list(files.values())) if files else body

    @cached_property
    def variables(self) -> list[ir.Var]:
        """The axes' variables."""
        return [axis.var for axis in self.axes]

    @cached_property
    def points(self) -> ir.Expr:
        """Number of iterations."""
        return product([axis.extent for axis in self.axes])

    @cached_property
    def loads(self) -> list[ir.TensorLoad]:
        """List every load from memory, those in indices of other loads included."""
        exprs = [e for s in self.stores for e in (s.value, *s.indices)]
        found = [x for e in exprs for x in loads(e)]
        return [x for x in found if x.source not in self.registers]

    def steps(self, axis: ir.Var) -> list[ir.Expr | None]:
        """Return the stride along an axis of every access."""
        return [stride(place, axis, self.variables) for place in self._places]

    @cached_property
    def _places(self) -> list[ir.Expr]:
        """Position of every access, outputs first."""
        places = [offset(s.buffer, s.indices) for s in self.outputs]
        return places + [offset(x.source, x.indices) for x in self.loads]

    def transposed_axis(self, least: int = TILED_STRIDE) -> int | None:
        """Return the axis along which a load is contiguous that is strided along the last axis.

        By ``least`` elements, or by a symbolic stride.
        """
        if len(self.axes) < 2:
            return None
        last = self.variables[-1]
        for place in self._places[len(self.outputs) :]:
            step = stride(place, last, self.variables)
            if step is None or ((size := constant(step)) is not None and abs(size) < least):
                continue
            for number, axis in enumerate(self.axes[:-1]):
                if _is_one(stride(place, axis.var, self.variables)):
                    return number
        return None


def _is_one(step: ir.Expr | None) -> bool:
    return step is not None and constant(step) == 1
