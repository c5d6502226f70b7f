"""Keys and values of the steps ahead: copied to shared memory while a warp takes in others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...fusion.expressions import load
from ...fusion.program import Axis
from ..address import conditions_of
from ..gpu.cp_async import commit, copy, meet, places, wait
from ..loops import (
    coordinates,
    index,
    loop,
    sequence,
    simplified,
    substitute,
    unrolled,
    when,
)
from .decode import Decode
from .tensor_cut import TENSOR_KEYS

VECTOR = 8  # elements
BANKS = 8  # vectors that shared memory gives at once


class Staged:
    """The vectors of each warp's keys, or of its values, for some steps.

    Neighbouring threads ask for neighbouring vectors, which memory gives best, and take those that
    their fragments are made of. These are of several keys: each key's vectors are turned round by
    another distance, so that threads which take theirs at once find them in different banks.

    Parameters
    ----------
    cut : Decode
        How keys are given to warps.
    buffer : Var
        Of :meth:`memory`.
    begin : int
        First of the vectors there.
    operand : PrimExpr
        Elements of keys, or of values: copies of memory.
    found : sequence of TensorLoad
        What it reads: one of them for each key.
    axis : Axis
        Runs along the elements.
    turn : callable
        Says how far a key's vectors are turned.
    """

    def __init__(
        self,
        cut: Decode,
        buffer: ir.Var,
        begin: int,
        operand: ir.Expr,
        found: Sequence[ir.TensorLoad],
        axis: Axis,
        turn: Callable[[ir.Expr], ir.Expr],
    ) -> None:
        self._cut, self._operand, self._found = cut, operand, found
        self._axis, self._turn = axis, turn
        self._vectors = int(axis.extent) // VECTOR
        self._buffer, self._begin = buffer, begin

    @staticmethod
    def memory(cut: Decode, half: str) -> ir.Var:
        """Declare the memory of keys and values."""
        vectors = (cut.depth + cut.columns) // VECTOR
        shape = (cut.stages, cut.groups, TENSOR_KEYS, vectors, VECTOR)
        return places(shape, half)

    def ask(
        self,
        number: ir.Expr,
        is_step: ir.Expr,
        place: Callable[[ir.Expr], dict[ir.Var, ir.Expr]],
        g: ir.Expr,
        t: ir.Expr,
    ) -> tirx.Stmt:
        """Ask for a step, if there is such a one, in the place of one that was taken.

        Parameters
        ----------
        number, is_step : PrimExpr
            Its number, and whether there is one.
        place : callable
            Says where a key of the warp is read.
        g, t : PrimExpr
            The warp and its thread.
        """

        def one(vector: ir.Expr) -> tirx.Stmt:
            flat = vector * self._cut.lanes + t
            key, vector = coordinates(flat, [TENSOR_KEYS, index(self._vectors)])
            at = {**place(key), self._axis.var: vector * VECTOR}
            to = load(self._buffer, [*self._where(number, g, key, vector), index(0)])

            def piece(x: ir.TensorLoad) -> tirx.Stmt:
                stmt = copy(to, substitute(x, at))
                # What was appended lies elsewhere than what was there.
                for condition in conditions_of(x, self._operand):
                    stmt = when(substitute(condition, at), stmt)
                return stmt

            return sequence([piece(x) for x in self._found])

        count = TENSOR_KEYS * self._vectors // self._cut.lanes
        copies = unrolled("vector", count, one)
        return sequence([meet(), when(is_step, copies), commit()])

    def take(
        self,
        number: ir.Expr,
        into: ir.Var,
        count: int,
        which: Callable[[ir.Expr], tuple[ir.Expr, ir.Expr]],
        g: ir.Expr,
        t: ir.Expr,
    ) -> tirx.Stmt:
        """Take a thread's vectors into registers when they are there.

        Parameters
        ----------
        number : PrimExpr
            Of the step.
        into : Var
            Registers of ``[groups, lanes, elements]``.
        count : int
            Vectors of a thread.
        which : callable
            Says key and vector of the warp for a number of these.
        g, t : PrimExpr
            The warp and its thread.
        """

        def one(own: ir.Expr) -> tirx.Stmt:
            where = self._where(number, g, *which(own))

            def element(lane: ir.Expr) -> tirx.Stmt:
                value = load(self._buffer, [*where, lane])
                return tirx.BufferStore(into, value, [g, t, own * VECTOR + lane])

            return loop("lane", VECTOR, element, tirx.ForKind.VECTORIZED)

        # Keys and values of every step are groups of their own; all but this one may be pending.
        pending = 2 * self._cut.stages - 1
        return sequence([wait(pending), unrolled("vector", count, one)])

    def _where(self, number: ir.Expr, g: ir.Expr, key: ir.Expr, vector: ir.Expr) -> list[ir.Expr]:
        stage = simplified(tirx.floormod(number, index(self._cut.stages)))
        if self._vectors % BANKS == 0:
            vector = tirx.bitwise_xor(vector, self._turn(key))
        return [stage, g, key, vector + self._begin]
