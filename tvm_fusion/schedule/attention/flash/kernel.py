"""FlashAttention on tensor cores: mma.m16n8k16, one launch, softmax in registers.

grid: batch * heads * ceil(queries / block_m) blocks; block: `warps` warps of 16 or 32 rows each
shared memory: q[block_m, d]; a ring of `stages` tiles k[block_n, d] and v[block_n, d], swizzled
registers of a warp: acc[rows, d], s[rows, block_n], m_i, l_i; q_frag, or loaded for every tile
limits of visible keys that rows read from memory: their extremes in the block (tiles.py)
issue q and k(0), v(0), k(1) .. k(stages - 1)                    each one cp.async group
for n in range(tiles that a row of the block sees):
    wait for k(n); __syncthreads; issue v(n + stages - 1)
    s = mma(q_frag, k_frag)                                      ldmatrix
    s = score(s), positions tested in tiles that not all rows see whole
    m_new = max(m_i, s) over the four threads of a row; rescale m_i, l_i, acc to m_new
    p = exp(s - m_new); l_i += p; p_frag (A) = weight(p)         accumulators are fragments
    wait for v(n); __syncthreads; issue k(n + stages)
    acc += mma(p_frag, v_frag)                                   ldmatrix, transposed
l_i = sum over the four threads of a row; __syncthreads
(wgmma instead, four warps together: fence.proxy.async before each barrier, q_frag for every tile,
k and v from shared memory; ping-pong of two warpgroups: the second is half a tile behind, so that
each computes softmax while the other multiplies. Between the barriers of a tile the first computes
s and softmax, the second acc += p * v of the tile before and s; then the first acc += p * v, the
second softmax. v(n + 1) is issued with k(n + 2), behind the second barrier.)
(without cp.async, stages = 1: `issue` loads into registers; v(n) is stored behind softmax, k(n + 1)
behind acc, each before the barrier that follows)
acc / l_i -> shared memory, of each warp its rows; __syncwarp; epilogue -> global, in vectors
"""

from tvm import ir, tirx

from ....core.tir.loops import block, index, kernel, loop, one_of, sequence, simplified, when
from ....program.program import Program
from ...gpu.launch import block_by_address, min_blocks_per_sm, storage_sync
from ...gpu.matrix.wgmma import WARPS, fence_proxy
from ...gpu.memory.cp_async import commit, wait
from ...gpu.threads.warp import LANES, each_thread
from .config import FlashMmaConfig
from .copies import FlashCopies
from .epilogue import FlashMmaEpilogue
from .grid import query_blocks
from .problem import FlashProblem
from .products import FlashMmaProducts
from .softmax import FlashMmaSoftmax
from .tma.config import FlashTmaConfig
from .tma.consumers import flash_tma_kernel
from .wave.config import FlashWaveConfig
from .wave.kernel import flash_wave_kernel


def flash_mma_kernel(
    program: Program, problem: FlashProblem, config: FlashMmaConfig
) -> tirx.PrimFunc:
    """Make the kernel."""
    if isinstance(config, FlashTmaConfig):
        return flash_tma_kernel(program, problem, config)
    if isinstance(config, FlashWaveConfig):
        return flash_wave_kernel(program, problem, config)

    def write(where: dict[ir.Var, ir.Expr], first: ir.Expr) -> tirx.Stmt:
        axes = [("threadIdx.y", config.warps), ("threadIdx.x", LANES)]

        def thread(g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
            return _FlashBlock(problem, config, where, first, g, t).stmt()

        return min_blocks_per_sm(each_thread(axes, thread), config.min_blocks)

    return kernel(program, query_blocks(problem, config, write))


def dispatch_on_queries(
    program: Program,
    problem: FlashProblem,
    few: FlashMmaConfig,
    least: int,
    many: FlashMmaConfig,
) -> tirx.PrimFunc:
    """Make two kernels of which the host launches one, by the number of queries.

    Parameters
    ----------
    least
        From how many queries on it is the one for many.
    """
    func, other = (flash_mma_kernel(program, problem, config) for config in (few, many))
    has_few = problem.query.extent < least
    choices = [(has_few, func.body), (tirx.Not(has_few), other.body)]
    return func.with_body(block("root", one_of(choices)))


class _FlashBlock(FlashCopies, FlashMmaProducts, FlashMmaSoftmax, FlashMmaEpilogue):
    """One thread of a block: its part of the rows of its warp."""

    def stmt(self) -> tirx.Stmt:
        """Write all that the thread does."""
        config = self._config
        tiles, stages = self._tiles, config.stages
        if not config.is_async:
            first = [self._issue_queries(), self._q_loads.store(config.block_m, index(0))]
            first += [self._issue_keys(index(0)), self._store_keys(index(0))]
        else:
            first = [self._issue_queries(), self._issue_keys(index(0)), commit()]
        for stage in range(stages - 1):
            first += [self._issue_values(index(stage)), commit()]
            first += [self._issue_keys(index(stage + 1)), commit()]
        pads = [self._q_loads.pad(config.block_m)]
        pads += [self._k_loads.pad(stages * config.block_n)]
        stmts = [
            *self._find_limits(),
            *first,
            *self._keep_limits(),
            *(x for x in pads if x is not None),
            self._initialize(),
            *self._keep_queries(),
            *self._loop(tiles.count),
            *self._finish(),
        ]
        return block_by_address("flash_attention", sequence(stmts), self._buffers)

    def _keep_queries(self) -> list[tirx.Stmt]:
        """Load the fragments of the queries once."""
        if not self._config.q_in_registers:
            return []
        arrived = [wait(2 * self._config.stages - 2)] if self._config.is_async else []
        return [*arrived, storage_sync(), self._load_queries()]

    def _loop(self, count: ir.Expr) -> list[tirx.Stmt]:
        if not self._config.is_ping_pong:
            return [loop("n", count, self._tile if self._config.is_async else self._held_tile)]
        left = tirx.all(self._is_second(), count > 0)
        last = when(left, self._multiply_values(simplified(count - 1)))
        return [loop("n", count, self._shared_tile), last]

    def _is_second(self) -> ir.Expr:
        """Whether this is a thread of the second warpgroup."""
        return self._g >= WARPS

    def _shared_tile(self, n: ir.Expr) -> tirx.Stmt:
        """Let the second warpgroup multiply while the first computes softmax, and conversely."""
        stages = self._config.stages
        before = simplified(n - 1)
        first = sequence([self._multiply_keys(n), self._softmax(n)])
        second = [when(n > 0, self._multiply_values(before)), self._multiply_keys(n)]
        return sequence(
            [
                wait(2 * (stages - 1)),
                fence_proxy(),
                storage_sync(),
                tirx.IfThenElse(self._is_second(), sequence(second), first),
                wait(2 * (stages - 1) - 1),
                fence_proxy(),
                storage_sync(),
                self._issue_values(simplified(n + (stages - 1))),
                commit(),
                self._issue_keys(n + stages),
                commit(),
                tirx.IfThenElse(self._is_second(), self._softmax(n), self._multiply_values(n)),
            ]
        )

    def _tile(self, n: ir.Expr) -> tirx.Stmt:
        stages = self._config.stages
        pending = 2 * (stages - 1)
        proxy = [fence_proxy()] if self._config.uses_wgmma else []
        return sequence(
            [
                wait(pending),
                *proxy,
                storage_sync(),
                self._issue_values(simplified(n + (stages - 1))),
                commit(),
                self._multiply_keys(n),
                self._softmax(n),
                wait(pending),
                *proxy,
                storage_sync(),
                self._issue_keys(n + stages),
                commit(),
                self._multiply_values(n),
            ]
        )

    def _held_tile(self, n: ir.Expr) -> tirx.Stmt:
        """Multiply a tile while the next operand is on its way to registers."""
        return sequence(
            [
                storage_sync(),
                self._issue_values(n),
                self._multiply_keys(n),
                self._softmax(n),
                self._store(self._v_loads, n),
                storage_sync(),
                self._issue_keys(n + 1),
                self._multiply_values(n),
                self._store_keys(n + 1),
            ]
        )
