"""Sums of groups of small integers on tensor cores, before their scales multiply them.

Integers are in halves as they were in words. What all of them are too large by is one number for
many, so that its products are summed once for all columns, and sums of columns start from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from tvm import ir, tirx

from ...fusion.expressions import load
from ..gpu.mma import CHUNK, SUMS, multiply
from ..loops import index, local, sequence, unrolled
from .dequantize_f16x2 import Part
from .skinny_mma_config import FragmentSlim


class GroupSums:
    """A thread's sums of one group of terms.

    Parameters
    ----------
    cut : FragmentSlim
        The product.
    parts : sequence of sequence of Part
        Of each column how the terms of each instruction are written.

    Attributes
    ----------
    buffers : list of Var
        What holds them.
    """

    def __init__(self, cut: FragmentSlim, parts: Sequence[Sequence[Part]]) -> None:
        self._cut = cut
        by_chunk = [*zip(*parts, strict=True)]
        self._runs = [
            (columns, [chunk for chunk, _ in some])
            for columns, some in groupby(enumerate(by_chunk), key=lambda pair: pair[1])
        ]
        noughts = dict.fromkeys(part.nought for columns, _ in self._runs for part in columns)
        self._places = {nought: n * CHUNK for n, nought in enumerate(noughts)}
        starts = dict.fromkeys(self._start(run, pair) for run, pair in self._pairs())
        self._starts = {start: n * cut.eights * SUMS for n, start in enumerate(starts)}
        size = cut.kept // cut.pieces
        self._noughts = local("noughts", [cut.threads, len(self._places) * CHUNK], cut.half)
        self._zeros = local(
            "zeros", [cut.threads, len(self._starts) * cut.eights * SUMS], "float32"
        )
        self._sums = local("group", [cut.threads, len(self._runs) * size], "float32")
        self.buffers = [self._noughts, self._zeros, self._sums]

    def begin(self, thread: ir.Expr) -> tirx.Stmt:
        """Write down what is subtracted."""
        return sequence(
            [
                tirx.BufferStore(self._noughts, tirx.const(-nought, self._cut.half), [thread, n])
                for nought, first in self._places.items()
                for n in map(index, range(first, first + CHUNK))
            ]
        )

    def add_up(
        self,
        thread: ir.Expr,
        column: Callable[[int, int], ir.TensorLoad],
        row: Callable[[ir.Expr, int], ir.TensorLoad],
    ) -> tirx.Stmt:
        """Add up products.

        Parameters
        ----------
        thread : Expr
            Whose.
        column : callable
            Gives the first of a column's terms of an instruction.
        row : callable
            Gives the first of some eight rows' terms of one.
        """
        half = self._cut.half

        def eight(number: ir.Expr) -> tirx.Stmt:
            stmts = []
            for (run, low, high), first in self._starts.items():
                place = first + number * SUMS
                zeros = load(self._zeros, [thread, place])
                stmts.append(self._cleared(thread, place))
                both = [load(self._noughts, [thread, index(self._places[n])]) for n in (low, high)]
                chunks = self._runs[run][1]
                stmts += [multiply(half, zeros, both, row(number, chunk)) for chunk in chunks]
            for run, pair in self._pairs():
                place = self._place(run, number, pair)
                start = self._starts[self._start(run, pair)] + number * SUMS
                stmts.append(self._copied(thread, place, start))
                sums = load(self._sums, [thread, place])
                for chunk in self._runs[run][1]:
                    both = [column(2 * pair + side, chunk) for side in range(2)]
                    stmts.append(multiply(half, sums, both, row(number, chunk)))
            return sequence(stmts)

        return unrolled("eight", self._cut.eights, eight)

    def value(self, thread: ir.Expr, number: int, column: int) -> ir.Expr:
        """Give one of a thread's sums, of some column."""
        size = self._cut.kept // self._cut.pieces
        found = tirx.const(0.0)
        for run, (columns, _) in enumerate(self._runs):
            own = load(self._sums, [thread, index(run * size + number)])
            found = found + own * tirx.const(columns[column].factor, "float32")
        return found

    def _pairs(self) -> Iterator[tuple[int, int]]:
        for run in range(len(self._runs)):
            for pair in range(self._cut.width // 2):
                yield run, pair

    def _start(self, run: int, pair: int) -> tuple[int, float, float]:
        """Say from what sums of two columns start: terms' sums times these numbers."""
        low, high = self._runs[run][0][2 * pair : 2 * pair + 2]
        return run, low.nought, high.nought

    def _place(self, run: int, eight: ir.Expr, pair: int) -> ir.Expr:
        pairs = self._cut.width // 2
        return ((run * self._cut.eights + eight) * pairs + pair) * SUMS

    def _cleared(self, thread: ir.Expr, first: ir.Expr) -> tirx.Stmt:
        def one(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._zeros, tirx.const(0.0), [thread, first + i])

        return unrolled("sum", SUMS, one)

    def _copied(self, thread: ir.Expr, first: ir.Expr, start: ir.Expr) -> tirx.Stmt:
        def one(i: ir.Expr) -> tirx.Stmt:
            zeros = load(self._zeros, [thread, start + i])
            return tirx.BufferStore(self._sums, zeros, [thread, first + i])

        return unrolled("sum", SUMS, one)
