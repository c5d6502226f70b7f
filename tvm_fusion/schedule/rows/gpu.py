"""Row programs on a GPU: one launch, a thread block for one or several rows, or several for one."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, sym, tirx
from tvm.target import Target

from ...core.loops import NEAR, find
from ...device import Device, parse
from ..gpu.launch import STATIC_SHARED_BYTES, min_blocks_per_sm
from .block import Block
from .emit import integer, opaque, sequence, threads_of, volume
from .geometry import Geometry, choose_geometry
from .parts import parts_of
from .passes import plan_passes
from .precision import loosened
from .registers import BLOCK_REGISTERS
from .softmax import with_inverses
from .stages import RowStages, read_stages
from .storage import Storage, place_rows
from .threads import emit_walk

WARP = 32
WORKING_REGISTERS = 44  # 32-bit ones of a thread, beside its rows


@dataclass(frozen=True)
class RowEstimate:
    """What a block of a row kernel will take.

    Attributes
    ----------
    launches : int
        Always one.
    threads : int
        Threads of a block.
    shared_bytes : int
        Static shared memory for row buffers; the exchange between warps comes on top.
    """

    launches: int
    threads: int
    shared_bytes: int


def schedule_rows_gpu(func: tirx.PrimFunc, rows: int, target: Target) -> tirx.PrimFunc:
    """Run a row program in one launch.

    Parameters
    ----------
    func : tirx.PrimFunc
        Canonical stages, as ``Program.prim_func`` gives them.
    rows : int
        Number of row axes; 0 for a single row without an axis.
    target : Target
        A CUDA or ROCm target; its attributes are the limits.

    Returns
    -------
    tirx.PrimFunc
        The same function as loops bound to blocks and threads, still over SBlocks.

    Raises
    ------
    ValueError
        If the function is not canonical, or what :func:`estimate_rows_gpu` says.
    """
    program = loosened(with_inverses(read_stages(func, rows)))
    placed = _place(program, target, copies=True)
    if isinstance(placed, str):
        raise ValueError(placed)
    storage, geometry = placed
    passes = plan_passes(storage.program)

    parts = parts_of(storage.program, passes, geometry, parse(target).device.sm_count or 1)

    def rows_of(number: ir.Expr) -> tirx.Stmt:
        block = Block(storage, passes, geometry, number, parts)
        body = sequence([stmt for one in passes for stmt in emit_walk(block, one)])
        body = opaque("rows", body, block.buffers)
        is_known = target.kind.name == "cuda" and block.row_registers > 0
        return _resident(body, block, geometry) if is_known and _reads_near(body) else body

    count = volume(storage.program.rows)
    blocks = tirx.floordiv(count + (geometry.rows - 1), integer(geometry.rows)) * parts
    grid = threads_of("block", sym.Analyzer().simplify(blocks), "blockIdx.x", rows_of)
    return func.with_body(opaque("root", grid))


def estimate_rows_gpu(func: tirx.PrimFunc, rows: int, target: Target | Device) -> RowEstimate | str:
    """Say what a kernel will take, without building it.

    Parameters
    ----------
    func, rows
        As for :func:`schedule_rows_gpu`.
    target : Target or Device
        Whose limits count.

    Returns
    -------
    RowEstimate or str
        The figures, or why it cannot be done: a sentence.
    """
    try:
        program = read_stages(func, rows)
    except ValueError as reason:
        return f"{reason}."
    placed = _place(program, target, copies=False)
    if isinstance(placed, str):
        return placed
    storage, geometry = placed
    return RowEstimate(1, geometry.threads * geometry.rows, storage.shared_bytes)


def _reads_near(body: tirx.Stmt) -> bool:
    return any(NEAR in copy.annotations for copy in find(body, tirx.For))


def _resident(body: tirx.Stmt, block: Block, geometry: Geometry) -> tirx.Stmt:
    """Tell the compiler how many blocks are to find room at once.

    It then has registers for what each element meets that rows share, such as the scale of a norm,
    and no more; left alone, it takes too few, waiting for each vector, or so many that blocks wait.
    """
    each = block.row_registers + WORKING_REGISTERS
    count = BLOCK_REGISTERS // (each * geometry.threads * geometry.rows)
    return body if count < 1 else min_blocks_per_sm(body, count)


def _place(
    program: RowStages, target: Target | Device, copies: bool
) -> tuple[Storage, Geometry] | str:
    if isinstance(target, Device):
        kind = target.kind
        most = target.max_threads_per_block or 1024
        shared = target.shared_memory_per_block or STATIC_SHARED_BYTES
        warp = target.warp_size or WARP
    else:
        kind = target.kind.name
        most = int(target.attrs.get("max_num_threads", 1024))
        shared = int(target.attrs.get("max_shared_memory_per_block", STATIC_SHARED_BYTES))
        warp = int(target.attrs.get("thread_warp_size", WARP))
    # TVM has shuffles of whole AMD waves only.
    geometry = choose_geometry(program, most, warp, whole_warps=kind == "rocm")
    storage = place_rows(program, geometry, min(shared, STATIC_SHARED_BYTES), copies)
    return storage if isinstance(storage, str) else (storage, geometry)
