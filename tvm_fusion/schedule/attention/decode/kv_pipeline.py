"""The K/V pipeline of flash-decoding: asynchronous copies into a ring of shared-memory stages.

Each warp has a ring of its own, so no barrier of the block is needed:

issue(step):    __syncwarp; cp.async of 16 keys (or values) into stage step % stages; commit
consume(step):  wait until all but the last 2 * stages - 1 groups arrived; shared -> registers
"""

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ....core.tir.loops import coordinates, index, sequence, substitute, unrolled, vectorized, when
from ....program.stage import Axis
from ...gpu.memory.cp_async import commit, wait, warp_sync
from ...gpu.memory.pipeline import StageRing
from ...index.address import conditions_of
from .config import FlashDecodeConfig
from .mma_config import MMA_KEYS

VECTOR = 8  # elements
BANKS = 8  # vectors that shared memory delivers at once


class KVPipeline:
    """The shared-memory ring of each warp's keys, or of its values.

    Neighbouring threads copy neighbouring vectors, which coalesces, and consume those that their
    fragments are made of. These are of several keys: the vectors of a key are permuted by an XOR
    swizzle, so that threads which load at once find theirs in different banks.

    Parameters
    ----------
    ring
        Of :meth:`shared_memory`.
    begin
        First of the vectors there.
    operand
        Elements of keys, or of values: copies of memory.
    found
        What it reads: one of them for each key.
    axis
        Runs along the elements.
    swizzle
        What the number of a vector is XORed with, for a key.
    """

    def __init__(
        self,
        config: FlashDecodeConfig,
        ring: StageRing,
        begin: int,
        operand: ir.Expr,
        found: Sequence[ir.TensorLoad],
        axis: Axis,
        swizzle: Callable[[ir.Expr], ir.Expr],
    ) -> None:
        self._config, self._operand, self._found = config, operand, found
        self._axis, self._swizzle = axis, swizzle
        self._vectors = int(axis.extent) // VECTOR
        self._ring, self._begin = ring, begin

    @staticmethod
    def shared_memory(config: FlashDecodeConfig, half: str) -> StageRing:
        """Declare the ring of keys and values."""
        vectors = (config.head_dim + config.head_dim_v) // VECTOR
        return StageRing.declare((config.stages, config.groups, MMA_KEYS, vectors, VECTOR), half)

    def issue(
        self,
        step: ir.Expr,
        is_step: ir.Expr,
        place: Callable[[ir.Expr], dict[ir.Var, ir.Expr]],
        g: ir.Expr,
        t: ir.Expr,
    ) -> tirx.Stmt:
        """Issue the copies of a step, into the stage of one that was consumed.

        Parameters
        ----------
        step, is_step
            Its number, and whether there is such a step.
        place
            Where a key of the warp is read.
        g, t
            The warp and its thread.
        """

        def one(number: ir.Expr) -> tirx.Stmt:
            flat = number * self._config.lanes + t
            key, vector = coordinates(flat, [MMA_KEYS, index(self._vectors)])
            at = {**place(key), self._axis.var: vector * VECTOR}
            slot = self._slot(g, key, vector)

            def copied(x: ir.TensorLoad) -> tirx.Stmt:
                stmt = self._ring.copy(step, slot, substitute(x, at))
                # Appended keys lie in another buffer than those of the cache.
                for condition in conditions_of(x, self._operand):
                    stmt = when(substitute(condition, at), stmt)
                return stmt

            return sequence([copied(x) for x in self._found])

        count = MMA_KEYS * self._vectors // self._config.lanes
        copies = unrolled("vector", count, one)
        return sequence([warp_sync(), when(is_step, copies), commit()])

    def consume(
        self,
        step: ir.Expr,
        into: ir.Var,
        count: int,
        which: Callable[[ir.Expr], tuple[ir.Expr, ir.Expr]],
        g: ir.Expr,
        t: ir.Expr,
    ) -> tirx.Stmt:
        """Wait for a step, and load a thread's vectors of it into registers.

        Parameters
        ----------
        into
            Registers of ``[groups, lanes, elements]``.
        which
            Key and vector of the warp, for a number of these.
        g, t
            The warp and its thread.
        """

        def one(own: ir.Expr) -> tirx.Stmt:
            slot = self._slot(g, *which(own))

            def element(lane: ir.Expr) -> tirx.Stmt:
                value = self._ring.element(step, *slot, lane)
                return tirx.BufferStore(into, value, [g, t, own * VECTOR + lane])

            return vectorized(VECTOR, element)

        # Keys and values of every step are groups of their own; all but this one may be pending.
        pending = 2 * self._config.stages - 1
        return sequence([wait(pending), unrolled("vector", count, one)])

    def _slot(self, g: ir.Expr, key: ir.Expr, vector: ir.Expr) -> list[ir.Expr]:
        if self._vectors % BANKS == 0:
            vector = tirx.bitwise_xor(vector, self._swizzle(key))
        return [g, key, vector + self._begin]
