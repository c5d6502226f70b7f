"""The template for few long rows: one launch reduces parts of rows, another one maps them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvm import relax
from tvm.target import Target

from ...core.template import Claim, Emission, Kernel, Refusal, Slot, Template
from ...device import Device, device_of
from ...ecg.work import at
from ...program.group import Group
from ...program.layouts import is_layout_map
from ...program.program import Program
from ...program.stage import Unstructured
from ..estimate import flops, too_many_parameters, traffic
from .config_gpu import RowConfig, row_config
from .contiguity import has_branches, run_bytes
from .gpu import row_kernel
from .half_precision import with_half_precision_math
from .row_program import row_program
from .softmax import with_inverses
from .split_reduction import SplitReduction, split_reduction

BLOCKS_PER_SM = 16  # of both launches; with 4, a block's threads do not hold a part of 2 MB rows
MIN_PART = 1 << 11  # elements: of less, a block takes longer to start than to read
# That a cache moves at once: of groups of 16 bytes of a pixel, norms of 256 x 256 pixels took 92
# us, and 53 channels first with a layout kernel.
SECTOR_BYTES = 32
# Elements of a row. On one H200, group norms with SiLU of one image of float16, channels first,
# took 57 us (rows: 86) with rows of 1,048,576 elements, 9.0 (10.6) with 122,880, but 6.8 (6.4)
# with 65,536. Channels last, of 65,536: 8.1 us, and 11.0 channels first with a layout kernel.
MIN_ROW, MIN_ROW_CHANNELS_LAST = 96 << 10, 1 << 16
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
    """

    split: SplitReduction
    first: RowConfig
    second: RowConfig


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
        if any(has_branches(stage, program.rows) for stage in program.stages):
            return Refusal(_NOT_MINE, "Elements behind branches are loaded one by one.")
        refusal = too_many_parameters(program)
        if refusal is not None:
            return refusal
        units = device.sm_count or 1
        rows = math.prod(at(axis.extent) for axis in program.stages[0].axes[: program.rows])
        if rows >= units:
            return Refusal(_NOT_MINE, f"{rows} rows are enough for all {units} multiprocessors.")
        in_layouts = any(is_layout_map(op.func) for op in group.members)
        least = MIN_ROW_CHANNELS_LAST if in_layouts else MIN_ROW
        config = _config(program, rows, least, device)
        if isinstance(config, Refusal):
            return config
        parts = int(config.split.partial[0].shape[-1])
        read = traffic(group, program.stages)
        again = sum(v.bytes for v in group.inputs) if read > (device.l2_bytes or 0) else 0
        return Claim(
            self,
            group,
            launches=2,
            bytes=read + again + 2 * 4 * rows * parts * len(config.split.partial),
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


def _config(program: Program, rows: int, least: int, device: Device) -> SplitRowsConfig | Refusal:
    try:
        whole = row_program(program)
    except ValueError as reason:
        return Refusal("no_combiner", f"{reason}.")
    size = max(math.prod(at(a.extent) for a in stage.loop_axes) for stage in whole.stages)
    if size < least:
        return Refusal(_NOT_MINE, f"Rows of {size} elements are short.")
    most = min(-(-BLOCKS_PER_SM * (device.sm_count or 1) // rows), size // MIN_PART)
    split = split_reduction(with_half_precision_math(with_inverses(whole)), most)
    if split is None:
        return Refusal(_NOT_MINE, "There are not just sums over rows, then maps of the elements.")
    run = min(run_bytes(split.first), run_bytes(split.second))
    if run < SECTOR_BYTES:
        return Refusal(_NOT_MINE, f"No more than {run} bytes of a row are contiguous in memory.")
    first, second = (row_config(half, device) for half in (split.first, split.second))
    return SplitRowsConfig(split, first, second)
