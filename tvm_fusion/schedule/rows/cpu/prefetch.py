"""Software prefetch of the next row while a CPU computes another pass.

The first pass over a row waits for memory, the passes that follow compute on what the cache holds
while memory is idle, and the last one waits again, for the lines that it writes. Hardware
prefetchers look ahead within one stream only. So a later pass prefetches what the first one will
read of the next row, and the lines that the pass after it writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, tirx

from ....core.tir.expressions import substitute, variables
from ....core.tir.loops import find, prefetch
from ...index.address import offset
from ..program.emit import Pairs, bind, replace, static_volume, unflatten
from ..program.passes import Pass, equal_loops
from ..program.row_program import RowProgram, RowStage, stride

LINE_BYTES = 64  # bytes of a cache line
MAX_ROW_BYTES = 64 * 1024  # longer rows would evict each other
CACHE_LEVEL = 1  # the nearest cache


@dataclass(frozen=True)
class PrefetchHint:
    """What a pass prefetches: ``buffer[indices]``, in the axes of a stage of another pass."""

    stage: RowStage  # over axes of the same extents as the pass that prefetches
    buffer: ir.Var  # read or written
    indices: tuple[ir.Expr, ...]  # where
    is_write: bool  # written in this row, rather than read in the next one

    def lines(self, size: int) -> range:
        """List the first elements of the lines that a vector of ``size`` elements touches."""
        step = LINE_BYTES * 8 // DataType(str(self.buffer.dtype)).bits
        return range(0, size, step) if size >= step else range(0)

    def issue(self, pairs: Pairs) -> tirx.Stmt:
        """Prefetch the line of an element, which need not exist."""
        indices = [replace(index, pairs) for index in self.indices]
        return prefetch(tirx.BufferLoad(self.buffer, indices), CACHE_LEVEL, self.is_write)


@dataclass(frozen=True)
class Prefetch:
    """What one pass over a row prefetches."""

    hints: Sequence[PrefetchHint]  # from :func:`plan_hints`
    # Indices of the row and of the next one.
    row: Sequence[ir.Expr]
    following: Sequence[ir.Expr]

    def issue(
        self, order: Sequence[int], split: int, outer: Sequence[ir.Expr], start: ir.Expr, size: int
    ) -> list[tirx.Stmt]:
        """Prefetch ``size`` elements from ``start`` on along the axes from ``split`` on, fused."""
        stmts = []
        for hint in self.hints:
            stage = hint.stage
            axes = [stage.loop_axes[i] for i in order]
            fixed = bind(stage.rows, list(self.row if hint.is_write else self.following))
            fixed += bind(axes[:split], list(outer))
            for line in hint.lines(size):
                inner = unflatten(start + line, axes[split:])
                stmts.append(hint.issue([*fixed, *bind(axes[split:], inner)]))
        return stmts


def plan_hints(program: RowProgram, passes: Sequence[Pass]) -> list[list[PrefetchHint]]:
    """List what each pass prefetches.

    Only contiguous elements of a row, prefetched in order by a pass over axes of the same extents,
    and no more than fit a cache with the row itself.
    """
    hints: list[list[PrefetchHint]] = [[] for _ in passes]
    seen: list[PrefetchHint] = []
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
                hint = PrefetchHint(stage, buffer, tuple(indices), is_write)
                if program.is_internal(buffer) or not _is_along(hint) or _is_known(hint, seen):
                    continue
                seen.append(hint)
                if place is not None:
                    hints[place].append(hint)
    return hints


def _alike(one: Pass, other: Pass) -> bool:
    first, second = one.stages[0], other.stages[0]
    mixed = any(bool(s.inner and s.reduce) for s in (first, second))
    return bool(first.loop_axes) and not mixed and equal_loops(first, second)


def _is_along(hint: PrefetchHint) -> bool:
    """Whether the elements of each row are contiguous, and not too many."""
    stage = hint.stage
    if not stage.loop_axes or not stage.rows or any(find(i, ir.TensorLoad) for i in hint.indices):
        return False
    if (
        static_volume(stage.loop_axes, 1) * DataType(str(hint.buffer.dtype)).bits
        > 8 * MAX_ROW_BYTES
    ):
        return False
    mentioned = [v for index in hint.indices for v in variables(index)]
    steps = [stride(offset(hint.buffer, hint.indices), [axis]) for axis in stage.loop_axes]
    return any(axis.var in mentioned for axis in stage.rows) and any(
        step is not None and isinstance(step[0], tirx.IntImm) and int(step[0]) == 1
        for step in steps
    )


def _is_known(hint: PrefetchHint, others: Sequence[PrefetchHint]) -> bool:
    """Whether an earlier pass reads the same elements."""
    for other in others:
        if not other.buffer.same_as(hint.buffer) or not equal_loops(other.stage, hint.stage):
            continue
        old, new = ((*s.rows, *s.loop_axes) for s in (other.stage, hint.stage))
        pairs = {o.var: n.var for o, n in zip(old, new, strict=True)}
        if all(
            tvm_ffi.structural_equal(substitute(a, pairs), b)
            for a, b in zip(other.indices, hint.indices, strict=True)
        ):
            return True
    return False
