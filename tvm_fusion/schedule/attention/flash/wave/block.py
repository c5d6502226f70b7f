"""A wave of FlashAttention on AMD's matrix cores: products and softmax.

Instructions multiply keys by queries, and columns of values by weights: so each lane has scores and
results of one query, and weights are an operand as they lie, without a move through LDS. Which key
is which row of a fragment does not matter to a softmax: a lane's are made neighbours.

    cell of MFMA    32 keys: of lane 16 * group + query 8 * group .. + 7, in two fragments
    cell of WMMA    16 keys: the same of two groups; weights of the other group by v_permlanex16,
                    for lanes 16 to 31 hold copies of operands

Rows' maxima are looked at by each lane alone: only when one has found a score far larger than the
maximum so far do lanes exchange theirs, and rescale.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import index, sequence, unrolled
from ....contraction.mma.fragments import multiply_fragments
from ....gpu.launch import VECTOR_BYTES
from ....gpu.memory.lds import scheduling_barrier
from ....gpu.memory.swizzle import VECTOR, WaveRows
from ....gpu.memory.vector_moves import AMD_MOVES
from ....gpu.threads.warp import butterfly
from ....instructions.lanes import STAY
from ...problem.online_softmax import assign, float_
from ..copies import FlashCopies
from ..epilogue import FlashResults
from ..loads import TileLoads
from ..problem import FlashProblem
from ..softmax import LEAST_MAXIMUM, FlashSoftmax
from .config import RUN, SLOTS, FlashWaveConfig
from .loads import TurnedTileLoads

WORD = 2  # halves
# Weights are rounded towards zero, two by one instruction; to the nearest it takes three, eight of
# bfloat16. Before, they get what they lose on average between two powers of two: so they are right
# on average, and powers of two remain what they are.
_TRUNCATED = {half: 2 ** (-bits - 0.5) for half, bits in (("float16", 11), ("bfloat16", 8))}


class WaveBlock(FlashCopies, FlashSoftmax, FlashResults):
    """One lane of a wave; parameters as of :class:`..block.FlashBlock`."""

    _config: FlashWaveConfig

    def __init__(
        self,
        problem: FlashProblem,
        config: FlashWaveConfig,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        g: ir.Expr,
        t: ir.Expr,
    ) -> None:
        rows, part = (op(g, index(config.column_parts)) for op in (tirx.floordiv, tirx.floormod))
        super().__init__(problem, config, where, first, rows, t, config.cell)
        self._first_column = part * config.own_columns
        mma, half = config.instruction, AMD_MOVES.held_as(problem.half)
        self._fragments = RUN // mma.c.per_lane  # of a cell
        self._size = RUN * config.copies  # elements of a lane in a cell's step of an operand
        self._steps = config.depth16 // config.cell.shape[1]
        self._shared = self._declare("tiles", config.shared_bytes // 4, "float32", AMD_MOVES.scope)
        self._ahead = config.ahead
        self._q_frag = self._declare("q_frag", config.m16 * config.q_fragments * self._size, half)
        self._b_frag = self._declare("b_frag", SLOTS * self._ahead * self._size, half)
        self._p_frag = self._declare("p_frag", config.m16 * self._key_cells * self._size, half)
        self._own, self._words = self._declare("own", RUN, half), self._declare("words", 2, "int32")
        self._sums = self._declare("sums", WORD * self._slots)
        self._result = self._declare("o", RUN)
        vector, thread = self._declare("vector", VECTOR, half), g * config.lanes + t

        def loads(kind: type[TileLoads], name: str, rows: WaveRows, held: int) -> TileLoads:
            operand = getattr(problem, name)
            padded = config.column16 if name == "v" else config.depth16
            registers = self._declare(f"{name}_held", held, half)
            return kind(
                *(operand, padded, rows, self._shared, vector, config.threads, thread),
                *(registers, AMD_MOVES),
            )

        def copied(rows: int) -> int:
            return -(-rows * (config.depth16 // VECTOR) // config.threads) * VECTOR

        turned = TurnedTileLoads.held_size(config.block_n, config.column16, config.threads)
        self._q_loads = loads(TileLoads, "q", config.q_rows, copied(config.block_m))
        self._k_loads = loads(TileLoads, "k", config.k_rows(), copied(config.block_n))
        self._v_loads = loads(TurnedTileLoads, "v", config.v_rows(), turned)

    def _load_queries(self) -> tirx.Stmt:
        """Load the fragments of all queries."""
        return sequence([self._load_step_of_queries(step, step) for step in range(self._steps)])

    def _load_step_of_queries(self, step: int, slot: int) -> tirx.Stmt:
        def one(m: ir.Expr) -> tirx.Stmt:
            row = tirx.floormod(self._t, index(self._config.instruction.m))
            line = self._g * self._config.rows_of_warp + m * self._config.instruction.m
            place = (m + slot * self._config.m16) * self._size
            return self._load(self._config.q_rows, line, row, step, load(self._q_frag, [place]))

        return unrolled("m", self._config.m16, one)

    def _multiply_keys(self, n: ir.Expr) -> tirx.Stmt:
        """Compute the scores of a tile."""
        config = self._config

        def slot_of(step: int) -> int:
            return step % config.q_fragments

        def prepare(step: int) -> list[tirx.Stmt]:
            kept = config.q_in_registers
            return [] if kept else [self._load_step_of_queries(step, slot_of(step))]

        def operand(step: int, m: ir.Expr) -> tuple[ir.Var, ir.Expr]:
            return self._q_frag, (m + slot_of(step) * config.m16) * self._size

        shape = self._steps, self._key_cells
        product = self._pipelined(config.k_rows(), shape, self._s, operand, prepare)
        return sequence([self._zero(self._s), product, self._stay(self._s)])

    def _multiply_values(self, _n: ir.Expr) -> tirx.Stmt:
        """Add the product of weights and a tile."""

        def operand(step: int, m: ir.Expr) -> tuple[ir.Var, ir.Expr]:
            return self._p_frag, (m * self._key_cells + step) * self._size

        shape = self._key_cells, self._column_cells
        rows = self._config.v_rows()
        product = self._pipelined(rows, shape, self._acc, operand, start=self._first_column)
        return sequence([product, self._stay(self._acc)])

    def _pipelined(
        self,
        rows: WaveRows,
        shape: tuple[int, int],
        sums: ir.Var,
        operand: Callable[[int, ir.Expr], tuple[ir.Var, ir.Expr]],
        prepare: Callable[[int], list[tirx.Stmt]] = lambda _: [],
        start: ir.Expr | None = None,
    ) -> tirx.Stmt:
        """Multiply a tile of LDS, a few fragments while the next ones are on their way.

        LLVM would load all of them first, into more registers than there are.

        Parameters
        ----------
        shape
            Steps of the product, and cells of its rows.
        operand
            Where the other operand of a step lies, of 16 rows.
        prepare
            What loads it, before the first fragment of a step.
        start
            The first row of the tile.
        """
        steps, cells = shape
        parts = list(itertools.product(range(steps), range(cells), range(self._fragments)))
        groups = [parts[i : i + self._ahead] for i in range(0, len(parts), self._ahead)]

        def loads(number: int) -> list[tirx.Stmt]:
            stmts = []
            for i, (step, cell, fragment) in enumerate(groups[number]):
                stmts += prepare(step) if (cell, fragment) == (0, 0) else []
                first = cell * self._config.cell.shape[1] + (index(0) if start is None else start)
                stmts.append(self._load_cell(rows, first, fragment, step, self._slot(number, i)))
            return stmts

        def products(number: int) -> list[tirx.Stmt]:
            stmts = []
            for i, (step, cell, fragment) in enumerate(groups[number]):

                def one(
                    m: ir.Expr, i: int = i, step: int = step, at: tuple[int, int] = (cell, fragment)
                ) -> tirx.Stmt:
                    place = (m * cells + at[0]) * RUN + at[1] * self._config.instruction.c.per_lane
                    sum_of = load(sums, [place])
                    return self._product(sum_of, operand(step, m), self._slot(number, i))

                stmts.append(unrolled("m", self._config.m16, one))
            return stmts

        stmts = loads(0)
        for number in range(len(groups)):
            stmts += loads(number + 1) if number + 1 < len(groups) else []
            stmts += [*products(number), scheduling_barrier()]
        return sequence(stmts)

    def _slot(self, number: int, i: int) -> int:
        """Return where a fragment of a group lies in registers."""
        return (number % SLOTS * self._ahead + i) * self._size

    def _load_cell(
        self, rows: WaveRows, first: ir.Expr, fragment: int, step: int, to: int
    ) -> tirx.Stmt:
        """Load the rows of a cell that make the sums of a lane neighbours in a fragment."""
        mma = self._config.instruction
        row = tirx.floormod(self._t, index(mma.m))
        (_, group), (register,) = mma.c.lanes, mma.c.registers
        own, number = (
            tirx.floormod(tirx.floordiv(row, index(digit.row)), index(digit.extent))
            for digit in (group, register)
        )
        in_cell = own * RUN + number + fragment * mma.c.per_lane
        return self._load(rows, first, in_cell, step, load(self._b_frag, [index(to)]))

    def _load(
        self, rows: WaveRows, first: ir.Expr, row: ir.Expr, step: int, to: ir.TensorLoad
    ) -> tirx.Stmt:
        """Load what a lane has of a row: its part of a step."""
        groups = self._config.instruction.lanes // self._config.instruction.m
        lanes = groups // self._config.copies  # that share a row out
        group = tirx.floormod(tirx.floordiv(self._t, index(self._config.instruction.m)), lanes)
        stmts = []
        for chunk in range(self._config.copies):
            vector = (group + step * lanes) * self._config.copies + chunk
            place = load(self._shared, [rows.element(first + row, vector, row)])
            part = load(to.source, [to.indices[0] + chunk * VECTOR])
            stmts.append(AMD_MOVES.load(part, place, VECTOR_BYTES))
        return sequence(stmts)

    def _product(
        self, sums: ir.TensorLoad, operand: tuple[ir.Var, ir.Expr], slot: int
    ) -> tirx.Stmt:
        """Multiply a fragment of a tile with one of the other operand."""
        mma, (buffer, start) = self._config.instruction, operand

        def part(source: ir.Var, begin: ir.Expr) -> ir.Expr:
            return tirx.BufferLoad(source, [tirx.Ramp(begin, index(1), mma.k_per_lane)])

        stmts = []
        for i in range(0, self._size, mma.k_per_lane):
            own = part(self._b_frag, index(slot + i))
            stmts.append(multiply_fragments(mma, sums, part(buffer, start + i), own))
        return sequence(stmts)

    def _stay(self, sums: ir.Var) -> tirx.Stmt:
        """Keep products in front of a branch.

        LLVM 22 moves WMMA to where its sums are used: behind branches, where all fragments wait in
        registers, and into those of some lanes, which it does not heed. It moves no MFMA there.
        """
        if self._config.instruction.family == "mfma":
            return sequence([])
        each = self._config.instruction.c.per_lane

        def one(i: ir.Expr) -> tirx.Stmt:
            first = load(sums, [i * each])
            return assign(first, STAY.read(first))

        return unrolled("fragment", int(sums.ty.shape[0]) // each, one)

    def _larger(self, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        return tirx.call_llvm_pure_intrin("float32", "llvm.maxnum", a, b)

    def _exp2(self, x: ir.Expr) -> ir.Expr:
        return tirx.call_llvm_pure_intrin("float32", "llvm.amdgcn.exp2", x)

    def _exp2_fma(self, x: ir.Expr, factor: ir.Expr, summand: ir.Expr) -> ir.Expr:
        return self._exp2(tirx.call_llvm_pure_intrin("float32", "llvm.fma", x, factor, summand))

    def _move_maxima(self) -> list[tirx.Stmt]:
        far = tirx.any(*(self._is_far(index(slot)) for slot in range(self._slots)))
        dtype = f"int{self._config.lanes}"
        votes = tirx.call_llvm_intrin(dtype, "llvm.amdgcn.ballot", far)
        moved = sequence([*super()._move_maxima(), self._rescaled()])
        return [tirx.IfThenElse(tirx.NE(votes, tirx.const(0, dtype)), moved, None)]

    def _rescale_results(self) -> tirx.Stmt:
        return sequence([])  # with the sums of rows

    def _exponentials(self) -> tirx.Stmt:
        """Make exponentials of scores, and add them up, two at a time as of packed arithmetic.

        They are a little too large (``_TRUNCATED``), and so are their sums until the end.
        """
        bounded, scale, bias = self._problem.score.is_bounded, self._scale, math.log2(self._excess)

        def pair(buffer: ir.Var, first: ir.Expr) -> ir.TensorLoad:
            return tirx.BufferLoad(buffer, [tirx.Ramp(first, index(1), WORD)])

        def two(x: ir.Expr) -> ir.Expr:
            return tirx.Broadcast(x, WORD)

        def start(slot: ir.Expr) -> tirx.Stmt:
            zero = assign(pair(self._sums, slot * WORD), two(float_(0)))
            m_i, base = load(self._m_i, [slot]), load(self._m_new, [slot])
            if not bounded:
                return zero
            largest = tirx.max(m_i, float_(LEAST_MAXIMUM))
            return sequence([zero, assign(base, largest * float_(-scale) + float_(bias))])

        def exponentials(i: ir.Expr) -> tirx.Stmt:
            slot, p = self._slot_of(i * WORD), pair(self._s, i * WORD)
            base = load(self._m_new, [slot]) if bounded else float_(bias)
            score = p if bounded else p - two(load(self._m_i, [slot]))
            exponent = tirx.call_llvm_pure_intrin(
                str(p.ty.dtype), "llvm.fma", score, two(float_(scale)), two(base)
            )
            each = (load(self._s, [i * WORD + lane]) for lane in range(WORD))
            sums = pair(self._sums, slot * WORD)
            stmts = [assign(p, exponent), *(assign(x, self._exp2(x)) for x in each)]
            return sequence([*stmts, assign(sums, sums + p)])

        def add(slot: ir.Expr) -> tirx.Stmt:
            low, high = (load(self._sums, [slot * WORD + lane]) for lane in range(WORD))
            l_i = load(self._l_i, [slot])
            return assign(l_i, l_i + (low + high))

        pairs = int(self._s.ty.shape[0]) // WORD
        slots = (unrolled("slot", self._slots, of_slot) for of_slot in (start, add))
        first, last = slots
        return sequence([first, unrolled("pair", pairs, exponentials), last])

    @property
    def _excess(self) -> float:
        return 1 + _TRUNCATED[self._problem.half]

    def _all_sums(self) -> tirx.Stmt:
        """Reduce the sums of rows over their lanes, without the excess of exponentials."""

        def right(slot: ir.Expr) -> tirx.Stmt:
            l_i = load(self._l_i, [slot])
            return assign(l_i, l_i * float_(1 / self._excess))

        reduced = self._all_reduce(self._l_i, operator.add)
        return sequence([*reduced, unrolled("slot", self._slots, right)])

    def _pack_weights(self, n: ir.Expr) -> tirx.Stmt:
        def pack(cell: ir.Expr) -> tirx.Stmt:
            to = self._own if self._config.copies > 1 else self._p_frag
            start = index(0) if self._config.copies > 1 else cell * RUN

            def one(i: ir.Expr) -> tirx.Stmt:
                first = cell * RUN + i * WORD
                low, high = (self._weight(n, first + lane) for lane in range(WORD))
                place = tirx.Ramp(start + i * WORD, index(1), WORD)
                return tirx.BufferStore(to, self._truncated(low, high), [place])

            own = unrolled("word", RUN // WORD, one)
            return own if self._config.copies == 1 else sequence([own, self._share(cell)])

        return unrolled("cell", self._config.m16 * self._key_cells, pack)

    def _truncated(self, low: ir.Expr, high: ir.Expr) -> ir.Expr:
        """Round two numbers towards zero, by one instruction; NaN of arithmetic stays NaN."""
        if self._problem.half == "float16":
            return tirx.call_llvm_pure_intrin("float16x2", "llvm.amdgcn.cvt.pkrtz", low, high)
        words = (tirx.reinterpret("int32", x) for x in (high, low))
        upper = tirx.const(0x07060302, "int32")
        word = tirx.call_llvm_pure_intrin("int32", "llvm.amdgcn.perm", *words, upper)
        return tirx.reinterpret("uint16x2", word)

    def _share(self, cell: ir.Expr) -> tirx.Stmt:
        """Give both halves of a wave the weights of either, in the order of keys."""
        is_first = self._t < self._config.instruction.m
        stmts = []
        for word in range(0, RUN, WORD):
            pair = tirx.BufferLoad(self._own, [tirx.Ramp(index(word), index(1), WORD)])
            own, other = (load(self._words, [index(i)]) for i in range(2))
            lanes = self._config.lanes
            stmts.append(assign(own, tirx.reinterpret("int32", pair)))
            read = butterfly(own, self._t, self._config.instruction.m, lanes, lanes)
            stmts.append(assign(other, read))
            for half, (low, high) in enumerate(((own, other), (other, own))):
                chosen = tirx.reinterpret(str(pair.ty.dtype), tirx.Select(is_first, low, high))
                place = cell * self._size + half * RUN + word
                stmts.append(
                    tirx.BufferStore(self._p_frag, chosen, [tirx.Ramp(place, index(1), WORD)])
                )
        return sequence(stmts)
