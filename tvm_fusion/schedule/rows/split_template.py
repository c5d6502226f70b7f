"""The template for few long rows: one launch reduces parts of rows, another normalizes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tvm import relax
from tvm.target import Target

from ...core.template import Claim, Config, Emission, Kernel, Refusal, Slot, Template
from ...device import Device, device_of
from ...ecg.work import at
from ...program.group import Group
from ...program.layouts import is_layout_map
from ...program.program import Program
from ...program.stage import Unstructured
from ..design_space import not_in_space
from ..estimate import flops, too_many_parameters, traffic
from .contiguity import has_branches, run_bytes
from .gpu import row_kernel
from .half_precision import with_half_precision_math
from .row_program import RowProgram, row_program
from .softmax import with_inverses
from .split_configs import SplitRowsConfig, configs, row_size, split_rows_config

# That a cache moves at once: of groups of 16 bytes of a pixel, norms of 256 x 256 pixels took 92
# us, and 53 channels first with a layout kernel.
SECTOR_BYTES = 32
# Elements of a row. On one H200, group norms with SiLU of one image of float16, channels first,
# took 57 us (rows: 86) with rows of 1,048,576 elements, 9.0 (10.6) with 122,880, but 6.8 (6.4)
# with 65,536. Channels last, of 65,536: 8.1 us, and 11.0 channels first with a layout kernel.
MIN_ROW, MIN_ROW_CHANNELS_LAST = 96 << 10, 1 << 16


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
            return Refusal("not_mine", "There is no reduction, or the device is no NVIDIA GPU.")
        if any(has_branches(stage, program.rows) for stage in program.stages):
            return Refusal(
                "not_mine", "Loads of some elements are conditional, and are not vectorized."
            )
        refusal = too_many_parameters(program)
        if refusal is not None:
            return refusal
        units, rows = device.sm_count or 1, _row_count(program)
        if rows >= units:
            return Refusal("not_mine", f"{rows} rows are enough for all {units} multiprocessors.")
        in_layouts = any(is_layout_map(op.func) for op in group.members)
        least = MIN_ROW_CHANNELS_LAST if in_layouts else MIN_ROW
        config = _config(program, least, device)
        return config if isinstance(config, Refusal) else self._claimed(group, config, device)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate parts of a row and the threads of both launches."""
        return (config.plain for config in configs(_whole(claim.group.program), device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Give claimed norms another configuration."""
        for chosen in configs(_whole(claim.group.program), device):
            if chosen.plain == dict(config):
                return self._claimed(claim.group, chosen, device)
        return not_in_space(claim, config)

    def _claimed(self, group: Group, config: SplitRowsConfig, device: Device) -> Claim:
        program, rows = group.program, _row_count(group.program)
        read = traffic(group, program.stages)
        again = sum(v.bytes for v in group.inputs) if read > (device.l2_bytes or 0) else 0
        return Claim(
            self,
            group,
            launches=2,
            bytes=read + again + 2 * 4 * rows * config.parts * len(config.split.partial),
            flops=flops(program.stages),
            parallelism=rows * config.parts,
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


def _config(program: Program, least: int, device: Device) -> SplitRowsConfig | Refusal:
    try:
        whole = _whole(program)
    except ValueError as reason:
        return Refusal("no_combiner", f"{reason}.")
    size = row_size(whole)
    if size < least:
        return Refusal("not_mine", f"Rows of {size} elements are short.")
    config = split_rows_config(whole, device)
    if config is None:
        return Refusal(
            "dependent_sums",
            "A reduction depends on another one, or is no sum: partial results cannot be combined.",
        )
    run = min(run_bytes(config.split.first), run_bytes(config.split.second))
    if run < SECTOR_BYTES:
        return Refusal(
            "strided_rows", f"No more than {run} bytes of a row are contiguous in memory."
        )
    return config


def _whole(program: Program) -> RowProgram:
    """Give the stages as they are split.

    Raises
    ------
    ValueError
        Naming a reduction that cannot be split into terms and a combiner.
    """
    return with_half_precision_math(with_inverses(row_program(program)))


def _row_count(program: Program) -> int:
    return math.prod(at(axis.extent) for axis in program.stages[0].axes[: program.rows])
