"""What one store reads, expressed by the index of the element that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from ...core.tir.loops import substitute
from .inverse import is_int
from .loads import Load, Unreadable, has_load, variables_of
from .scope import Scope


@dataclass(frozen=True)
class Read:
    """An element read for the output element at `Accesses.dims`."""

    indices: tuple[ir.Expr, ...]  # element read, as expressions over the output's `dims` and `free`
    conditions: tuple[ir.Expr, ...]  # it is read only where all of these hold
    # Iterators that do not occur in the written index, with their ranges: the output element reads
    # this element for every value of them (reductions).
    free: Mapping[ir.Var, ir.Range]
    data_dependent: bool  # whether the values of some tensor decide which element is read

    def at(self, dims: Sequence[ir.Var], reader: Read) -> Read:
        """Compose: this read, of the element of an intermediate that `reader` reads."""
        place = dict(zip(dims, reader.indices, strict=True))
        return Read(
            tuple(substitute(index, place) for index in self.indices),
            (*reader.conditions, *(substitute(c, place) for c in self.conditions)),
            {**reader.free, **self.free},
            self.data_dependent or reader.data_dependent,
        )


class Place:
    """The element that a store writes, in terms of the iterators around the store."""

    def __init__(self, scope: Scope, indices: list[ir.Expr], value: ir.Expr) -> None:
        self._exprs = [value, *scope.conditions]
        self._iterators = scope.visible_in([*indices, *self._exprs])
        self.ranges = {var: iterator.range for var, iterator in self._iterators.items()}
        self._fixed = {var: r.min for var, r in self.ranges.items() if is_int(r.extent, 1)}
        self.indices = self._simplify(indices)

    def is_at(self, load: Load) -> bool:
        """Whether `load` reads the element that the store writes."""
        return tvm_ffi.structural_equal(self._simplify(load.indices), self.indices)

    def check_written_once(self, target: ir.Var, solution: Mapping[ir.Var, ir.Expr]) -> None:
        """Refuse a store that overwrites what an earlier iteration stored."""
        for var in variables_of(*self._exprs):
            iterator = self._iterators.get(var)
            if iterator and not iterator.is_reduction and var not in {*solution, *self._fixed}:
                raise Unreadable(f"overwrites elements of {target.name} in the loop {var.name}")

    def read(
        self,
        load: Load,
        solution: Mapping[ir.Var, ir.Expr],
        written: Sequence[ir.Expr],
    ) -> Read:
        """Express `load` by the element that the store writes."""
        # As they stand: simplified one by one, the indices of a reshape may lose what they share.
        indices = [substitute(index, self._fixed) for index in load.indices]
        conditions = [substitute(condition, self._fixed) for condition in load.conditions]
        free = {
            var: self.ranges[var]
            for var in variables_of(*indices, *conditions)
            if var in self.ranges and var not in solution
        }
        return Read(
            tuple(substitute(index, solution) for index in indices),
            (*written, *(substitute(condition, solution) for condition in conditions)),
            free,
            any(has_load(index) for index in indices),
        )

    def _simplify(self, exprs: Iterable[ir.Expr]) -> list[ir.Expr]:
        exprs = [substitute(expr, self._fixed) for expr in exprs]
        if all(isinstance(expr, (ir.Var, tirx.IntImm)) for expr in exprs):
            return exprs
        analyzer = sym.Analyzer()
        for var, range_ in self.ranges.items():
            analyzer.bind(var, range_)
        return [analyzer.simplify(expr) for expr in exprs]
