"""The row kernel on a GPU: a thread block for one or several rows, or several blocks for a row.

grid: ceil(rows / config.rows) * parts blocks; block: config.threads threads for each of its rows
registers: elements of a row that a thread keeps from one pass to the next; others: shared memory
of few blocks: load what all rows share, constants before the wait for the kernel before
for pass over the row (max, sum of exp, normalize, ..):
    for vectors of 16 bytes, every `threads`-th, LOADS_IN_FLIGHT at a time:
        load what only this row needs; compute; partial reductions per thread; store
    block all-reduce of the pass's reductions: warp shuffles, then warps in shared memory, one
    __syncthreads
"""

from collections.abc import Container, Sequence
from dataclasses import replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import map_loads
from ....core.tir.loops import (
    NEAR,
    block,
    ceildiv,
    constant,
    find,
    index,
    kernel,
    loop,
    sequence,
    threads,
)
from ....device import Device
from ....program.program import Program
from ...gpu.launch import dependency_wait, min_blocks_per_sm
from ..program.combiner import Combiner
from ..program.emit import volume
from ..program.passes import Pass, plan_passes
from ..program.row_program import RowProgram, RowStage
from ..program.softmax import with_inverses
from .config import MAX_THREADS_PER_SM, RowConfig
from .forms import WORKING_REGISTERS, RowProblem, row_program_of, shared_limit
from .passes import emit_early_loads, emit_first_rows, emit_pass
from .reductions.arg_extremum import with_extrema_first
from .reductions.half_precision import with_half_precision_math
from .row_groups import group_stride
from .storage import BLOCK_REGISTERS, items_per_thread, place_rows
from .thread_block import ThreadBlock
from .vector_loop import VectorLoop
from .vectorize import vectorize

# Extrema of bytes and short integers, reduced as 32-bit ones on a GPU.
#
# Warps shuffle words only: TVM reduces anything smaller by a tree in shared memory, with a barrier
# before and after, which takes longer than the loads of a short row.
#
#     r = max over c of x[c]            w = max over c of int32(x[c])
#     y = f(r)                          y = f(int8(w))

NARROW = frozenset({"int8", "uint8", "int16", "uint16"})
WIDE = "int32"


def with_wide_integers(program: RowProgram) -> RowProgram:
    """Reduce extrema of narrow integers in 32 bits.

    Returns
    -------
    RowProgram
        The same results; those that were outputs are stored by a map.
    """
    wide: dict[ir.Var, ir.Var] = {}
    stages: list[RowStage] = []
    for stage in program.stages:
        if not _is_narrow_extremum(stage):
            stages.append(stage)
            continue
        (target,) = stage.targets
        extents = [axis.extent for axis in (*stage.rows, *stage.inner)]
        wide[target] = declare(extents, WIDE, f"{target.name}_wide")
        stages.append(_widened(stage, wide[target]))
        if not program.is_internal(target):
            stages.append(_stored(stage, wide[target]))
    if not wide:
        return program

    def narrow(load: ir.TensorLoad) -> ir.Expr:
        own = wide.get(load.source)
        if own is None:
            return load
        read = tirx.BufferLoad(own, list(load.indices)[: len(own.shape)])
        return tirx.Cast(str(load.ty.dtype), read)

    return program.with_stages(stages).map_values(lambda value: map_loads(value, narrow))


def _is_narrow_extremum(stage: RowStage) -> bool:
    """Whether a stage reduces whole rows to one narrow integer each."""
    return (
        stage.combine is not None
        and not stage.inner
        and len(stage.targets) == 1
        and str(stage.targets[0].dtype) in NARROW
        and isinstance(stage.combine.values[0], (tirx.Max, tirx.Min))
        and all(axis.size for axis in stage.reduce)
    )


def _widened(stage: RowStage, target: ir.Var) -> RowStage:
    assert stage.combine is not None
    result, term = tirx.Var("result", WIDE), tirx.Var("term", WIDE)
    kind = type(stage.combine.values[0])
    limit = tirx.min_value if kind is tirx.Max else tirx.max_value
    return replace(
        stage,
        targets=(target,),
        indices=(tuple(axis.var for axis in stage.rows),),
        values=(tirx.Cast(WIDE, stage.values[0]),),
        init=(limit(WIDE),),  # by which TVM recognizes extrema; there is a term
        combine=Combiner((result,), (term,), (kind(result, term),)),
    )


def _stored(stage: RowStage, source: ir.Var) -> RowStage:
    """Store the result where the narrow one was wanted."""
    rows = [axis.var for axis in stage.rows]
    value = tirx.Cast(str(stage.targets[0].dtype), tirx.BufferLoad(source, rows))
    return replace(
        stage, name=f"{stage.name}_result", reduce=(), values=(value,), init=(), combine=None
    )


# Of what all rows share, such as the scale of a norm, in the registers of a thread. No load passes
# a barrier: issued behind the last one, its latency would be added to that of the rows.
EARLY_BYTES = 64
ALL_BYTES = 1 << 10  # of a block of several groups of rows


def schedule_rows_gpu(
    program: Program, config: RowConfig, device: Device, constants: Container[ir.Var] = ()
) -> tirx.PrimFunc:
    """Run a row program in one launch.

    Parameters
    ----------
    config
        Of :func:`.forms.estimate_rows_gpu`.
    constants
        Inputs that no kernel writes.

    Raises
    ------
    ValueError
        If a reduction cannot be split, or what :func:`.forms.estimate_rows_gpu` says.
    """
    rows = row_program_of(program)
    split = RowProblem(with_extrema_first(rows), device)
    rows = split.program if split.holds(config) else rows
    rows = with_half_precision_math(with_inverses(rows), config.one_pass_variance)
    rows = with_wide_integers(rows)
    return row_kernel(rows, config, device, constants)


def row_kernel(
    rows: RowProgram,
    config: RowConfig,
    device: Device,
    constants: Container[ir.Var] = (),
) -> tirx.PrimFunc:
    """Write the kernel of a row program as it is.

    Parameters
    ----------
    rows
        The stages, and the parameters: inputs, scalars and outputs.
    constants
        Inputs that no kernel writes.

    Raises
    ------
    ValueError
        If there is no room for the row buffers.
    """
    groups = ceildiv(volume(rows.rows), config.rows)
    stride = group_stride(groups, config)
    config = config if stride else replace(config, groups_per_block=1)
    storage = place_rows(rows, config, shared_limit(device), copies=True)
    if isinstance(storage, str):
        raise ValueError(storage)
    passes = plan_passes(storage.program)
    parts = blocks_per_row(storage.program, passes, config, device.sm_count or 1)

    blocks = groups * parts if stride is None else index(stride)
    early_bytes = EARLY_BYTES if parts == 1 and _run_at_once(blocks, config, device) else 0
    early_bytes = early_bytes if stride is None else ALL_BYTES

    def body(number: ir.Expr) -> tirx.Stmt:
        owner = ThreadBlock(storage, passes, config, number, parts, early_bytes)
        loops: list[VectorLoop] = []
        if stride is not None:
            owner.stride, owner.turns = stride, ceildiv(groups - number, stride)

        def group(turn: ir.Expr) -> tirx.Stmt:
            owner.turn = turn
            return sequence([stmt for one in passes for stmt in emit_pass(owner, one, loops)])

        stmts = loop("turn", owner.turns, group)
        owner.turn = index(0)
        before = emit_early_loads(owner, loops, constants, True)
        behind = emit_early_loads(owner, loops, constants, False)
        wait = [dependency_wait()] if before and device.dependent_launch else []
        ahead = emit_first_rows(owner, loops)
        stmt = sequence([*before, *wait, *ahead, *behind, stmts])
        stmt = block("rows", stmt, owner.buffers)
        has_bound = owner.row_registers > 0 and _loads_shared(stmt)
        has_bound = device.kind == "cuda" and (has_bound or config.min_blocks_per_sm is not None)
        return _with_occupancy(stmt, owner) if has_bound else stmt

    return kernel(rows, threads("blockIdx.x", blocks, body))


def _run_at_once(blocks: ir.Expr, config: RowConfig, device: Device) -> bool:
    """Whether all blocks run at the same time, so that none hides what another waits for."""
    count, most = constant(blocks), (device.max_threads_per_sm or MAX_THREADS_PER_SM)
    each = most // (config.threads * config.rows)
    return count is not None and count <= each * (device.sm_count or 0)


def _loads_shared(body: tirx.Stmt) -> bool:
    """Whether rows load vectors that all of them share, such as the scale of a norm."""
    return any(NEAR in copy.annotations for copy in find(body, tirx.For))


def _with_occupancy(body: tirx.Stmt, owner: ThreadBlock) -> tirx.Stmt:
    """Bound the blocks of a multiprocessor by the registers of a thread.

    The compiler then has registers for what rows share, such as the scale of a norm, and no more;
    left alone, it takes too few, and waits for each vector, or so many that blocks wait.
    """
    if owner.config.min_blocks_per_sm is not None:
        return min_blocks_per_sm(body, owner.config.min_blocks_per_sm)
    each = owner.row_registers + owner.early_words + WORKING_REGISTERS
    count = BLOCK_REGISTERS // (each * owner.config.threads * owner.config.rows)
    return body if count < 1 else min_blocks_per_sm(body, count)


# Few long rows on a GPU: several blocks for one row, which share its last pass.
#
# grid: blocks_per_row blocks for every `rows` rows
#     passes before the last:  every block reduces the whole row(s), from L2 after the first block
#     last pass:               every block computes and stores its own part of the vectors
# Each block of a row reads all of it, so that more blocks soon need more bandwidth of the L2 cache
# than they save.
MAX_BLOCKS_PER_ROW = 4


def blocks_per_row(
    program: RowProgram, passes: Sequence[Pass], config: RowConfig, multiprocessors: int
) -> int:
    """Choose how many blocks share the last pass over a row.

    Where there are fewer rows than multiprocessors, several blocks reduce the same row, without
    waiting for each other, and each writes its part of the last pass. That pays where a thread has
    several vectors of a row to compute and write.

    Parameters
    ----------
    program
        The stages, their buffers placed.
    """
    *before, last = passes
    rows = [axis.size for axis in program.rows]
    outside = [
        target
        for one in before
        for stage in one.stages
        for target in stage.targets
        if not program.is_internal(target)
    ]
    # A last pass that is a sum over rows has no order of its results.
    is_written_only = all(stage.is_map for stage in last.stages)
    if not before or outside or not is_written_only or config.rows_first or None in rows:
        return 1
    if config.keeps_shared:
        return 1
    vectors = vectorize(program, last.loop_axes)
    if not vectors.is_unconditional:
        return 1
    blocks = 1
    for size in rows:
        blocks *= size or 1
    blocks = -(-blocks // config.rows)
    steps = items_per_thread(last.loop_axes, config.threads, vectors) or 1
    return max(1, min(multiprocessors // blocks, steps, MAX_BLOCKS_PER_ROW))
