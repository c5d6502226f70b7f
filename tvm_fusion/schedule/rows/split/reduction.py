"""A row program as two: parts of each row are reduced, then every part combines them and is mapped.

first    rows n, part     s[n, part] = sum v[chunk]                        one workspace each
                          q[n, part] = sum (v[chunk] - s[n, part] / m)^2   m: elements of a chunk
second   rows n, part     sum[n, part] = sum over p of s[n, p]
                          squares[n, part] = sum over p of q[n, p] + m (s[n, p] / m - sum / size)^2
                          out[chunk] = f(v[chunk], sum, squares)

The sums of squares are joined as in Chan, Golub and LeVeque, "Algorithms for computing the sample
variance" (1983): about the mean of each part, so that nothing cancels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import map_loads, substitute
from ....core.tir.loops import index
from ....program.stage import Axis
from ..gpu.reductions.split_form import outer_extents, sums_then_maps
from ..program.emit import flatten
from ..program.row_program import RowProgram, RowStage


@dataclass(frozen=True, eq=False)
class SplitReduction:
    """The two row programs."""

    # What is launched, in order. Rows of both are parts of rows.
    first: RowProgram
    second: RowProgram
    # Workspaces in float32, ``(*rows, parts)``: results of the first, inputs of the second.
    partial: tuple[ir.Var, ...]


def split_reduction(program: RowProgram, most: int) -> SplitReduction | None:
    """Split the rows of a program.

    Parameters
    ----------
    program
        Sums over whole rows, of what inputs give or of squared deviations from the mean of another
        of these sums, then maps over the same axes.
    most
        Parts of a row, at most.

    Returns
    -------
    SplitReduction or None
        ``None`` where the program has another form, or no axis can be split.
    """
    found = sums_then_maps(program)
    if found is None:
        return None
    program, about = found
    axes = next(iter(about)).reduce
    outer = outer_extents([axis.size or 1 for axis in axes], most)
    if math.prod(outer) == 1:
        return None
    return _Split(program, about, outer).programs()


class _Split:
    """Writes both programs.

    Parameters
    ----------
    about
        The sums; of those of squared deviations, the sum whose mean they are about.
    outer
        Parts along each axis of a row.
    """

    def __init__(
        self, program: RowProgram, about: dict[RowStage, RowStage | None], outer: list[int]
    ) -> None:
        self._program, self._about, self._outer = program, about, outer
        self._size = math.prod(axis.size or 1 for axis in next(iter(about)).reduce)
        self._parts = math.prod(outer)
        self._extents = [index(axis.size or 1) for axis in program.rows]
        self._partial = {s: self._declared(s, "partial", [self._parts]) for s in about}

    def programs(self) -> SplitReduction:
        """Write them."""
        return SplitReduction(self._first(), self._second(), tuple(self._partial.values()))

    def _first(self) -> RowProgram:
        sums: list[RowStage] = []
        results: list[RowStage] = []
        own: dict[RowStage, ir.Var] = {}
        for stage, total in self._about.items():
            new, places = self._of_part(stage)
            target = self._declared(stage, "part", self._wide)
            value = substitute(stage.values[0], places)
            if total is not None:
                mean = tirx.BufferLoad(own[total], _vars(new.rows)) * self._share(self._parts)
                deviation = substitute(stage.values[0].a.a, places) - mean
                value = deviation * deviation
            own[stage] = target
            sums.append(self._sum(new, target, value))
            rows = self._rows(stage)
            where = (*_vars(rows[: len(stage.rows)]), self._part(rows))
            load = tirx.BufferLoad(target, _vars(rows))
            result = RowStage.map_of(self._partial[stage], rows, (), where, load)
            results.append(replace(result, operator=stage.operator))
        return self._program_of((*sums, *results), outputs=tuple(self._partial.values()))

    def _second(self) -> RowProgram:
        totals: list[RowStage] = []
        own: dict[ir.Var, ir.Var] = {}
        for stage, total in self._about.items():
            rows, part = self._rows(stage), Axis(tirx.Var("p", "int64"), index(self._parts))
            where = [*_vars(rows[: len(stage.rows)]), part.var]
            value: ir.Expr = tirx.BufferLoad(self._partial[stage], where)
            if total is not None:
                mean = tirx.BufferLoad(own[total.targets[0]], _vars(rows)) * self._share(1)
                near = tirx.BufferLoad(self._partial[total], where) * self._share(self._parts)
                part_size = tirx.const(self._size // self._parts, "float32")
                value = value + part_size * (near - mean) * (near - mean)
            target = self._declared(stage, "total", self._wide)
            own[stage.targets[0]] = target
            new = replace(stage, axes=rows, row_rank=len(rows), reduce=(part,))
            totals.append(self._sum(new, target, value))
        maps = []
        for stage in self._program.stages:
            if not stage.is_map:
                continue
            new, places = self._of_part(stage)

            def read(load: ir.TensorLoad, rows: Sequence[Axis] = new.rows) -> ir.Expr:
                target = own.get(load.source)
                return load if target is None else tirx.BufferLoad(target, _vars(rows))

            values = [map_loads(substitute(v, places), read) for v in stage.values]
            indices = tuple(tuple(substitute(i, places) for i in w) for w in stage.indices)
            maps.append(replace(new, values=tuple(values), indices=indices))
        inputs = (*self._program.inputs, *self._partial.values())
        return self._program_of((*totals, *maps), inputs=inputs)

    def _program_of(self, stages: tuple[RowStage, ...], **changes: Any) -> RowProgram:
        return replace(self._program, stages=stages, row_rank=stages[0].row_rank, **changes)

    @property
    def _wide(self) -> list[int]:
        """Extents of the axes of parts."""
        return [parts for parts in self._outer if parts > 1]

    def _share(self, parts: int) -> ir.Expr:
        """Return the reciprocal of the number of elements of a part."""
        return tirx.const(parts / self._size, "float32")

    def _declared(self, stage: RowStage, part: str, extents: Sequence[int]) -> ir.Var:
        shape = [*self._extents, *map(index, extents)]
        return declare(shape, "float32", f"{stage.targets[0].name}_{part}")

    def _sum(self, stage: RowStage, target: ir.Var, value: ir.Expr) -> RowStage:
        where = (tuple(_vars(stage.rows)),)
        return replace(stage, name=target.name, targets=(target,), indices=where, values=(value,))

    def _rows(self, stage: RowStage) -> tuple[Axis, ...]:
        """Make the axes of rows and parts."""
        rows = [Axis(tirx.Var(a.var.name, "int64"), a.extent) for a in stage.rows]
        return (*rows, *(Axis(tirx.Var("part", "int64"), index(x)) for x in self._wide))

    def _part(self, rows: Sequence[Axis]) -> ir.Expr:
        parts = rows[self._program.row_rank :]
        return flatten(_vars(parts), [axis.extent for axis in parts])

    def _of_part(self, stage: RowStage) -> tuple[RowStage, dict[ir.Var, ir.Expr]]:
        """Return a stage over one part, and the old axes in terms of the new ones."""
        rows = self._rows(stage)
        places: dict[ir.Var, ir.Expr] = dict(
            zip([axis.var for axis in stage.rows], _vars(rows), strict=False)
        )
        parts = iter(rows[len(stage.rows) :])
        inner = []
        for axis, outer in zip(stage.loop_axes, self._outer, strict=True):
            size = (axis.size or 1) // outer
            own = Axis(tirx.Var(axis.var.name, "int64"), index(size))
            inner.append(own)
            first: ir.Expr = index(0) if outer == 1 else next(parts).var * index(size)
            places[axis.var] = first + own.var if outer > 1 else own.var
        kept = tuple(inner)
        axes, reduce = ((*rows, *kept), ()) if stage.inner else (rows, kept)
        return replace(stage, axes=axes, reduce=reduce, row_rank=len(rows)), places


def _vars(axes: Sequence[Axis]) -> list[ir.Expr]:
    return [axis.var for axis in axes]
