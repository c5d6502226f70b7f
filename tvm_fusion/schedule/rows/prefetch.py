"""Asking memory for a row while the processor computes another one.

The first walk over a row waits for memory, the walks that follow compute on what the cache holds
while memory rests, and the last one waits again, for the lines that it writes. Processors look
ahead within one stream only. So a walk that follows asks for what the first one will read of the
next row, and for the lines that the walk after it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, tirx

from ...core.loops import find, prefetch
from ..expressions import contains, row_major_offset, substitute, variables_of
from .emit import Pairs, bind, replace, static_volume, unflatten
from .passes import Pass, equal_domains
from .stages import RowStages, Stage, stride

LINE = 64  # bytes that memory hands over at once, at least
LONGEST = 64 * 1024  # bytes of a row, beyond which the next one drives out what is still needed
NEAREST = 1  # level of the cache that takes the line


@dataclass(frozen=True)
class Hint:
    """What a walk asks for: ``buffer[indices]``, in the axes of a stage of another walk.

    Attributes
    ----------
    stage : Stage
        Over equal axes as the walk that asks.
    buffer : Var
        Read or written.
    indices : tuple of Expr
        Where.
    is_write : bool
        Written in this row, rather than read in the next one.
    """

    stage: Stage
    buffer: ir.Var
    indices: tuple[ir.Expr, ...]
    is_write: bool

    def lines(self, size: int) -> range:
        """First elements of the lines that a vector of ``size`` elements touches."""
        step = LINE * 8 // DataType(str(self.buffer.dtype)).bits
        return range(0, size, step) if size >= step else range(0)

    def ask(self, pairs: Pairs) -> tirx.Stmt:
        """Ask for the line of an element, which need not exist."""
        indices = [replace(index, pairs, lambda load: load) for index in self.indices]
        return prefetch(tirx.BufferLoad(self.buffer, indices), NEAREST, self.is_write)


@dataclass(frozen=True)
class Ahead:
    """What one walk over a row asks for.

    Attributes
    ----------
    hints : sequence of Hint
        From :func:`plan_hints`.
    row, following : sequence of Expr
        Indices of the row and of the next one.
    """

    hints: Sequence[Hint]
    row: Sequence[ir.Expr]
    following: Sequence[ir.Expr]

    def ask(
        self, order: Sequence[int], split: int, outer: Sequence[ir.Expr], start: ir.Expr, size: int
    ) -> list[tirx.Stmt]:
        """Ask for ``size`` elements from ``start`` on along the axes from ``split`` on, fused."""
        stmts = []
        for hint in self.hints:
            stage = hint.stage
            axes = [stage.domain[i] for i in order]
            fixed = bind(stage.rows, list(self.row if hint.is_write else self.following))
            fixed += bind(axes[:split], list(outer))
            for line in hint.lines(size):
                inner = unflatten(start + line, axes[split:])
                stmts.append(hint.ask([*fixed, *bind(axes[split:], inner)]))
        return stmts


def plan_hints(program: RowStages, passes: Sequence[Pass]) -> list[list[Hint]]:
    """List what each walk asks for.

    Only elements side by side along a row, which a walk over equal axes asks for in its order, and
    no more than stay in a cache beside the row itself.
    """
    hints: list[list[Hint]] = [[] for _ in passes]
    seen: list[Hint] = []
    for number, one in enumerate(passes):
        after = next((n for n in range(number + 1, len(passes)) if _alike(one, passes[n])), None)
        before = next((n for n in range(number - 1, -1, -1) if _alike(one, passes[n])), None)
        for stage in one.stages:
            reads = [(load.source, load.indices, False, after) for load in stage.loads]
            writes = [
                (target, indices, True, before)
                for target, indices in zip(stage.targets, stage.indices, strict=True)
                if stage.is_map
            ]
            for buffer, indices, is_write, place in reads + writes:
                hint = Hint(stage, buffer, tuple(indices), is_write)
                if program.is_internal(buffer) or not _is_along(hint) or _is_known(hint, seen):
                    continue
                seen.append(hint)
                if place is not None:
                    hints[place].append(hint)
    return hints


def _alike(one: Pass, other: Pass) -> bool:
    first, second = one.stages[0], other.stages[0]
    mixed = any(bool(s.inner and s.reduce) for s in (first, second))
    return bool(first.domain) and not mixed and equal_domains(first, second)


def _is_along(hint: Hint) -> bool:
    """Whether neighbouring elements of each row lie side by side, and not too many of them."""
    stage = hint.stage
    if not stage.domain or not stage.rows or any(find(i, ir.TensorLoad) for i in hint.indices):
        return False
    if static_volume(stage.domain, 1) * DataType(str(hint.buffer.dtype)).bits > 8 * LONGEST:
        return False
    mentioned = [v for index in hint.indices for v in variables_of(index)]
    steps = [stride(row_major_offset(hint.buffer, hint.indices), [axis]) for axis in stage.domain]
    return any(contains(mentioned, axis.var) for axis in stage.rows) and any(
        step is not None and isinstance(step[0], tirx.IntImm) and int(step[0]) == 1
        for step in steps
    )


def _is_known(hint: Hint, others: Sequence[Hint]) -> bool:
    """Whether some walk has read the same elements before."""
    for other in others:
        if not other.buffer.same_as(hint.buffer) or not equal_domains(other.stage, hint.stage):
            continue
        old, new = ((*s.rows, *s.domain) for s in (other.stage, hint.stage))
        pairs = [(o.var, n.var) for o, n in zip(old, new, strict=True)]
        if all(
            tvm_ffi.structural_equal(substitute(a, pairs), b)
            for a, b in zip(other.indices, hint.indices, strict=True)
        ):
            return True
    return False
