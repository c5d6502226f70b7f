"""Which threads of a GPU take rows, and where these are kept: the first form in this table.

    extremum, then its index   argmax in two reductions, of a row that registers hold
    a thread a row             reductions that threads cannot share; few elements of rows that are
                               side by side in memory
    lanes along rows           rows side by side in memory: neighbouring threads have a row each
    groups of rows             short unaligned rows: a block keeps what they share from group to
                               group
    in registers               each thread keeps its part of a row from pass to pass
    two blocks, read again     long rows of two blocks: while one reduces, the other one loads
    a block, read again        what passes hand on lies in shared memory, or is computed again

Which one is taken is a rule; no model tells their times. Few long rows are better in two launches
(:mod:`..split.forms`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm import DataType, ir

from ....core.contract.forms import Row, first_of, other_form
from ....core.contract.template import Refusal
from ....core.tir.expressions import call_name, variables
from ....core.tir.loops import constant, find
from ....device import Device
from ....ecg.work import at
from ....program.program import Program
from ....program.stage import Stage
from ...gpu.launch import STATIC_SHARED_BYTES
from ...index.address import offset
from ..program.emit import static_volume
from ..program.passes import equal_axes, vector_axes
from ..program.row_program import RowProgram, row_program, stride
from .config import RowConfig, longest_loop, row_config
from .reductions.arg_extremum import with_extrema_first
from .reductions.one_pass_variance import sum_of_deviations
from .reductions.split_form import with_axes_of_maps
from .row_groups import grouped
from .storage import BLOCK_REGISTERS, RegisterBudget, copy_inputs, place_rows, repeated_bytes
from .vectorize import shares_vectors, streams_of, vectorize


def run_bytes(program: RowProgram) -> int:
    """Count the contiguous bytes of a row; 0 where some access is strided.

    Parameters
    ----------
    program
        Of a GPU, its rows of static extents.
    """
    loop = longest_loop(program)
    alike = [s for s in program.stages if equal_axes(s.loop_axes, loop)]
    axes = [stage.loop_axes for stage in alike]
    order, fused = vector_axes(alike, axes)
    size = 16
    for stage, own in zip(alike, axes, strict=True):
        accesses = [(x.source, x.indices) for x in stage.loads]
        accesses += list(zip(stage.targets, stage.indices, strict=True)) if stage.is_map else []
        for buffer, where in accesses:
            if program.is_internal(buffer):
                continue
            steps = stride(offset(buffer, where), [own[order[-1]]])
            if steps is None or constant(steps[0]) not in (0, 1):
                return 0
            if constant(steps[0]) == 1 and len(buffer.shape) > 1:
                size = min(size, DataType(str(buffer.dtype)).itemsize)
    return size * math.prod(at(loop[i].extent) for i in order[-fused:])


def has_branches(stage: Stage, rows: int) -> bool:
    """Tell whether elements of a row are loaded where a condition of their place holds.

    Parameters
    ----------
    rows
        Its axes that are rows.
    """
    axes = {axis.var for axis in (*stage.axes[rows:], *stage.reduce)}
    return any(
        axes & variables(call.args[0])
        for value in stage.values
        for call in find(value, ir.Call)
        if call_name(call) == "if_then_else"
    )


# Of a row that is read again in every pass: while one block reduces, another one loads. On one
# H200, softmax of 512 x 50257 float16 took 37 us so, and 46 in a block of 800 threads; 512 x 65536
# 51 (53), 1000 x 32000 40 (44), and 300 x 33001 19.2 either way.
REREAD_THREADS, REREAD_BLOCKS = 512, 2
MAX_REREAD_ELEMENTS = 128  # of a thread: the loops over them are unrolled

# Threads of all rows, for each multiprocessor: so few blocks follow each other on it that they do
# not hide each other's barriers, of which a variance in one pass with its mean has one less. On one
# H100, layer norms with GELU of 4016x3184 float16 take 20.6 us so, and 22.2 in two passes, of
# 9381x1008 15.7 (16.1), of 2244x4808 18.5 (20.0), of 2138x8552 30.9 (31.8), but of 1314x11776 26.2
# (25.4), and of many rows as long or longer than before. On one H200, whose memory is faster,
# aligned rows that a kernel reads once gain up to more of them: of 15349x2928 float16 48.3 us
# (55.6), of 19402x1576 bfloat16 37.4 (37.6); unaligned ones lose: of 3928x3726 float16 22.6 (21.5).
FEW_WAVES = 1024, 5 * 1024
MOST_ALIGNED = 12 * 1024
MAX_ONE_PASS = 10000  # elements
WORKING_REGISTERS = 44  # 32-bit ones of a thread, besides its rows
# Of a thread with few elements, and for each of the row that it computes with; others have one.
FEW_REGISTERS, ELEMENT_REGISTERS = 20, 3


@dataclass(frozen=True, eq=False)
class RowProblem:
    """A row program on a GPU."""

    program: RowProgram  # what is computed
    device: Device  # A GPU

    @cached_property
    def threads(self) -> RowConfig:
        """Threads of a row and rows of a block, by their shape."""
        config = row_config(self.program, self.device)
        if _has_few_waves(self.program, config, self.device) and self.has_variance:
            return replace(config, one_pass_variance=True)
        return config

    @property
    def has_variance(self) -> bool:
        """Whether a reduction is a sum of squared deviations from a mean."""
        stages = self.program.stages
        return any(sum_of_deviations(self.program, stage) is not None for stage in stages)

    def holds(self, config: RowConfig) -> bool:
        """Whether registers hold what several passes load."""
        return RegisterBudget(config).hold_all(self._copied)

    @cached_property
    def _copied(self) -> RowProgram:
        return copy_inputs(self.program)


@dataclass(frozen=True, eq=False)
class RowForm:
    """A form of a row kernel."""

    program: RowProgram  # what is computed: of an argmax, one reduction or two
    config: RowConfig  # threads of a row, rows of a block


Found = RowForm | Refusal


def _extremum_first(rows: RowProblem) -> Found:
    split = replace(rows, program=with_extrema_first(rows.program))
    if len(split.program.stages) == len(rows.program.stages):
        return other_form("It is not an argmax or argmin of floating point numbers.")
    form = first_form(split, ROWS[1:])
    if split.holds(form.config):
        return form
    return other_form("A row does not fit into registers, and two reductions would read it twice.")


def _thread_a_row(rows: RowProblem) -> Found:
    config = rows.threads
    if config.rows_first and config.threads == 1:
        return RowForm(rows.program, config)
    return other_form(f"{config.threads} threads share a row and its reductions.")


def _lanes_along_rows(rows: RowProblem) -> Found:
    if rows.threads.rows_first:
        return RowForm(rows.program, rows.threads)
    return other_form("Neighbouring rows are not adjacent in memory.")


def _groups(rows: RowProblem) -> Found:
    found = grouped(rows.program, rows.threads, rows.device)
    return found if isinstance(found, Refusal) else RowForm(rows.program, found)


def _in_registers(rows: RowProblem) -> Found:
    if rows.holds(rows.threads):
        return RowForm(rows.program, rows.threads)
    if any(axis.size is None for axis in longest_loop(rows.program)):
        return other_form("The length of a row is symbolic.")
    return other_form(f"Registers of {rows.threads.threads} threads do not hold a row.")


def _two_blocks(rows: RowProblem) -> Found:
    config, loop = rows.threads, longest_loop(rows.program)
    if rows.device.kind != "cuda":
        return other_form("It was measured on NVIDIA GPUs only.")
    if config.threads < REREAD_THREADS:
        return other_form(f"A row has {config.threads} threads, fewer than {REREAD_THREADS}.")
    blocks, units = static_volume(rows.program.rows, 0) // config.rows, rows.device.sm_count or 1
    if blocks < REREAD_BLOCKS * units:
        return other_form(
            f"{blocks} blocks are fewer than {REREAD_BLOCKS} for each of {units} multiprocessors."
        )
    vectors = vectorize(rows.program, loop)
    if not vectors.is_unconditional:
        return other_form("Loads of some elements are conditional, and are not vectorized.")
    elements = -(-vectors.count(static_volume(loop, 0)) // REREAD_THREADS) * vectors.width
    if elements > MAX_REREAD_ELEMENTS:
        return other_form(
            f"Each of {REREAD_THREADS} threads would have {elements} elements of a row, more than "
            f"{MAX_REREAD_ELEMENTS}."
        )
    bounded = replace(
        config,
        threads=REREAD_THREADS,
        row_elements=max(config.row_elements, elements),
        min_blocks_per_sm=REREAD_BLOCKS,
    )
    return RowForm(rows.program, bounded)


def _read_again(rows: RowProblem) -> Found:
    return RowForm(rows.program, rows.threads)


ROWS: tuple[Row[RowForm], ...] = (
    Row("extremum, then its index", _extremum_first),
    Row("a thread a row", _thread_a_row),
    Row("lanes along rows", _lanes_along_rows),
    Row("groups of rows", _groups),
    Row("in registers", _in_registers),
    Row("two blocks, read again", _two_blocks),
    Row("a block, read again", _read_again),
)


def first_form(rows: RowProblem, table: Sequence[Row[RowForm]] = ROWS) -> RowForm:
    """Take the first form that rows have; every one has the last."""
    form = first_of(table, rows)
    assert isinstance(form, RowForm)
    return form


def default_config(program: RowProgram, device: Device) -> RowConfig:
    """Choose a configuration of a program, whose reductions stay as they are."""
    return first_form(RowProblem(program, device), ROWS[1:]).config


@dataclass(frozen=True)
class RowEstimate:
    """The configuration of a row kernel, and what it takes."""

    config: RowConfig  # threads of a block
    # Static shared memory for row buffers; the exchange between warps comes on top.
    shared_bytes: int
    registers: int  # of a thread, where launch bounds decide how many it gets; otherwise 0
    reread_bytes: int  # what all rows read again in later passes


def estimate_rows_gpu(program: Program, device: Device) -> RowEstimate | Refusal:
    """Choose the configuration of a row kernel, without building it.

    Returns
    -------
    RowEstimate or Refusal
        The figures, or why there is no kernel.
    """
    rows = read_rows(program, device)
    return rows if isinstance(rows, Refusal) else estimated(rows, first_form(rows))


def estimated(rows: RowProblem, form: RowForm) -> RowEstimate | Refusal:
    """Tell what a form of a program takes, or that there is no room for its rows."""
    storage = place_rows(rows.program, form.config, shared_limit(rows.device), copies=False)
    if isinstance(storage, str):
        return Refusal("row_too_long", storage)
    is_cuda = rows.device.kind == "cuda"
    registers = _claimed_registers(rows.program, form.config) if is_cuda else 0
    reread = 0 if rows.holds(form.config) else repeated_bytes(rows.program)
    return RowEstimate(form.config, storage.shared_bytes, registers, reread)


def read_rows(program: Program, device: Device) -> RowProblem | Refusal:
    """Read a program as rows, or name the reduction that has no combiner."""
    try:
        return RowProblem(row_program_of(program), device)
    except ValueError as reason:
        return Refusal("no_combiner", f"{reason}.")


def row_program_of(program: Program) -> RowProgram:
    """Build the row program; sums loop over their elements in the order of the maps.

    Raises
    ------
    ValueError
        Naming a reduction that cannot be split into terms and a combiner.
    """
    return with_axes_of_maps(row_program(program))


def tunable_rows(program: Program, device: Device) -> RowProgram:
    """Return the form of a row program that :func:`estimate_rows_gpu` configures."""
    return first_form(RowProblem(row_program_of(program), device)).program


def shared_limit(device: Device) -> int:
    """Return the bytes of shared memory that a block of rows may declare."""
    return min(device.shared_memory_per_block or STATIC_SHARED_BYTES, STATIC_SHARED_BYTES)


def _claimed_registers(rows: RowProgram, config: RowConfig) -> int:
    """Estimate the registers that launch bounds leave a thread; 0 where there are none."""
    if config.min_blocks_per_sm is not None:
        return BLOCK_REGISTERS // (config.threads * config.rows * config.min_blocks_per_sm) // 8 * 8
    is_vector_loop = vectorize(rows, longest_loop(rows)).is_unconditional
    if config.rows_first or not is_vector_loop or not shares_vectors(rows):
        return 0
    copied, room = copy_inputs(rows), RegisterBudget(config)
    if not room.hold_all(copied):
        return 0
    kept = room.kept(copied)
    held, elements = (sum(one) for one in zip(*kept, strict=True)) if kept else (0, 0)
    largest = max((own for _, own in kept), default=0)
    wanted = FEW_REGISTERS + elements + (ELEMENT_REGISTERS - 1) * largest
    return min(held // 4 + WORKING_REGISTERS, wanted)


def _has_few_waves(program: RowProgram, config: RowConfig, device: Device) -> bool:
    loop, (least, most) = longest_loop(program), FEW_WAVES
    vectors = vectorize(program, loop)
    is_whole = vectors.width == vectors.full_width and streams_of(program, loop) == 1
    if is_whole and config.threads > config.warp_size:  # a warp alone has no barriers
        most = MOST_ALIGNED
    threads = static_volume(program.rows, 0) * config.threads / (device.sm_count or 1)
    size = static_volume(loop, MAX_ONE_PASS + 1)
    return device.kind == "cuda" and least <= threads <= most and size <= MAX_ONE_PASS
