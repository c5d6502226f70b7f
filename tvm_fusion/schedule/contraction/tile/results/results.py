"""Results of a tiled GEMM in vectors: loads of what they read, their computation, their stores.

load what results read, in vectors                  before the sums are complete
compute element by element
store, in vectors of at most 16 bytes, evict-first where results outgrow L2
for results with one condition, such as the columns of Q in a joined product:
  if it holds:  load, compute, store
"""

from collections.abc import Callable, Mapping, Sequence

import tvm_ffi
from tvm import DataType, ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import index, local, sequence, substitute, vectorized, when
from ....gpu.memory.streaming import STORED_WORDS, store_streamed
from ....gpu.memory.vector_loads import ElementLoads
from ....gpu.registers.buffers import RegisterBuffers
from ...problem.results import Result
from ..config import TileGemmConfig
from .vectors import WORD, ResultVectors, result_analyzer, store_size


class VectorResults:
    """Vectors of results: what they read is loaded into registers, computed with, and stored.

    What results under a condition read, such as the parts of a split, is loaded under it, right
    before it is used.

    Parameters
    ----------
    vectors
        Of more than one element, or plain ones.
    copies
        Vectors that are held at once.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    reads : bool
        Whether results without a condition read anything besides the sums.
    made : dict of Var to Var
        By the output of a result without a condition, the registers of its last vector.
    """

    def __init__(self, config: TileGemmConfig, vectors: ResultVectors, copies: int = 1) -> None:
        alike: list[list[Result]] = []
        for result in config.problem.contraction.results:
            for some in alike:
                if tvm_ffi.structural_equal(some[0].condition, result.condition):
                    some.append(result)
                    break
            else:
                alike.append([result])
        always = [some for some in alike if some[0].condition is None]
        self._always = [_Vectors(config, vectors, some, copies) for some in always]
        self._sometimes = [
            (some[0].condition, _Vectors(config, vectors, some, 1))
            for some in alike
            if some[0].condition is not None
        ]
        self.reads = any(v.reads for v in self._always)
        self.made = {
            r.buffer: made for v in self._always for r, made in zip(v.results, v.made, strict=True)
        }
        every = [*self._always, *(v for _, v in self._sometimes)]
        self.buffers = [b for v in every for b in v.buffers]

    def load(self, copy: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Load what the results at a place read; ``where`` gives all axes of the product."""
        return sequence([v.load(copy, where) for v in self._always if v.reads])

    def compute(
        self,
        copy: ir.Expr,
        where: Mapping[ir.Var, ir.Expr],
        total: Callable[[int, int], ir.Expr],
    ) -> tirx.Stmt:
        """Compute results without a condition into the registers ``made``, as :meth:`finish` does.

        Nothing is stored.
        """
        return sequence([v.compute(copy, where, total) for v in self._always])

    def finish(
        self,
        copy: ir.Expr,
        where: Mapping[ir.Var, ir.Expr],
        total: Callable[[int, int], ir.Expr],
        inside: ir.Expr | None = None,
    ) -> tirx.Stmt:
        """Compute the results of sums from what a copy holds, and store them.

        Parameters
        ----------
        copy
            What :meth:`load` has filled.
        total
            ``total(part, lane)`` gives the sum of a part of a column split, at a place of the
            vector.
        """
        stmts = []
        for vectors in self._always:
            stored = vectors.store(where)
            stmts.append(vectors.compute(copy, where, total))
            stmts.append(stored if inside is None else when(inside, stored))
        for condition, vectors in self._sometimes:
            has_it = substitute(condition, where)
            here = [vectors.load(index(0), where)] if vectors.reads else []
            here += [vectors.compute(index(0), where, total), vectors.store(where)]
            both = has_it if inside is None else tirx.And(inside, has_it)
            stmts.append(when(both, sequence(here)))
        return sequence(stmts)


class _Vectors:
    """Vectors of results that exist at the same places."""

    def __init__(
        self, config: TileGemmConfig, vectors: ResultVectors, results: Sequence[Result], copies: int
    ) -> None:
        self._config, self._width, self.results = config, vectors.width, results
        self._axis = (config.problem.m_axes if vectors.is_along_m else config.problem.n_axes)[-1]
        self._vector = tirx.Var("vector", "int64")
        elements = ElementLoads(
            result_analyzer(config.problem.contraction, self._axis, self._vector, self._width)
        )
        self._values = [
            [
                elements.read(
                    substitute(r.value, {self._axis.var: self._vector * self._width + lane})
                )
                for lane in range(self._width)
            ]
            for r in results
        ]
        found = elements.vectors()
        self.reads = bool(found)
        self._registers = RegisterBuffers(found, copies)
        self.made = [
            local(f"result{number}", [self._width], str(result.buffer.ty.dtype))
            for number, result in enumerate(results)
        ]
        self.buffers = [*self._registers.arrays, *self.made]

    def load(self, copy: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Load what the results at a place read."""
        return self._registers.fill(copy, self._at(where))

    def compute(
        self, copy: ir.Expr, where: Mapping[ir.Var, ir.Expr], total: Callable[[int, int], ir.Expr]
    ) -> tirx.Stmt:
        """Compute the results of the sums ``total(part, lane)`` from what a copy holds."""
        there, stmts = self._at(where), []
        contraction = self._config.problem.contraction
        for made, lanes in zip(self.made, self._values, strict=True):
            for lane, value in enumerate(lanes):
                sums = {
                    own: total(*contraction.place_of(part, lane))
                    for part, own in enumerate(contraction.totals)
                }
                held = substitute(self._registers.values(value, copy), {**there, **sums})
                stmts.append(tirx.BufferStore(made, held, [lane]))
        return sequence(stmts)

    def store(self, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Store the results that were computed last."""
        there, stmts = self._at(where), []
        for result, made in zip(self.results, self.made, strict=True):
            size = store_size(str(made.ty.dtype), self._width) or 1
            for start in range(0, self._width, size):
                stmts.append(self._store(result, made, there, start, size))
        return sequence(stmts)

    def _store(
        self,
        result: Result,
        made: ir.Var,
        where: Mapping[ir.Var, ir.Expr],
        start: int,
        size: int,
    ) -> tirx.Stmt:
        place = where[self._vector] * self._width + start
        first = [substitute(i, {**where, self._axis.var: place}) for i in result.indices]
        words = _bytes(made, size) // WORD
        if self._config.problem.is_streamed and words in STORED_WORDS:
            return store_streamed(load(result.buffer, first), load(made, [index(start)]), words)

        # A vector may be beyond the extent of the last dimension, as of [heads, depth, 1].
        def store(lane: ir.Expr) -> tirx.Stmt:
            value = load(made, [start + lane])
            return tirx.BufferStore(result.buffer, value, [*first[:-1], first[-1] + lane])

        return vectorized(size, store)

    def _at(self, where: Mapping[ir.Var, ir.Expr]) -> dict[ir.Var, ir.Expr]:
        vector = tirx.floordiv(where[self._axis.var], index(self._width))
        return {**where, self._vector: vector}


def _bytes(registers: ir.Var, elements: int) -> int:
    return elements * int(DataType(str(registers.ty.dtype)).itemsize)
