"""Two launches for few long rows of a GPU: the first form in this table that they have.

    by pixels    rows of a few bytes of every pixel, channels last: blocks take whole pixels with
                 the channels of all groups
    by rows      blocks take parts of rows

The planner compares them with one launch (:mod:`..gpu.forms`) by its costs; :func:`weighed` tells
both tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ....core.contract.forms import Form, Row, first_of, other_form
from ....core.contract.template import Refusal
from ....device import Device
from ....program.group import Group
from ....program.layouts import is_layout_map
from ....program.program import Program
from ....program.stage import Unstructured
from ...index.estimate import too_many_parameters
from ..channel_groups.space import ChannelGroupsConfig, channel_groups_config
from ..gpu.config import RowConfig
from ..gpu.forms import ROWS as ONE_LAUNCH
from ..gpu.forms import RowForm, RowProblem, estimated, has_branches, read_rows, run_bytes
from ..gpu.reductions.half_precision import with_half_precision_math
from ..gpu.reductions.split_form import sums_then_maps
from ..program.read import count_rows, rows_of
from ..program.row_program import RowProgram, row_program
from ..program.softmax import with_inverses
from .space import SplitRowsConfig, row_size, split_rows_config

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
Made = tuple[str, str | Refusal]  # a form's name, and its kernels or why there are none


@dataclass(frozen=True, eq=False)
class LongRows:
    """Few long rows."""

    program: RowProgram  # what is computed
    least: int  # elements of a row, from which on parts of rows pay
    device: Device  # A GPU

    @cached_property
    def size(self) -> int:
        """Elements of a row."""
        return row_size(self.program)

    @cached_property
    def parts(self) -> SplitRowsConfig | None:
        """The default of parts of rows, however short these are."""
        return split_rows_config(self.program, self.device)

    @cached_property
    def run(self) -> int:
        """Contiguous bytes of a part of a row."""
        split = None if self.parts is None else self.parts.split
        return 0 if split is None else min(map(run_bytes, (split.first, split.second)))


def _by_pixels(rows: LongRows) -> TwoLaunches | Refusal:
    if rows.run >= LINE_BYTES:
        return other_form(f"{rows.run} bytes of a row are contiguous, at least {LINE_BYTES}.")
    found = channel_groups_config(rows.program, rows.device)
    return found or other_form(
        "It is not a norm over groups of channels with the channels last in memory."
    )


def _by_rows(rows: LongRows) -> TwoLaunches | Refusal:
    if rows.parts is None:
        sentence = "No axis of the rows can be split."
        if sums_then_maps(rows.program) is None:
            sentence = (
                "Partial results are combined for sums of inputs, and of squared deviations from "
                "their mean: there is another reduction."
            )
        return Refusal("dependent_sums", sentence)
    if rows.run < SECTOR_BYTES:
        return Refusal(
            "strided_rows", f"No more than {rows.run} bytes of a row are contiguous in memory."
        )
    return _short(rows.size) if rows.size < rows.least else rows.parts


ROWS: tuple[Row[TwoLaunches], ...] = (
    Row("two launches, by pixels", _by_pixels),
    Row("two launches, by rows", _by_rows),
)


def choose(group: Group, device: Device) -> TwoLaunches | Refusal:
    """Choose two launches for a group."""
    rows = read_long_rows(group, device)
    if isinstance(rows, Refusal):
        return rows
    return first_of(ROWS, rows)


def read_long_rows(group: Group, device: Device) -> LongRows | Refusal:
    """Read a group as few long rows, or tell why two launches are none for it."""
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
    units, count = device.sm_count or 1, count_rows(program)
    if count >= units:
        return Refusal("not_mine", f"{count} rows are enough for all {units} multiprocessors.")
    try:
        whole = whole_rows(program)
    except ValueError as reason:
        return Refusal("no_combiner", f"{reason}.")
    in_layouts = any(is_layout_map(op.func) for op in group.members)
    least = MIN_ROW_CHANNELS_LAST if in_layouts else MIN_ROW
    rows = LongRows(whole, least, device)
    return _short(rows.size) if rows.size < min(least, MIN_ROW_BY_PIXELS) else rows


def _short(size: int) -> Refusal:
    return Refusal("not_mine", f"Rows of {size} elements are too short to split.")


def whole_rows(program: Program) -> RowProgram:
    """Return the stages as they are split.

    Raises
    ------
    ValueError
        Naming a reduction that cannot be split into terms and a combiner.
    """
    return with_half_precision_math(with_inverses(row_program(program)))


def weighed(group: Group, device: Device, is_split: bool) -> tuple[Form, ...]:
    """Tell a reader what every row of both tables gives, and which of them is chosen.

    Parameters
    ----------
    is_split
        Whether the planner chose two launches.
    """
    tables = [list(_one_launch(group, device)), list(_two_launches(group, device))]
    forms = []
    for made, is_chosen in zip(tables, (not is_split, is_split), strict=True):
        first = ""
        for name, kernel in made:
            if isinstance(kernel, Refusal):
                forms.append(Form(name, "", None, False, kernel.sentence))
                continue
            why = "" if is_chosen else "The planner estimates that its claim takes longer."
            why = f"The form '{first}' takes precedence." if first else why
            forms.append(Form(name, kernel, None, not why, why))
            first = first or name
    return tuple(forms)


def _one_launch(group: Group, device: Device) -> Iterator[Made]:
    rows = read_rows(rows_of(group, on_cpu=False), device)
    for row in ONE_LAUNCH:
        found = rows if isinstance(rows, Refusal) else row.make(rows)
        yield row.name, found if isinstance(found, Refusal) else _kernel(rows, found)


def _kernel(rows: RowProblem | Refusal, form: RowForm) -> str | Refusal:
    assert isinstance(rows, RowProblem)
    found = estimated(rows, form)
    if isinstance(found, Refusal):
        return found
    memory = f", {found.shared_bytes:,} bytes of shared memory" if found.shared_bytes else ""
    return f"{_threads(found.config)}{memory}"


def _threads(config: RowConfig) -> str:
    rows = "1 row" if config.rows == 1 else f"{config.rows} rows"
    groups = f", {config.groups_per_block} times" if config.keeps_shared else ""
    return f"{rows} of {config.threads} threads{groups}"


def _two_launches(group: Group, device: Device) -> Iterator[Made]:
    rows = read_long_rows(group, device)
    for row in ROWS:
        found = rows if isinstance(rows, Refusal) else row.make(rows)
        yield row.name, found if isinstance(found, Refusal) else _parts(found)


def _parts(config: TwoLaunches) -> str:
    unit = "parts of a row" if isinstance(config, SplitRowsConfig) else "parts of an image"
    return f"{config.parts} {unit}, {config.first.threads} and {config.second.threads} threads"
