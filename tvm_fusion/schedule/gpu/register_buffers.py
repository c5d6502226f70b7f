"""Registers that hold what a thread has read: of several tiles, for several rows or pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import DataType, ir, tirx

from ...fusion.expressions import load
from ..loops import index, local, loop, sequence, substitute
from . import streaming_load
from .vector_loads import BYTES, Vector

_WORD_BYTES = 4
Word = tuple[ir.Var, int]  # a buffer, and the number of its element where 32 bits begin


class Registers:
    """One array of registers for each buffer that is read.

    Parameters
    ----------
    vectors : sequence of Vector
        What is read at once; the widest of each buffer come first.
    copies : int
        How often it is kept, each time read at another place.
    threads : int, optional
        Where phases of a block follow each other, the arrays are its threads': what their first
        index, the thread's number, stands for. Lowering drops it. Without it, the arrays are one
        thread's.
    is_stream : bool
        Whether CUDA's first cache is to keep the shorter vectors rather than whole ones.

    Attributes
    ----------
    arrays : list of Var
        The arrays.
    """

    def __init__(
        self, vectors: Sequence[Vector], copies: int, threads: int = 0, is_stream: bool = False
    ) -> None:
        self._is_stream = is_stream
        counts: dict[ir.Var, int] = {}
        self._vectors: list[tuple[Vector, int]] = []
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
    def vectors(self) -> list[Vector]:
        """List the vectors."""
        return [vector for vector, _ in self._vectors]

    def fill(
        self,
        copy: ir.Expr,
        where: Mapping[ir.Var, ir.Expr],
        held: Callable[[int, ir.Expr], ir.Expr] | None = None,
        *thread: ir.Expr,
    ) -> tirx.Stmt:
        """Read all vectors, at some place, into a copy.

        Parameters
        ----------
        copy : Expr
            Its number.
        where : mapping of Var to Expr
            The place.
        held : callable, optional
            Gives an element by the vector's number and the lane, if it is elsewhere.
        *thread : Expr
            Which thread's, where the arrays are those of several.
        """

        def one(number: int, vector: Vector, start: int) -> tirx.Stmt:
            source = vector.first.source
            place = copy * self._counts[source] + start
            if self._is_stream and _bytes(vector) == streaming_load.BYTES:
                first = substitute(vector.first, where)
                return streaming_load.read_once(load(self._arrays[source], [*thread, place]), first)

            def element(lane: ir.Expr) -> tirx.Stmt:
                there = vector.load(lane) if held is None else held(number, lane)
                value = substitute(there, where)
                return tirx.BufferStore(self._arrays[source], value, [*thread, place + lane])

            return loop("lane", len(vector.elements), element, tirx.ForKind.VECTORIZED)

        return sequence([one(n, *vector) for n, vector in enumerate(self._vectors)])

    def values(self, expr: ir.Expr, copy: ir.Expr, *thread: ir.Expr) -> ir.Expr:
        """Put registers in the place of the elements of an expression."""
        used = {v for v in tirx.analysis.undefined_vars(expr) if v in self._held}
        return substitute(expr, {v: self._load(v, copy, *thread) for v in used})

    def word(self, element: ir.Var, copy: ir.Expr) -> tuple[ir.Expr, int] | None:
        """Give the 32 bits of which an element is a part, and where it begins among them."""
        found = self.place_in_word(element)
        return None if found is None else (self.bits(found[0], copy), found[1])

    def place_in_word(self, element: ir.Var) -> tuple[Word, int] | None:
        """Say of which 32 bits an element is a part, and where it begins among them."""
        source, place, in_vector = self._held[element]
        bits = DataType(str(source.ty.dtype)).bits
        if bits == 32:
            return (source, place), 0
        if bits != 8 or not in_vector:
            return None
        lane = place % _WORD_BYTES
        return (source, place - lane), bits * lane

    def bits(self, word: Word, copy: ir.Expr, *thread: ir.Expr) -> ir.Expr:
        """Give 32 bits as an unsigned number."""
        source, place = word
        first = copy * self._counts[source] + place
        lanes = 32 // DataType(str(source.ty.dtype)).bits
        last = first if lanes == 1 else tirx.Ramp(first, index(1), lanes)
        return tirx.reinterpret("uint32", tirx.BufferLoad(self._arrays[source], [*thread, last]))

    def _load(self, element: ir.Var, copy: ir.Expr, *thread: ir.Expr) -> ir.Expr:
        source, place, _ = self._held[element]
        return load(self._arrays[source], [*thread, copy * self._counts[source] + place])


def _bytes(vector: Vector) -> int:
    return len(vector.elements) * DataType(str(vector.first.ty.dtype)).itemsize


def _is_bytes(buffer: ir.Var) -> bool:
    return str(buffer.ty.dtype) in BYTES
