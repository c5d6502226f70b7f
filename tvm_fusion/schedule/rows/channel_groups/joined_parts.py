"""Statistics of channel groups on a GPU: every block of the second launch joins their parts.

    n: elements of a part of a group
    thread (strip, g): near = partial_mean - partial_mean of part 0
      s, q = sums over every strips-th part of near, partial_squares + n near^2     shared memory
    barrier
    thread g: total[g] = size * (mean of part 0 + sum of s / parts)
      squares[g] = sum of q - n (sum of s)^2 / parts
    barrier

The parts are joined about the mean of the first one, with at most as many roundings as there are
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...._tvm.buffer import scratch
from ....core.expressions import load
from ....core.loops import block, coordinates, index, sequence
from .channel_groups import ChannelGroups
from .statistics import each_of, sums


class JoinedParts:
    """Joins the parts of all groups of a row, in every block.

    Parameters
    ----------
    view : ChannelGroups
        The norm.
    partial : sequence of Var
        Of the first launch.
    size : int
        Threads of a block.
    """

    def __init__(self, view: ChannelGroups, partial: Sequence[ir.Var], size: int) -> None:
        self._view, self._partial, self._threads = view, partial, size
        self._parts = int(partial[0].shape[-2])
        self._strips = max(1, min(self._parts, size // view.groups))
        shape = [self._strips, view.groups]
        self._strip = [scratch(shape, "float32", f"{n}_strips", "shared") for n in ("near", "dev")]
        self.total, self.squares = (
            scratch([view.groups], "float32", f"{name}_shared", "shared")
            for name in ("total", "squares")
        )
        elements = view.pixel_count // self._parts * view.size
        self._elements = tirx.const(elements, "float32")

    @property
    def buffers(self) -> list[ir.Var]:
        """List the shared memory."""
        return [*self._strip, self.total, self.squares]

    def phases(self, rows: Sequence[ir.Expr]) -> list[Callable[[ir.Expr], tirx.Stmt]]:
        """Write what threads do, with a barrier between."""
        return [lambda t: self._sum(rows, t), lambda t: self._total(rows, t)]

    def _sum(self, rows: Sequence[ir.Expr], thread: ir.Expr) -> tirx.Stmt:
        view, strips = self._view, self._strips
        steps = -(-self._parts // strips)

        def one(number: ir.Expr) -> tirx.Stmt:
            strip, group = coordinates(number, [strips, view.groups])
            first = load(self._partial[0], [*rows, index(0), group])

            def part(step: ir.Expr) -> list[ir.Expr]:
                own = step * strips + strip
                is_whole = steps * strips == self._parts
                where = own if is_whole else tirx.min(own, index(self._parts - 1))
                at = [*rows, where, group]
                near = load(self._partial[0], at) - first
                terms = [near, load(self._partial[1], at) + self._elements * near * near]
                zero = tirx.const(0, "float32")
                if is_whole:
                    return terms
                return [tirx.Select(own < self._parts, term, zero) for term in terms]

            total, stmts = sums(2, steps, part)
            stmts += [
                tirx.BufferStore(target, load(total, [index(i)]), [strip, group])
                for i, target in enumerate(self._strip)
            ]
            return block("strip", sequence(stmts), [total])

        return each_of(thread, strips * view.groups, self._threads, one)

    def _total(self, rows: Sequence[ir.Expr], thread: ir.Expr) -> tirx.Stmt:
        share = tirx.const(1 / self._parts, "float32")
        size = tirx.const(self._view.pixel_count * self._view.size, "float32")

        def one(group: ir.Expr) -> tirx.Stmt:
            first = load(self._partial[0], [*rows, index(0), group])
            total, stmts = sums(
                2, self._strips, lambda n: [load(b, [n, group]) for b in self._strip]
            )
            s, q = (load(total, [index(i)]) for i in range(2))
            squares = q - self._elements * (s * (s * share))
            zero = tirx.const(0, "float32")
            stmts.append(tirx.BufferStore(self.total, size * (first + s * share), [group]))
            stmts.append(tirx.BufferStore(self.squares, tirx.max(squares, zero), [group]))
            return block("total", sequence(stmts), [total])

        return each_of(thread, self._view.groups, self._threads, one)
