"""Vectors between memory and registers: one load or store of up to 16 bytes of a thread.

place(lane):  buffer[indices of the element]                          vectors that divide rows
              buffer[number * width + lane], number = offset / width  aligned ones of any row
load:   register[first + lane] = buffer[place(lane)]                  one instruction
store:  buffer[place(lane)] = register[lane]
"""

from collections.abc import Callable, Mapping, Sequence

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import (
    constant,
    index,
    local,
    product,
    sequence,
    substitute,
    unrolled,
    vectorized,
    when,
)
from ...index.address import offset
from ..iteration_space import IterationSpace, Store

Position = Callable[[ir.Expr], Mapping[ir.Var, ir.Expr]]  # of a lane, along each axis


class VectorAccess:
    """Contiguous elements of a buffer, accessed as one vector.

    The number of an aligned vector is kept in a register, so that TVM sees no remainder: it does
    not vectorize sums with remainders.

    Parameters
    ----------
    buffer
        Of any shape.
    indices
        Of an element, over the axes of the iteration space.
    width
        Elements of the vector.
    is_aligned
        Whether it is the aligned vector that holds the first element, at any offset in its row,
        which begins before the element where that is not aligned.
    """

    def __init__(
        self, buffer: ir.Var, indices: Sequence[ir.Expr], width: int, is_aligned: bool = False
    ) -> None:
        self._buffer, self._indices, self._width = buffer, tuple(indices), width
        self._number = local(f"{buffer.name}_number", [1], "int64") if is_aligned else None

    @property
    def registers(self) -> list[ir.Var]:
        """The number of an aligned vector."""
        return [] if self._number is None else [self._number]

    def load(self, register: ir.Var, first: ir.Expr, at: Position) -> tirx.Stmt:
        """Load the vector at a position into a register, from its element ``first`` on."""
        before, place = self._places(at)
        return sequence([*before, self._copy(register, first, place)])

    def load_inside(self, register: ir.Var, first: ir.Expr, at: Position) -> tirx.Stmt:
        """Load an aligned vector that may reach behind the buffer's end.

        The last elements are loaded one by one, where they are no whole vector.
        """
        before, place = self._places(at)
        start, size = self._start, product(list(self._buffer.ty.shape))
        copied = self._copy(register, first, place)

        def existing(lane: ir.Expr) -> tirx.Stmt:
            return when(start + lane < size, self._one(register, first, place, lane))

        if (constant(size) or 1) % self._width:
            single = unrolled("lane", self._width, existing)
            copied = tirx.IfThenElse(start + self._width <= size, copied, single)
        else:  # the last row may end with the buffer's last whole vector
            copied = when(start < size, copied)
        return sequence([*before, copied])

    def store(self, register: ir.Var, at: Position) -> tirx.Stmt:
        """Store a register as the vector at a position."""
        before, place = self._places(at)

        def one(lane: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._buffer, load(register, [lane]), place(lane))

        return sequence([*before, vectorized(self._width, one)])

    def _copy(
        self, register: ir.Var, first: ir.Expr, place: Callable[[ir.Expr], list[ir.Expr]]
    ) -> tirx.Stmt:
        return vectorized(self._width, lambda lane: self._one(register, first, place, lane))

    def _one(
        self,
        register: ir.Var,
        first: ir.Expr,
        place: Callable[[ir.Expr], list[ir.Expr]],
        lane: ir.Expr,
    ) -> tirx.Stmt:
        return tirx.BufferStore(register, load(self._buffer, place(lane)), [first + lane])

    @property
    def _start(self) -> ir.Expr:
        """Position of the first element of an aligned vector."""
        return load(self._number, [index(0)]) * self._width

    def _places(self, at: Position) -> tuple[list[tirx.Stmt], Callable[[ir.Expr], list[ir.Expr]]]:
        """Return the indices of the elements, behind the statements that they need."""
        if self._number is None:
            return [], lambda lane: [substitute(i, at(lane)) for i in self._indices]
        place = substitute(offset(self._buffer, self._indices), at(index(0)))
        number = tirx.floordiv(place, index(self._width))
        outer = [index(0)] * (len(self._buffer.ty.shape) - 1)
        found = tirx.BufferStore(self._number, number, [index(0)])
        return [found], lambda lane: [*outer, self._start + lane]


class VectorStores:
    """The results of a vector of points: computed one by one in registers, stored as vectors.

    Only copies are vector statements, so it does not matter which operators CUDA has on vectors.

    Parameters
    ----------
    is_aligned
        Whether they are aligned vectors of the outputs, at any offset in their rows.
    """

    def __init__(self, space: IterationSpace, width: int, is_aligned: bool = False) -> None:
        self._space, self._width = space, width
        self._accesses = [
            VectorAccess(s.buffer, s.indices, width, is_aligned) for s in space.outputs
        ]
        self._kept = space.files(width)
        # One a store, not one a buffer: the parts of a concatenation are stores to the same buffer.
        self._vectors = [
            local(f"{s.buffer.name}_vector", [width], str(s.buffer.ty.dtype)) for s in space.outputs
        ]

    @property
    def registers(self) -> list[ir.Var]:
        """The results, and what is computed on the way."""
        return [*self._kept.values(), *self._vectors]

    @property
    def numbers(self) -> list[ir.Var]:
        """The numbers of aligned vectors."""
        return [number for access in self._accesses for number in access.registers]

    def write(
        self,
        loaded: Callable[[ir.Expr], Sequence[tuple[ir.TensorLoad, ir.Expr]]],
        point: Position,
        place: Position,
    ) -> list[tirx.Stmt]:
        """Compute all points of a vector, and store it.

        Parameters
        ----------
        loaded
            Lists the loads of a lane that are in registers already, with these.
        point, place
            Return a lane's position for the computation, and in a form in which TVM proves that
            lanes are contiguous.
        """
        stmts: list[tirx.Stmt] = []
        files, vectors = dict(self._kept), iter(self._vectors)
        for store in self._space.stores:
            if store.buffer not in self._kept:
                files[store.buffer] = next(vectors)

            def one(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
                return store.reading(loaded(lane)).at(point(lane), files, lane)

            stmts.append(unrolled("lane", self._width, one))
        for access, vector in zip(self._accesses, self._vectors, strict=True):
            stmts.append(access.store(vector, place))
        return stmts
