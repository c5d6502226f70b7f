"""The template for few long rows: one launch reduces parts of rows, another one maps them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvm import DataType, relax
from tvm.target import Target

from ...core.loops import constant
from ...core.template import Claim, Emission, Kernel, Refusal, Slot, Template
from ...device import Device, device_of
from ...ecg.work import at
from ...program.group import Group
from ...program.program import Program
from ...program.stage import Unstructured
from ..address import offset
from ..estimate import flops, too_many_parameters, traffic
from .config_gpu import RowConfig, longest_loop, row_config
from .gpu import row_kernel
from .half_precision import with_half_precision_math
from .passes import equal_axes, vector_axes
from .row_program import RowProgram, row_program, stride
from .softmax import with_inverses
from .split_reduction import SplitReduction, split_reduction

BLOCKS_PER_SM = 4  # of both launches
MIN_PART = 1 << 12  # elements: of less, a block takes longer to start than to read
SECTOR_BYTES = 32  # that a cache moves at once
MIN_ROW = 1 << 15  # elements, below which a block's threads have a row in their registers
_NOT_MINE = "not_mine"


@dataclass(frozen=True, eq=False)
class SplitRowsConfig:
    """Both row programs, and how their threads run.

    Attributes
    ----------
    split : SplitReduction
        The programs.
    first, second : RowConfig
        Of each.
    run_bytes : int
        Contiguous bytes of a part of a row, at least.
    """

    split: SplitReduction
    first: RowConfig
    second: RowConfig
    run_bytes: int


class SplitRows(Template):
    """Norms of few long rows, such as the groups of an image: two launches.

    One block for a row would leave multiprocessors idle; several that reduce all of it read it
    several times.
    """

    name = "split_rows"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim sums over few long rows, then maps over the same elements."""
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        if device.kind != "cuda" or all(stage.is_map for stage in program.stages):
            return Refusal(_NOT_MINE, "There is no reduction, or the device is no NVIDIA GPU.")
        refusal = too_many_parameters(program)
        if refusal is not None:
            return refusal
        units = device.sm_count or 1
        rows = math.prod(at(axis.extent) for axis in program.stages[0].axes[: program.rows])
        if rows >= units:
            return Refusal(_NOT_MINE, f"{rows} rows are enough for all {units} multiprocessors.")
        config = _config(program, rows, device)
        if isinstance(config, Refusal):
            return config
        parts = int(config.split.partial[0].shape[-1])
        read = traffic(group, program.stages)
        again = sum(v.bytes for v in group.inputs) if read > (device.l2_bytes or 0) else 0
        moved = (read + again) * max(SECTOR_BYTES // config.run_bytes, 1)
        return Claim(
            self,
            group,
            launches=2,
            bytes=moved + 2 * 4 * rows * parts * len(config.split.partial),
            flops=flops(program.stages),
            parallelism=rows * parts,
            details={"config": config},
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write both kernels."""
        group, config, device = claim.group, claim.details["config"], device_of(target)
        program, partial = group.program, config.split.partial
        first = replace(program, outputs=partial)
        second = replace(program, inputs=(*program.inputs, *partial))
        inputs = tuple(Slot("input", i) for i in range(len(group.inputs)))
        scalars = tuple(Slot("scalar", i) for i in range(len(group.scalars)))
        outputs = tuple(Slot("output", i) for i in range(len(group.outputs)))
        between = tuple(Slot("workspace", i) for i in range(len(partial)))
        return Emission(
            (
                Kernel(
                    row_kernel(config.split.first, first, config.first, device),
                    (*inputs, *scalars),
                    between,
                ),
                Kernel(
                    row_kernel(config.split.second, second, config.second, device),
                    (*inputs, *between, *scalars),
                    outputs,
                ),
            ),
            tuple(relax.TensorType(list(p.shape), str(p.dtype)) for p in partial),
        )


def _config(program: Program, rows: int, device: Device) -> SplitRowsConfig | Refusal:
    try:
        whole = row_program(program)
    except ValueError as reason:
        return Refusal("no_combiner", f"{reason}.")
    size = max(math.prod(at(a.extent) for a in stage.loop_axes) for stage in whole.stages)
    if size < MIN_ROW:
        return Refusal(_NOT_MINE, f"Rows of {size} elements fit the registers of a block.")
    most = min(-(-BLOCKS_PER_SM * (device.sm_count or 1) // rows), size // MIN_PART)
    split = split_reduction(with_half_precision_math(with_inverses(whole)), most)
    if split is None:
        return Refusal(_NOT_MINE, "There are not just sums over rows, then maps of the elements.")
    run = min(_run_bytes(split.first), _run_bytes(split.second))
    if run == 0:
        return Refusal("strided", "What is read and written is contiguous along different axes.")
    first, second = (row_config(half, device) for half in (split.first, split.second))
    return SplitRowsConfig(split, first, second, run)


def _run_bytes(program: RowProgram) -> int:
    """Count the contiguous bytes of a part of a row; 0 where some access is strided."""
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
