"""Stages: maps and reductions over explicit axes, the statements of a program."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx
from tvm.tirx import Buffer

from ..core.tir.expressions import loads, substitute


class Unstructured(Exception):
    """What a group computes cannot be told as maps and reductions; the message says why."""


@dataclass(frozen=True, eq=False)
class Axis:
    """One iterator of a stage, from 0 to ``extent``."""

    var: ir.Var  # its variable (int64), unique to the stage
    extent: ir.Expr  # the number of iterations, possibly symbolic

    @property
    def size(self) -> int | None:
        """The extent as a number; ``None`` where symbolic."""
        return int(self.extent) if isinstance(self.extent, tirx.IntImm) else None


@dataclass(frozen=True, eq=False)
class Solution:
    """A write index solved for the axes."""

    # A variable for each dimension of the target, or 0 where its extent is 1.
    dims: tuple[ir.Expr, ...]
    axes: tuple[ir.Expr, ...]  # each axis in terms of them


@dataclass(frozen=True, eq=False)
class Stage:
    """``targets[k][indices[k]] = values[k]`` over all axes."""

    name: str  # unique within the program, for a reader
    axes: tuple[Axis, ...]  # data-parallel axes, rows first
    reduce: tuple[Axis, ...]  # reduction axes; empty for a map
    # What is written; several for a tuple reduction such as argmax, one otherwise.
    targets: tuple[Buffer, ...]
    # Where each target is written, in terms of ``axes``; no two points write the same element.
    indices: tuple[tuple[ir.Expr, ...], ...]
    # What is written: expressions over loads of inputs and of earlier stages' targets. For a
    # reduction the whole update, with loads of its own targets at the write index, such as
    # ``max(T[i], x[i, k])``.
    values: tuple[ir.Expr, ...]
    init: tuple[ir.Expr, ...] | None  # the initial values of a reduction; ``None`` for a map
    # Of a map whose write index is not its axes in some order: which point writes an element.
    solution: Solution | None = None
    # Title of the operator that it is part of; empty for a stage that a template adds.
    operator: str = ""

    @property
    def title(self) -> str:
        """What a user may find it by: its operator's title, or else its own name."""
        return self.operator or self.name

    def at(self, indices: Sequence[ir.Expr]) -> ir.Expr:
        """Express what a map writes to the element at ``indices`` of its target."""
        dims: Sequence[ir.Expr] = self.indices[0]
        axes: Sequence[ir.Expr] = [a.var for a in self.axes]
        if self.solution is not None:
            dims, axes = self.solution.dims, self.solution.axes
        given = {d: i for d, i in zip(dims, indices, strict=True) if isinstance(d, ir.Var)}
        point = {a.var: substitute(e, given) for a, e in zip(self.axes, axes, strict=True)}
        return substitute(self.values[0], point)

    @property
    def is_map(self) -> bool:
        """Whether each point writes its element once."""
        return self.init is None

    @cached_property
    def loads(self) -> tuple[ir.TensorLoad, ...]:
        """Loads of inputs and of other stages' targets, repeated ones and those in indices too."""
        found = (x for value in self.values for x in loads(value))
        return tuple(x for x in found if not any(x.source.same_as(t) for t in self.targets))

    @cached_property
    def reads(self) -> frozenset[Buffer]:
        """Buffers that are loaded."""
        return frozenset(x.source for x in self.loads)
