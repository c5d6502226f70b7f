"""A program as rows: each stage's axes split into rows, inner axes and reduction axes.

A reduction's update is split into its terms and a combiner, which vector lanes, threads and warps
apply to partial results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm import ir, sym

from ...core.expressions import loads
from ...program.program import Program
from ...program.stage import Axis, Stage
from .combiner import Combiner, split_update


@dataclass(frozen=True, eq=False)
class RowStage:
    """``targets[indices] = values`` for all rows and inner axes, or a reduction of ``values``.

    Attributes
    ----------
    name : str
        The stage's.
    rows, inner, reduce : tuple of Axis
        The axes.
    targets : tuple of Var
        Buffers that are written; several in a reduction of tuples.
    indices : tuple of tuple of Expr
        Where in each target.
    values : tuple of Expr
        A map's results; a reduction's terms.
    init : tuple of Expr
        A reduction's neutral elements; empty for a map.
    combine : Combiner or None
        ``None`` for a map.
    operator : str
        Title of the operator that it is part of; empty for what a kernel adds.
    """

    name: str
    rows: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    targets: tuple[ir.Var, ...]
    indices: tuple[tuple[ir.Expr, ...], ...]
    values: tuple[ir.Expr, ...]
    init: tuple[ir.Expr, ...] = ()
    combine: Combiner | None = None
    operator: str = ""

    @property
    def title(self) -> str:
        """What a user may find it by: its operator's title, or else its own name."""
        return self.operator or self.name

    @property
    def loop_axes(self) -> tuple[Axis, ...]:
        """The axes inside a row."""
        return self.inner + self.reduce

    @property
    def is_map(self) -> bool:
        """Whether each element is written once."""
        return self.combine is None

    @cached_property
    def loads(self) -> list[ir.TensorLoad]:
        """Every load of the values."""
        return [load for value in self.values for load in loads(value)]

    def written(self, target: ir.Var) -> tuple[ir.Expr, ...]:
        """Give the indices at which a target is written."""
        return next(i for t, i in zip(self.targets, self.indices, strict=True) if t.same_as(target))

    @cached_property
    def combine_in_order(self) -> Combiner | None:
        """Give the combiner for terms that a thread meets in the order of the axes."""
        axes = self.loop_axes
        is_index = len(axes) == 1 and self.values[0].same_as(axes[0].var)
        return self.combine.in_order if self.combine is not None and is_index else self.combine

    def with_values(self, values: Sequence[ir.Expr]) -> RowStage:
        """Return the stage with other values over the same axes."""
        return replace(self, values=tuple(values))


@dataclass(frozen=True, eq=False)
class RowProgram:
    """The stages of a row, which both schedules transform and emit.

    Attributes
    ----------
    stages : tuple of RowStage
        In order of execution.
    internal : tuple of Var
        Buffers that exist only inside, each indexed by its row first.
    """

    stages: tuple[RowStage, ...]
    internal: tuple[ir.Var, ...]

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

    def map_values(self, change: Callable[[ir.Expr], ir.Expr]) -> RowProgram:
        """Return the program with every value changed."""
        stages = tuple(s.with_values([change(v) for v in s.values]) for s in self.stages)
        return replace(self, stages=stages)


def row_program(program: Program) -> RowProgram:
    """Split the stages of a program.

    Raises
    ------
    ValueError
        Naming a reduction that cannot be split into terms and a combiner.
    """
    stages = tuple(_stage(stage, program.rows) for stage in program.stages)
    return RowProgram(stages, program.internal)


def _stage(stage: Stage, rows: int) -> RowStage:
    values, combine = stage.values, None
    if stage.init is not None:
        values, combine = split_update(stage.title, stage.targets, values)
    return RowStage(
        stage.name,
        stage.axes[:rows],
        stage.axes[rows:],
        stage.reduce,
        stage.targets,
        stage.indices,
        values,
        stage.init or (),
        combine,
        stage.operator,
    )


def stride(offset: ir.Expr, axes: Sequence[Axis]) -> list[ir.Expr] | None:
    """Give the step of an offset along each axis; ``None`` where that is not constant."""
    found = list(sym.detect_linear_equation(offset, [a.var for a in axes]))
    return found[: len(axes)] if found else None
