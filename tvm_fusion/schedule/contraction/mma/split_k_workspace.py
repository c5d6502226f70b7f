"""Split-K without clusters: partial sums in global memory, added up by a second kernel.

first kernel, block (tile of C, rank):
  main loop: acc of every thread, over the rank's part of K                   (mainloop)
  workspace[tile, rank, fragment, thread] = acc                      4 sums, 16 bytes a thread
second kernel, block (tile of C):
  acc = workspace[tile, 0] + workspace[tile, 1] + ..                 ranks in their order
  epilogue, as of one block that has all of K                 (tile/shared_epilogue)

Fragments stay as registers hold them, so that neighbouring threads have neighbouring vectors, and
the epilogue need not know. Sums are the same in every run: no atomic operation orders them.
"""

from dataclasses import replace

from tvm import ir, relax, tirx

from ...._tvm.ir.buffer import declare, scratch
from ....core.contract.template import Emission, Kernel, Slot
from ....core.tir.expressions import load
from ....core.tir.loops import block, index, kernel, local, sequence, threads, unrolled, vectorized
from ....program.group import Group
from ....program.program import Program
from ...gpu.launch import min_blocks_per_sm
from ...gpu.memory.shared_tiles import touch
from ..tile.config import TileGemmConfig
from ..tile.results.shared_epilogue import TileEpilogue
from .mainloop import TileAccumulators, TileMmaMainloop

SUM_BYTES = 4


def split_k_kernels(program: Program, config: TileGemmConfig, group: Group) -> Emission:
    """Make the kernel of partial sums and the one that adds them up.

    Parameters
    ----------
    config
        The product, of static extents, with ``split_k`` ranks.
    """
    shape = [index(config.workspace_elements)]
    workspace = declare(shape, config.problem.contraction.dtype, "partial_sums")
    inputs = tuple(Slot("input", i) for i in range(len(group.inputs)))
    scalars = tuple(Slot("scalar", i) for i in range(len(group.scalars)))
    outputs = tuple(Slot("output", i) for i in range(len(group.outputs)))
    between = (Slot("workspace", 0),)
    first = replace(program, outputs=(workspace,))
    second = replace(program, inputs=(*program.inputs, workspace))
    return Emission(
        (
            Kernel(_partial_sums(first, config, workspace), (*inputs, *scalars), between),
            Kernel(_reduction(second, config, workspace), (*inputs, *between, *scalars), outputs),
        ),
        (relax.TensorType(shape, config.problem.contraction.dtype),),
    )


def _partial_sums(program: Program, config: TileGemmConfig, workspace: ir.Var) -> tirx.PrimFunc:
    shared = scratch(
        [index(config.tile.stages * config.tile.stage_bytes // 4)],
        "float32",
        "tiles",
        scope=config.problem.moves.scope,
    )

    def body(number: ir.Expr) -> tirx.Stmt:
        def of_thread(thread: ir.Expr) -> tirx.Stmt:
            loop_ = TileMmaMainloop(config, config.grid.tile_of(number), shared)

            count = config.problem.mma.c.per_lane

            def store(fragment: ir.Expr) -> tirx.Stmt:
                to, first = _place(config, number, fragment, thread), fragment * count
                return vectorized(
                    count,
                    lambda lane: tirx.BufferStore(
                        workspace, load(loop_.acc, [first + lane]), [to + lane]
                    ),
                )

            stored = unrolled("fragment", config.accumulators // count, store)
            stmts = sequence([loop_.stmt(thread), stored])
            return block("partial_sums", stmts, [*loop_.buffers, shared])

        return min_blocks_per_sm(threads("threadIdx.x", config.threads, of_thread), 1)

    return kernel(program, threads("blockIdx.x", config.blocks, body))


def _reduction(program: Program, config: TileGemmConfig, workspace: ir.Var) -> tirx.PrimFunc:
    # Shared memory is for the epilogue alone: two stages hold a tile of sums, or half of it.
    whole = config.with_tile(split_k=1, stages=2)
    shared = scratch(
        [index(whole.shared_bytes // 4)], "float32", "tiles", scope=config.problem.moves.scope
    )

    def body(number: ir.Expr) -> tirx.Stmt:
        def of_thread(thread: ir.Expr) -> tirx.Stmt:
            place = whole.grid.tile_of(number)
            sums = _WorkspaceSums(config, workspace)
            epilogue = TileEpilogue(whole, place, sums, shared)
            buffers = [*sums.buffers, shared]
            whole_ones = [touch(x, int(x.ty.shape[0]) - 1) for x in buffers]
            stmts = [*whole_ones, sums.stmt(number, thread), epilogue.stmt(thread)]
            return block("add_up", sequence(stmts), buffers)

        return min_blocks_per_sm(threads("threadIdx.x", config.threads, of_thread), 1)

    return kernel(program, threads("blockIdx.x", whole.blocks, body))


class _WorkspaceSums(TileAccumulators):
    """Accumulators that are sums of those of all ranks."""

    def __init__(self, config: TileGemmConfig, workspace: ir.Var) -> None:
        super().__init__(config)
        self._workspace = workspace
        self._partial = local(
            "rank_sums", [config.problem.mma.c.per_lane], config.problem.contraction.dtype
        )
        self.buffers.append(self._partial)

    def stmt(self, tile: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Add up the fragments of a tile."""
        config, count = self._config, self._config.problem.mma.c.per_lane

        def of_rank(rank: int, fragment: ir.Expr, to: ir.TensorLoad) -> tirx.Stmt:
            place = _place(config, tile * config.tile.split_k + rank, fragment, thread)
            element = load(self._workspace, [place])
            return self._config.problem.moves.load(to, element, SUM_BYTES * count)

        def add_up(fragment: ir.Expr) -> tirx.Stmt:
            first = fragment * count
            stmts = [of_rank(0, fragment, load(self.acc, [first]))]
            for rank in range(1, config.tile.split_k):
                stmts.append(of_rank(rank, fragment, load(self._partial, [index(0)])))
                for lane in range(count):
                    total = load(self.acc, [first + lane]) + load(self._partial, [index(lane)])
                    stmts.append(tirx.BufferStore(self.acc, total, [first + lane]))
            return sequence(stmts)

        return unrolled("fragment", config.accumulators // count, add_up)


def _place(config: TileGemmConfig, number: ir.Expr, fragment: ir.Expr, thread: ir.Expr) -> ir.Expr:
    """Find the vector of a thread's fragment, of a block of the first kernel."""
    count = config.problem.mma.c.per_lane
    fragments = config.accumulators // count
    return ((number * fragments + fragment) * config.threads + thread) * count
