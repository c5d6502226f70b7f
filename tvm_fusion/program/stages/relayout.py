"""Rewrite stages over new axes."""

from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx
from tvm.tirx import Buffer

from ..._tvm.ir.buffer import declare
from ...core.tir.expressions import load, map_loads, substitute
from ..domain import Domain
from ..stage import Solution, Stage
from .reindex import Reindexed


def relaid(
    stages: Sequence[Stage], reaxed: Sequence[Reindexed], rows: int, outputs: Sequence[Buffer]
) -> tuple[Stage, ...]:
    """Rewrite stages over their new axes, with internal buffers laid out by them.

    Parameters
    ----------
    stages
        Each internal target is written at its axes in order.
    reaxed
        The new axes of each.
    rows
        How many of the new axes are rows: what a stage reads of another is proved to be at its own.
    outputs
        Targets that keep their layout.

    Returns
    -------
    tuple of Stage
        Loads of internal buffers are at the reader's row axes first.
    """
    rewriter = _Rewriter(stages, reaxed, rows, set(outputs))
    return tuple(rewriter.rewrite(k) for k in range(len(stages)))


class _Rewriter:
    def __init__(
        self, stages: Sequence[Stage], reaxed: Sequence[Reindexed], rows: int, outputs: set[Buffer]
    ) -> None:
        self.stages = stages
        self.reaxed = reaxed
        self.rows = rows
        self.internal: dict[Buffer, tuple[int, int, Buffer]] = {}
        for k, (stage, new) in enumerate(zip(self.stages, reaxed, strict=True)):
            for position, target in enumerate(stage.targets):
                if target not in outputs:
                    shape = [a.extent for a in new.axes]
                    buffer = target
                    if not _is_laid_out(stage.indices[position], new):
                        buffer = declare(shape, target.dtype, target.name)
                    self.internal[target] = (k, position, buffer)

    def rewrite(self, k: int) -> Stage:
        stage, new = self.stages[k], self.reaxed[k]
        if not new.inverse and self._is_in_place(stage, new):
            return replace(stage, axes=new.axes)
        domain = Domain((*new.axes, *stage.reduce))
        own: dict[Buffer, ir.Expr] = {}
        targets, writes = [], []
        for target, indices in zip(stage.targets, stage.indices, strict=True):
            if target in self.internal:
                buffer = self.internal[target][2]
                write = tuple(a.var for a in new.axes)
            else:
                buffer = target
                write = indices
                if new.inverse:
                    write = tuple(domain.simplify(substitute(i, new.inverse)) for i in indices)
            targets.append(buffer)
            writes.append(write)
            own[target] = load(buffer, write)

        moved = bool(new.inverse)

        def change(found: ir.TensorLoad) -> ir.Expr:
            nonlocal moved
            if found.source in own:
                return own[found.source]
            if found.source not in self.internal:
                return found
            there = self._load(found, new)
            moved |= not all(isinstance(i, ir.Var | tirx.IntImm) for i in there.indices)
            return there

        values = [map_loads(substitute(v, new.inverse), change) for v in stage.values]
        if moved:
            values = [domain.simplify(v) for v in values]

        return replace(
            stage,
            axes=new.axes,
            targets=tuple(targets),
            indices=tuple(writes),
            values=tuple(values),
            init=stage.init and tuple(substitute(v, new.inverse) for v in stage.init),
            solution=_solution(stage, new, targets[0]),
        )

    def _is_in_place(self, stage: Stage, new: Reindexed) -> bool:
        """Whether all buffers stay as they are, and rows are spelt as axes already."""
        rows = [a.var for a in new.axes[: self.rows]]
        return all(
            self.internal[t][2].same_as(t) for t in stage.targets if t in self.internal
        ) and all(
            self.internal[x.source][2].same_as(x.source)
            and all(i.same_as(r) for i, r in zip(x.indices, rows, strict=False))
            for x in stage.loads
            if x.source in self.internal
        )

    def _load(self, found: ir.TensorLoad, reader: Reindexed) -> ir.TensorLoad:
        """Read an internal buffer in its new layout; rows are known to be the reader's own."""
        k, position, buffer = self.internal[found.source]
        write, new = self.stages[k].indices[position], self.reaxed[k]
        at = {v: i for v, i in zip(write, found.indices, strict=True) if isinstance(v, ir.Var)}
        rest = [substitute(e, at) for e in new.forward[self.rows :]]
        return load(buffer, [*(a.var for a in reader.axes[: self.rows]), *rest])


def _solution(stage: Stage, new: Reindexed, target: Buffer) -> Solution | None:
    """Before it was aligned, a map's write index was its axes: these now stand for the element."""
    if not stage.is_map or not new.inverse or not target.same_as(stage.targets[0]):
        return None
    return Solution(stage.indices[0], new.forward)


def _is_laid_out(write: Sequence[ir.Expr], new: Reindexed) -> bool:
    return (
        not new.inverse
        and len(write) == len(new.axes)
        and all(a.var.same_as(i) for a, i in zip(new.axes, write, strict=True))
    )
