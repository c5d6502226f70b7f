"""Parts of a concatenation that a product does not compute, stored by the product's kernel.

    worker: a thread of mma.sync's and of skinny GEMM's blocks, or of the producer's idle warps
    for step:  vector = (step * per_thread + i) * workers + worker
      load per_thread vectors; compute element by element; store            global

With mma.sync the loads come behind the pipeline's first copies, which are on their way meanwhile;
with wgmma, warps that copy no tiles do it all during the main loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from .....core.tir.expressions import loads
from .....core.tir.loops import constant, coordinates, index, loop, product, sequence, when
from .....ecg.work import at
from .....program.stage import Stage
from ....elementwise.gpu.vectors import VectorConfig, compute, vectors
from ....elementwise.group_maps import iteration_spaces
from ....elementwise.iteration_space import IterationSpace

LOADS_AT_ONCE = 4  # vectors of a thread whose loads are in flight together


@dataclass(frozen=True)
class _Vectors(VectorConfig):
    """Vectors of which a thread of few has several."""

    at_once: int = 1

    @property
    def per_thread(self) -> int:
        """Vectors that a thread loads before it uses the first."""
        return self.at_once


@dataclass(frozen=True, eq=False)
class ConcatParts:
    """Maps that the threads of another kernel compute."""

    spaces: tuple[IterationSpace, ...]  # what is computed

    @classmethod
    def of(cls, stages: Sequence[Stage]) -> ConcatParts:
        """Compute maps, those that are internal inlined."""
        return cls(tuple(iteration_spaces(stages)))

    def reads(self, source: ir.Var) -> bool:
        """Whether a map reads a tensor."""
        found = [x for s in self.spaces for store in s.stores for x in loads(store.value)]
        return any(x.source.same_as(source) for x in found)

    def rounds(self, workers: int) -> int:
        """Count how often so many threads wait for loads; symbolic extents are guessed."""
        steps = (-(-_count(_whole(space)) // workers) for space in self.spaces)
        return sum(-(-n // LOADS_AT_ONCE) for n in steps)

    def stmt(self, worker: ir.Expr, workers: ir.Expr) -> tirx.Stmt:
        """Write what one of some threads does."""
        return sequence([_of_space(space, worker, workers) for space in self.spaces])


def _whole(space: IterationSpace) -> ir.Expr:
    """Return the number of vectors, or of points where there are none."""
    found = vectors(space, is_small=True)
    return space.points if found is None else found.whole


def _count(expr: ir.Expr) -> int:
    return max(1, at(expr))


def _of_space(space: IterationSpace, worker: ir.Expr, workers: ir.Expr) -> tirx.Stmt:
    found = vectors(space, is_small=True)
    if found is None:
        extents = [a.extent for a in space.axes]
        total = product(extents)

        def one(step: ir.Expr) -> tirx.Stmt:
            flat = step * workers + worker
            return when(flat < total, space.point(coordinates(flat, extents)))

        return loop("step", _ceildiv(total, workers), one)
    whole = found.whole
    each = min(LOADS_AT_ONCE, -(-_count(whole) // _count(workers)))
    config = _Vectors(found.space, found.width, found.is_flat, found.loads, at_once=each)

    def some(step: ir.Expr) -> tirx.Stmt:
        return compute(config, lambda i: (step * each + i) * workers + worker, whole)

    stmts = [loop("step", _ceildiv(whole, workers * each), some)]
    if constant(config.left) != 0:
        flat = whole * config.width + worker
        place = coordinates(flat, config.extents)
        stmts.append(when(flat < space.points, space.point(place)))
    return sequence(stmts)


def _ceildiv(total: ir.Expr, step: ir.Expr) -> ir.Expr:
    both = constant(total), constant(step)
    if both[0] is not None and both[1] is not None:
        return index(-(-both[0] // both[1]))
    return tirx.floordiv(total + step - 1, step)
