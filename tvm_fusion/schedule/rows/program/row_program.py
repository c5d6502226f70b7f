"""A program whose stages begin with rows, and whose reductions have a combiner.

A reduction's update is split into its terms and a combiner, which vector lanes, threads and warps
apply to partial results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from tvm import ir, sym

from ....program.program import Program
from ....program.stage import Axis, Stage
from .combiner import Combiner, split_update


@dataclass(frozen=True, eq=False)
class RowStage(Stage):
    """A stage of a row; the ``values`` of a reduction are its terms."""

    init: tuple[ir.Expr, ...] = ()  # a reduction's neutral elements; empty for a map
    row_rank: int = 0  # how many of the axes are rows, which come first
    combine: Combiner | None = None  # ``None`` for a map

    @classmethod
    def of(cls, stage: Stage, row_rank: int) -> RowStage:
        """Split a reduction into terms and a combiner.

        Raises
        ------
        ValueError
            Naming a reduction that cannot be split.
        """
        given = {f.name: getattr(stage, f.name) for f in fields(stage)} | {"row_rank": row_rank}
        if stage.init is None:
            return cls(**given | {"init": ()})
        terms, combine = split_update(stage.title, stage.targets, stage.values)
        return cls(**given | {"values": terms, "combine": combine})

    @classmethod
    def map_of(
        cls,
        target: ir.Var,
        rows: tuple[Axis, ...],
        inner: tuple[Axis, ...],
        indices: Sequence[ir.Expr],
        value: ir.Expr,
    ) -> RowStage:
        """Make a map that a kernel adds, ``target[indices] = value`` over rows and inner axes."""
        given = ((*rows, *inner), (), (target,), (tuple(indices),), (value,))
        return cls(target.name, *given, row_rank=len(rows))

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The axes that are rows."""
        return self.axes[: self.row_rank]

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The axes of results inside a row."""
        return self.axes[self.row_rank :]

    @property
    def loop_axes(self) -> tuple[Axis, ...]:
        """The axes inside a row."""
        return self.inner + self.reduce

    @property
    def is_map(self) -> bool:
        """Whether each element is written once."""
        return self.combine is None

    def written(self, target: ir.Var) -> tuple[ir.Expr, ...]:
        """Return the indices at which a target is written."""
        return next(i for t, i in zip(self.targets, self.indices, strict=True) if t.same_as(target))

    @cached_property
    def combine_in_order(self) -> Combiner | None:
        """Return the combiner for terms that a thread meets in the order of the axes."""
        axes = self.loop_axes
        is_index = len(axes) == 1 and self.values[0].same_as(axes[0].var)
        return self.combine.in_order if self.combine is not None and is_index else self.combine

    def with_values(self, values: Sequence[ir.Expr]) -> RowStage:
        """Return the stage with other values over the same axes."""
        return replace(self, values=tuple(values))


@dataclass(frozen=True, eq=False)
class RowProgram(Program):
    """A program of such stages, which both schedules transform and emit."""

    stages: tuple[RowStage, ...]

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The row axes as the first stage names them."""
        return self.stages[0].rows

    def is_internal(self, buffer: ir.Var) -> bool:
        """Whether a buffer is neither a parameter nor a result."""
        return buffer in self.internal

    def producer(self, buffer: ir.Var) -> RowStage:
        """Find the stage that writes an internal buffer."""
        return next(s for s in self.stages if buffer in s.targets)

    def with_stages(self, stages: Sequence[RowStage]) -> RowProgram:
        """Return the program with other stages that make the same results."""
        return replace(self, stages=tuple(stages))

    def map_values(self, change: Callable[[ir.Expr], ir.Expr]) -> RowProgram:
        """Return the program with every value changed."""
        return self.with_stages([s.with_values([change(v) for v in s.values]) for s in self.stages])


def row_program(program: Program) -> RowProgram:
    """Split the stages of a program.

    Raises
    ------
    ValueError
        Naming a reduction that cannot be split into terms and a combiner.
    """
    stages = tuple(RowStage.of(stage, program.row_rank) for stage in program.stages)
    given = {f.name: getattr(program, f.name) for f in fields(program)}
    return RowProgram(**given | {"stages": stages})


def stride(offset: ir.Expr, axes: Sequence[Axis]) -> list[ir.Expr] | None:
    """Return the step of an offset along each axis; ``None`` where that is not constant."""
    found = list(sym.detect_linear_equation(offset, [a.var for a in axes]))
    return found[: len(axes)] if found else None
