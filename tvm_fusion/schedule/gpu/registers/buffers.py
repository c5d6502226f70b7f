"""Register buffers that vector loads fill: several copies, of several tiles, rows or parts."""

from collections.abc import Callable, Mapping, Sequence

from tvm import DataType, ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, local, loop, sequence, substitute
from ..memory.streaming import STREAMED_BYTES, load_streamed
from ..memory.vector_loads import BYTES, VectorLoad

_WORD_BYTES = 4
Word = tuple[ir.Var, int]  # a buffer, and the number of its element where 32 bits begin


class RegisterBuffers:
    """One buffer in registers for each tensor that is read.

    Parameters
    ----------
    vectors
        The loads; the widest of each tensor come first.
    copies
        Copies that are held at once, each loaded at another place.
    threads
        For phases of a block that follow each other: the buffers' first index is the thread's
        number then, which lowering drops. Without it, the buffers are one thread's.
    is_streamed
        Whether the widest vectors bypass the L1 of CUDA devices, which keeps the shorter ones.
    """

    def __init__(
        self,
        vectors: Sequence[VectorLoad],
        copies: int,
        threads: int = 0,
        is_streamed: bool = False,
    ) -> None:
        self._is_streamed = is_streamed
        counts: dict[ir.Var, int] = {}
        self._vectors: list[tuple[VectorLoad, int]] = []
        self._held: dict[ir.Var, tuple[ir.Var, int, bool]] = {}
        for vector in vectors:
            source = vector.first.source
            start = counts.get(source, 0)
            self._vectors.append((vector, start))
            counts[source] = start + len(vector.elements)
            for lane, element in enumerate(vector.elements):
                self._held[element] = source, start + lane, len(vector.elements) > 1
        self._counts = {b: -(-n // _WORD_BYTES) * _WORD_BYTES if _is_bytes(b) else n
                        for b, n in counts.items()}  # fmt: skip
        lead = [threads] if threads else []
        self._arrays = {
            b: local(f"{b.name}_vector", [*lead, copies * n], str(b.ty.dtype))
            for b, n in self._counts.items()
        }
        self.arrays = list(self._arrays.values())

    @property
    def vectors(self) -> list[VectorLoad]:
        """List the vector loads."""
        return [vector for vector, _ in self._vectors]

    def fill(
        self,
        copy: ir.Expr,
        where: Mapping[ir.Var, ir.Expr],
        source: Callable[[int, ir.Expr], ir.Expr] | None = None,
        *thread: ir.Expr,
    ) -> tirx.Stmt:
        """Load all vectors at some place into a copy; indices may be elements loaded before.

        Parameters
        ----------
        source
            Gives an element by the vector's number and the lane, if it was staged elsewhere.
        *thread
            The thread's number, where the buffers are those of several.
        """

        def one(number: int, vector: VectorLoad, start: int) -> tirx.Stmt:
            array = self._arrays[vector.first.source]
            place = copy * self._counts[vector.first.source] + start
            if self._is_streamed and _bytes(vector) == STREAMED_BYTES:
                first = substitute(vector.first, where)
                return load_streamed(load(array, [*thread, place]), first)

            def element(lane: ir.Expr) -> tirx.Stmt:
                there = vector.load(lane) if source is None else source(number, lane)
                value = substitute(self.values(there, copy, *thread), where)
                return tirx.BufferStore(array, value, [*thread, place + lane])

            return loop("lane", len(vector.elements), element, tirx.ForKind.VECTORIZED)

        return sequence([one(n, *vector) for n, vector in enumerate(self._vectors)])

    def values(self, expr: ir.Expr, copy: ir.Expr, *thread: ir.Expr) -> ir.Expr:
        """Replace the elements of an expression by registers of a copy."""
        used = {v for v in tirx.analysis.undefined_vars(expr) if v in self._held}
        return substitute(expr, {v: self._load(v, copy, *thread) for v in used})

    def word(self, element: ir.Var, copy: ir.Expr) -> tuple[ir.Expr, int] | None:
        """Return the 32 bits that hold an element, and its first bit; ``None`` if none do."""
        found = self.place_in_word(element)
        return None if found is None else (self.bits(found[0], copy), found[1])

    def place_in_word(self, element: ir.Var) -> tuple[Word, int] | None:
        """Tell which 32 bits hold an element, and its first bit; ``None`` if none do."""
        source, place, in_vector = self._held[element]
        bits = DataType(str(source.ty.dtype)).bits
        if bits == 32:
            return (source, place), 0
        if bits != 8 or not in_vector:
            return None
        lane = place % _WORD_BYTES
        return (source, place - lane), bits * lane

    def bits(self, word: Word, copy: ir.Expr, *thread: ir.Expr) -> ir.Expr:
        """Return 32 bits of a copy as an unsigned integer."""
        source, place = word
        first = copy * self._counts[source] + place
        lanes = 32 // DataType(str(source.ty.dtype)).bits
        last = first if lanes == 1 else tirx.Ramp(first, index(1), lanes)
        return tirx.reinterpret("uint32", tirx.BufferLoad(self._arrays[source], [*thread, last]))

    def _load(self, element: ir.Var, copy: ir.Expr, *thread: ir.Expr) -> ir.Expr:
        source, place, _ = self._held[element]
        return load(self._arrays[source], [*thread, copy * self._counts[source] + place])


def _bytes(vector: VectorLoad) -> int:
    return len(vector.elements) * DataType(str(vector.first.ty.dtype)).itemsize


def _is_bytes(buffer: ir.Var) -> bool:
    return str(buffer.ty.dtype) in BYTES
