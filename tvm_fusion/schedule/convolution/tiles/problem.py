"""A convolution as tile registers see it: runs of K that are contiguous in a line of the image."""

import math
from dataclasses import dataclass, replace

from tvm import ir

from ....core.tir.loops import constant
from ....device import Device
from ....program.stage import Axis
from ...contraction.cpu.dot_products import uncast
from ...cpu.tile_block import WORD_BYTES
from ...index.address import known_step
from ...index.estimate import operations
from ...instructions.instruction import Instruction
from ...instructions.table import find
from ...instructions.tiles import TILE_ROW_BYTES
from ...math.vector_math import makes_vectors, vector_math
from ..problem.groups import Band
from ..problem.image import converted
from ..problem.problem import ConvProblem

MOST_WORDS = TILE_ROW_BYTES // WORD_BYTES
MOST_PADDED = 16  # channels that lines may have beyond the last one
MOST_POOLED = 2  # rows that pooling takes together: those of a tile
GROUPED = 2  # tiles of columns of a grouped convolution
LEAST = 8  # channels and columns of a window that are worth a step


@dataclass(frozen=True, eq=False)
class TileConv:
    """A convolution for an instruction of tiles."""

    row: Instruction
    # The convolution over elements as they are multiplied; a block is the channels of a pixel that
    # lines hold next to each other: all, or those of the groups of a tile of channels.
    single: ConvProblem
    # The columns of the window where a run has all of them; else runs are channels.
    column: Axis | None
    # Of 4 bytes, of a step of a run; and the steps of a run.
    words: int
    steps: int
    pixel: int  # elements from a pixel of A to the next
    in_place: bool  # whether A is loaded from the image itself
    gathers: bool  # whether the channels of a pixel are strided in the image

    @property
    def c(self) -> Axis:
        """Input channels."""
        assert self.single.c is not None
        return self.single.c

    @property
    def group(self) -> int:
        """Number of k in a word."""
        return self.row.k // MOST_WORDS

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The window around runs."""
        return tuple(a for a in self.single.window if a is not self.column)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return WORD_BYTES // self.group


def tile_conv(problem: ConvProblem, device: Device) -> TileConv | None:
    """View a convolution as products of tiles; ``None`` where a CPU has none for it.

    Parameters
    ----------
    problem
        A convolution, whose groups are known.
    """
    c, pool, image = problem.c, problem.pool, uncast(problem.image.value)
    weight = uncast(problem.weight)
    row = find(device, "amx", str(image.ty.dtype), str(weight.ty.dtype))
    if c is None or row is None or row.sums != problem.contraction.dtype:
        return None
    if float(problem.contraction.initial.value) or (
        pool and pool.size(problem.y.var) > MOST_POOLED
    ):
        return None
    if operations(image) and not makes_vectors(vector_math(image)):
        return None  # such as pooling: lines would be computed by elements
    group = row.k // MOST_WORDS
    column = _columns(problem) if problem.groups is None else None
    width = 1 if column is None else constant(column.extent) or 1
    channels = constant(c.extent) or 1
    outside = converted(problem.image.outside, str(image.ty.dtype))
    inner = replace(problem.image, value=image, outside=outside)
    single = replace(problem, image=inner, weight=weight, block=channels, is_packed=False)
    own = Band(single, GROUPED * row.n).size  # input channels of a tile of channels
    if own is None or width * own < LEAST:
        return None
    step = _pixel_step(single)
    in_place = step is not None and _is_exact(width * own, group)
    padding = 0
    if not in_place:
        exact = [n for n in range(MOST_PADDED) if _is_exact(width * (own + n), group)]
        if not exact:
            return None
        padding = min(exact, key=lambda n: (-(-width * (own + n) // row.k), n))
        if not padding and Band(replace(single, block=own), GROUPED * row.n).is_aligned:
            channels = own  # a task copies the channels of its groups alone
        step = _stride(single) * (channels + padding)
    words = width * (own + padding) // group
    steps = -(-words // MOST_WORDS)
    single = replace(single, block=channels + padding)
    gathers = problem.block == 1
    return TileConv(row, single, column, words // steps, steps, step or 0, in_place, gathers)


def _is_exact(run: int, group: int) -> bool:
    """Whether a run divides evenly among as few steps as there are."""
    words = run // group
    return run % group == 0 and words % -(-words // MOST_WORDS) == 0


def _columns(problem: ConvProblem) -> Axis | None:
    """Return the columns of the window if they are next to each other in a line."""
    for axis in problem.window:
        for atoms in problem.image.sums.values():
            if problem.x.var in atoms and atoms.get(axis.var) == 1:
                return axis
    return None


def _stride(problem: ConvProblem) -> int:
    sums = problem.image.sums.values()
    return next((atoms[problem.x.var] for atoms in sums if problem.x.var in atoms), 1)


def _pixel_step(problem: ConvProblem) -> int | None:
    """Return the elements between pixels in memory; ``None`` where lines have to be copied."""
    image, c = problem.image, problem.c
    if not image.is_load or c is None:
        return None
    value, axes = image.value, [a.var for a in image.axes]
    places = [(a.var, p) for a, p in zip(image.axes, image.place, strict=True)]
    channel = [v for v, p in places if p.same_as(c.var)]
    x = problem.x.var
    column = [v for v, p in places if p.same_as(x) or x in image.sums.get(v, ())]
    if len(channel) != 1 or len(column) != 1:
        return None
    between, step = (known_step(value.source, value.indices, v, axes) for v in (*channel, *column))
    if between != 1 or step is None or step != constant(c.extent):
        return None  # a line has the channels of a pixel, then those of the next one
    return _stride(problem) * step


def window_size(axes: tuple[Axis, ...]) -> int:
    """Multiply the extents of a window."""
    return math.prod(constant(a.extent) or 1 for a in axes)


def last_index(element: ir.TensorLoad, by: ir.Expr) -> list[ir.Expr]:
    """Move on along the last dimension of a buffer, also beyond it into the next row."""
    *outer, last = element.indices
    return [*outer, last + by]
