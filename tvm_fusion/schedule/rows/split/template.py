"""The template for few long rows: one launch reduces parts of rows, another normalizes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax
from tvm.target import Target

from ....core.template import Claim, Config, Emission, Kernel, Refusal, Slot, Template
from ....device import Device, device_of
from ....program.group import Group
from ....program.layouts import is_layout_map
from ....program.program import Program
from ....program.stage import Unstructured
from ...index.design_space import not_in_space
from ...index.estimate import flops, too_many_parameters, traffic
from ..channel_groups.space import (
    ChannelGroupsConfig,
    channel_groups_config,
    channel_groups_configs,
)
from ..estimate import count_rows
from ..gpu.contiguity import has_branches, run_bytes
from ..gpu.half_precision import with_half_precision_math
from ..gpu.split_form import sums_then_maps
from ..program.row_program import RowProgram, row_program
from ..program.softmax import with_inverses
from .space import SplitRowsConfig, configs, row_size, split_rows_config

# Contiguous bytes of a row, below which blocks take whole pixels with the channels of all groups.
# On one H200, group norms with SiLU of one image of float16, channels last, took 18.1 us by rows of
# 32 bytes (128 x 128 pixels, 512 channels) and 12.6 by pixels, 9.0 and 6.7 with 40 bytes.
LINE_BYTES = 128
SECTOR_BYTES = 32  # that a cache moves at once
# Elements of a row. On one H200, group norms with SiLU of one image of float16, channels first,
# took 57 us (rows: 86) with rows of 1,048,576 elements, 9.0 (10.6) with 122,880, but 6.8 (6.4)
# with 65,536. Channels last, by pixels, 6.3 of 61,440 elements (rows: 54, which no registers hold),
# 5.2 (13.1) of 40,960, 4.4 (4.9) of 20,480, but 4.2 (3.3) of 10,240.
MIN_ROW, MIN_ROW_CHANNELS_LAST, MIN_ROW_BY_PIXELS = 96 << 10, 1 << 16, 1 << 14

TwoLaunches = SplitRowsConfig | ChannelGroupsConfig


@dataclass(frozen=True, eq=False)
class SplitRowsDetails:
    """What a claim remembers until its kernels are made.

    Attributes
    ----------
    config : SplitRowsConfig or ChannelGroupsConfig
        By rows, or by pixels.
    """

    config: TwoLaunches


class SplitRows(Template):
    """Norms of few long rows, such as the groups of an image: two launches.

    One block for a row would leave multiprocessors idle; several that reduce all of it read it
    several times. Where elements of a row are a few bytes of every pixel, channels last in memory,
    blocks take pixels with the channels of all groups.
    """

    name = "split_rows"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim sums over few long rows, then maps over the same elements."""
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        if device.kind != "cuda" or all(stage.is_map for stage in program.stages):
            return Refusal("not_mine", "There is no reduction, or the device is not an NVIDIA GPU.")
        if any(has_branches(stage, program.row_rank) for stage in program.stages):
            return Refusal(
                "not_mine", "Loads of some elements are conditional, and are not vectorized."
            )
        refusal = too_many_parameters(program)
        if refusal is not None:
            return refusal
        units, rows = device.sm_count or 1, count_rows(program)
        if rows >= units:
            return Refusal("not_mine", f"{rows} rows are enough for all {units} multiprocessors.")
        in_layouts = any(is_layout_map(op.func) for op in group.members)
        least = MIN_ROW_CHANNELS_LAST if in_layouts else MIN_ROW
        config = _config(program, least, device)
        return config if isinstance(config, Refusal) else self._claimed(group, config, device)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate parts of a row and the threads of both launches."""
        return (config.plain for config in _space(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure claimed norms."""
        for chosen in _space(claim, device):
            if chosen.plain == dict(config):
                return self._claimed(claim.group, chosen, device)
        return not_in_space(claim, config)

    def _claimed(self, group: Group, config: TwoLaunches, device: Device) -> Claim:
        program = group.program
        read = traffic(group, program.stages)
        again = sum(v.bytes for v in group.inputs) if read > (device.l2_bytes or 0) else 0
        return Claim(
            self,
            group,
            launches=2,
            bytes=read + again + config.bytes_between,
            flops=flops(program.stages),
            parallelism=config.parallelism,
            details=SplitRowsDetails(config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write both kernels."""
        group, device = claim.group, device_of(target)
        config = claim.details_as(SplitRowsDetails).config
        program, partial = group.program, config.partial
        inputs = tuple(Slot("input", i) for i in range(len(group.inputs)))
        scalars = tuple(Slot("scalar", i) for i in range(len(group.scalars)))
        outputs = tuple(Slot("output", i) for i in range(len(group.outputs)))
        between = tuple(Slot("workspace", i) for i in range(len(partial)))
        reduce_parts, map_elements = config.kernels(program, device)
        return Emission(
            (
                Kernel(reduce_parts, (*inputs, *scalars), between),
                Kernel(map_elements, (*inputs, *between, *scalars), outputs),
            ),
            tuple(relax.TensorType(list(p.shape), str(p.dtype)) for p in partial),
        )


def _config(program: Program, least: int, device: Device) -> TwoLaunches | Refusal:
    try:
        whole = _whole(program)
    except ValueError as reason:
        return Refusal("no_combiner", f"{reason}.")
    size = row_size(whole)
    if size < min(least, MIN_ROW_BY_PIXELS):
        return Refusal("not_mine", f"Rows of {size} elements are too short to split.")
    by_rows = split_rows_config(whole, device)
    run = 0 if by_rows is None else min(map(run_bytes, (by_rows.split.first, by_rows.split.second)))
    by_pixels = channel_groups_config(whole, device) if run < LINE_BYTES else None
    if by_pixels is not None:
        return by_pixels
    if by_rows is None:
        sentence = "No axis of the rows can be split."
        if sums_then_maps(whole) is None:
            sentence = (
                "Partial results are combined for sums of inputs, and of squared deviations from "
                "their mean: there is another reduction."
            )
        return Refusal("dependent_sums", sentence)
    if run < SECTOR_BYTES:
        return Refusal(
            "strided_rows", f"No more than {run} bytes of a row are contiguous in memory."
        )
    return (
        Refusal("not_mine", f"Rows of {size} elements are too short to split.")
        if size < least
        else by_rows
    )


def _space(claim: Claim, device: Device) -> Iterator[TwoLaunches]:
    """Enumerate configurations of the same kernels as the claimed one."""
    whole = _whole(claim.group.program)
    if isinstance(claim.details_as(SplitRowsDetails).config, ChannelGroupsConfig):
        return channel_groups_configs(whole, device)
    return configs(whole, device)


def _whole(program: Program) -> RowProgram:
    """Return the stages as they are split.

    Raises
    ------
    ValueError
        Naming a reduction that cannot be split into terms and a combiner.
    """
    return with_half_precision_math(with_inverses(row_program(program)))
