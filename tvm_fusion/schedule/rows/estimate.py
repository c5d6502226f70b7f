"""What a row kernel takes besides arithmetic and bytes: waits, branches, strided accesses."""

import math
from collections.abc import Sequence

from tvm import DataType, ir

from ...core.contract.kernel_work import KernelWork
from ...core.tir.expressions import variables
from ...device import Device
from ...ecg.work import at
from ...program.contractions import is_contraction
from ...program.program import Program
from ...program.stage import Stage
from ..index.address import known_step
from ..index.estimate import points, terms
from ..index.strides import strided_access_cost
from .cpu.config import CpuRowConfig, width_in_blocks
from .gpu.forms import RowEstimate, has_branches
from .program.read import count_rows

MOST_UNROLLED = 32  # terms of a thread, of which more wait for loads
# 40 ns at 150 GFLOP/s of one multiprocessor. On one H200, layer norms of 197 tokens of 768 elements
# in one block took 193 us (benchmarks/gpu_models): 4,608 loads one after the other.
OPERATIONS_A_LOAD = 6000
LONG = 256  # terms, from which on they are not loaded ahead
# 15 ns, of those that are: see _columns of elementwise/gpu/config.py.
OPERATIONS_A_LOAD_AHEAD = 2400
# 650 ns: on one H200, the means of 32 channels of 112 x 112 pixels, channels last, took 512 us in
# steps of one load a thread, of 16 threads a row (benchmarks/gpu_models).
OPERATIONS_A_STRIDED_LOAD = 16 * OPERATIONS_A_LOAD
# Of a block that loads single elements behind branches, such as those of a concatenation. On one
# H200, group norms of 1,920 concatenated channels of 32 x 32 pixels took 126 us, 11 behind a
# concatenation of its own (benchmarks/gpu_models).
OPERATIONS_A_BRANCH = 96
LONG_BRANCHED = 1 << 12  # elements
# Of a short reduction by one thread, which loads its terms one by one: on one H200, 3x3 pooling of
# 8x64x112x112 took 12.6 us, 4.3 by vectors of channels.
OPERATIONS_AN_ELEMENT = 12
SECTOR = 32  # bytes that memory gives at least


def read_again(program: Program) -> int:
    """Count the bytes that further rows read because each reduces the same scalars by itself."""
    found = 0
    for stage in program.stages:
        rows = {axis.var for axis in stage.axes}
        count = terms(stage)
        for read in () if stage.is_map else stage.loads:
            if read.source in program.inputs and not any(variables(i) & rows for i in read.indices):
                found += count * DataType(str(read.source.ty.dtype)).itemsize
    return (count_rows(program) - 1) * found


def obstacles(program: Program, config: CpuRowConfig) -> int:
    """Count the operations that strided accesses and branches cost vectors of rows or elements."""
    outer, width = max(program.row_rank - 1, 0), width_in_blocks(program, config.width)
    return sum(
        strided_access_cost(s, [*s.axes[outer:], *s.reduce], branches=True, width=width)
        for s in program.stages
    )


def waits(program: Program, estimate: RowEstimate, device: Device) -> int:
    """Count the operations that a multiprocessor could do while its only block waits for loads.

    A reduction inside a row, such as the norm of each token where a whole sequence is one row, is
    one thread's for each of its results: term after term, each a load of its own.
    """
    rows = count_rows(program)
    strided = _strided_steps(program, estimate)
    units = min(-(-rows // estimate.config.rows), device.sm_count or 1)
    waits = units * strided * OPERATIONS_A_STRIDED_LOAD
    waits += _single_elements(program, estimate) * OPERATIONS_AN_ELEMENT
    if rows >= (device.sm_count or 1):
        return waits
    loads_ = branches = 0
    for stage in program.stages:
        inner = math.prod(at(axis.extent) for axis in stage.axes[program.row_rank :])
        count = terms(stage)
        is_inside = inner > 1 and not stage.is_map and not is_contraction(stage)
        if is_inside and count > MOST_UNROLLED:
            each = OPERATIONS_A_LOAD if count >= LONG else OPERATIONS_A_LOAD_AHEAD
            loads_ += -(-inner // estimate.config.threads) * count * each
        if inner * count >= LONG_BRANCHED and has_branches(stage, program.row_rank):
            branches += inner * count
    return rows * (loads_ + branches * OPERATIONS_A_BRANCH) + waits


def row_work(program: Program, estimate: RowEstimate, device: Device) -> KernelWork:
    """Count the elements that threads load or store one by one, and what a thread waits for.

    Neighbouring threads find them far apart in memory, or load them where a condition of their
    place holds, as halves of a rotary embedding.
    """
    units = min(count_rows(program), device.sm_count or 1)
    waiting = waits(program, estimate, device) / OPERATIONS_A_LOAD / max(1, units)
    loads = stores = 0
    for stage in program.stages:
        along = _along(stage, program.row_rank, estimate)
        if along is None:
            continue
        axes = [axis.var for axis in (*stage.axes, *stage.reduce)]

        def is_far(
            buffer: ir.Var, where: Sequence[ir.Expr], along: ir.Var = along, axes: list = axes
        ) -> bool:
            if not any(along in variables(i) for i in where):
                return False
            step = known_step(buffer, where, along, axes)
            size = DataType(str(buffer.ty.dtype)).itemsize
            return step is None or abs(step) * size > SECTOR

        count = points(stage) * terms(stage)
        read = {(x.source, str(x.indices)): x for x in stage.loads if x.source in program.inputs}
        is_single = has_branches(stage, program.row_rank)
        loads += count * sum(is_single or is_far(x.source, x.indices) for x in read.values())
        for buffer, where in zip(stage.targets, stage.indices, strict=True):
            stores += points(stage) * (buffer in program.outputs and is_far(buffer, where))
    return KernelWork(
        element_loads=float(loads),
        thread_loads=waiting,
        element_stores=float(stores),
        reread_bytes=estimate.reread_bytes,
    )


def _along(stage: Stage, row_rank: int, estimate: RowEstimate) -> ir.Var | None:
    """Return the axis along which neighbouring threads lie."""
    if estimate.config.rows_first:
        inside = stage.axes[:row_rank]
    else:
        inside = (*stage.axes[row_rank:], *stage.reduce)
    wide = [axis for axis in inside if axis.size != 1]
    return wide[-1].var if wide else None


def parallelism(program: Program, estimate: RowEstimate | None) -> int:
    """Count rows, or blocks of neighbouring ones where threads run along them."""
    rows = count_rows(program)
    if estimate is None or not estimate.config.rows_first:
        return rows
    return -(-rows // estimate.config.rows)


def _strided_steps(program: Program, estimate: RowEstimate) -> int:
    """Count the loads of a thread one after the other where threads run along neighbouring rows."""
    config = estimate.config
    if not config.rows_first:
        return 0
    longest = max(map(terms, program.stages))
    steps = -(-longest // config.threads)
    return steps if steps > MOST_UNROLLED else 0


def _single_elements(program: Program, estimate: RowEstimate) -> int:
    """Count the terms of short reductions where neighbouring threads have a row each."""
    if not estimate.config.rows_first:
        return 0
    sizes = [
        math.prod(at(axis.extent) for axis in stage.axes) * terms(stage)
        for stage in program.stages
        if not stage.is_map and terms(stage) <= MOST_UNROLLED
    ]
    return sum(sizes)
