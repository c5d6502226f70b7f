"""A convolution as direct kernels see it: roles of axes, the image, the constant weight."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tvm import ir, sym, tirx

from ....core.contract.template import Refusal
from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, find, index, substitute
from ....program.program import Program
from ....program.stage import Axis, Stage
from ...contraction.cpu.dot_products import DotProduct
from ...contraction.problem.pool import Pool, pool_of
from ...contraction.problem.sum_of_products import SumOfProducts, analyse, is_weight
from ...index.address import conditional_loads
from .image import Image, image_of

SUMS = ("float32", "int32")
BLOCK = 16  # input channels that are taken together where more are contiguous
MOST_PADDING = 64  # channels that a block may have beyond the last
PACKED = 8  # how often vectors of channels read an element that is worth being copied to a block


@dataclass(frozen=True)
class Groups:
    """Groups of a convolution."""

    # Output and input channels of a group.
    k: int
    c: int

    def bands(self, channels: int, width: int) -> list[tuple[int, int]]:
        """List the input channels that tiles of output channels read: begin and end of each.

        Parameters
        ----------
        channels
            Output channels of all groups.
        """
        firsts = range(0, channels, width)
        lasts = (min(first + width, channels) - 1 for first in firsts)
        return [
            (first // self.k * self.c, last // self.k * self.c + self.c)
            for first, last in zip(firsts, lasts, strict=True)
        ]


@dataclass(frozen=True)
class Words:
    """Input channels joined in words, which an instruction multiplies (words.py)."""

    dot: DotProduct  # the instruction
    single: ConvProblem  # the same convolution over single channels
    is_contiguous: bool  # whether words are contiguous in the image as it is in memory


@dataclass(frozen=True)
class ConvProblem:
    """``C[batch, k, y, x] = sum of image * weight`` over channels and a window, then results."""

    # The sum; channels that only blocked results have are among its axes, and zero there.
    contraction: SumOfProducts
    image: Image  # the input
    weight: ir.Expr  # the weight, of one constant
    batch: tuple[Axis, ...]  # pixel axes around y and x: images, or planes
    # Rows and columns of pixels; of extent 1 where there are none.
    y: Axis
    x: Axis
    k: Axis  # output channels
    channels: int  # those that exist
    # Input channels, of all groups where ``groups`` is given; ``None`` in depthwise convolutions.
    c: Axis | None
    block: int  # input channels that are contiguous in memory; 1 in plain layouts
    window: tuple[Axis, ...]  # other reduction axes
    # Of a convolution whose image and weight are over the channels of all groups.
    groups: Groups | None = None
    pool: Pool | None = None  # of its sums; results are of what it leaves
    # Where ``c``, ``block``, ``groups`` and the weight are of words of channels.
    words: Words | None = None
    is_packed: bool = False  # whether tasks copy an image of a plain layout into blocks of channels

    @property
    def source(self) -> ir.Var:
        """The buffer of the weight."""
        return loads(self.weight)[0].source

    @property
    def reads_in_place(self) -> bool:
        """Whether tiles read the image where it is."""
        is_contiguous = self.words is None or self.words.is_contiguous
        return self.image.is_load and is_contiguous and not self.is_packed

    @property
    def depth(self) -> int:
        """Input channels that a tile takes at one place of the window, and then at the next.

        In plain layouts it is not one: with the columns of the window as the innermost loop, LLVM
        writes them out, loads the pixels that neighbours share once, and spills accumulators. On
        one Zen 5 core, 192 channels of 32 x 32 pixels to 64 take 1.34 times as long.
        """
        if self.block > 1 or self.c is None or self.groups is not None or not self.window:
            return self.block
        return min(constant(self.c.extent) or 1, BLOCK)


def packed(problem: ConvProblem, lanes: int) -> ConvProblem:
    """Let tasks copy an image of one row into blocks of channels, where tiles read it often.

    A tile reads a few pixels of each channel: of a plain layout, pieces of as many lines of memory
    as there are channels, which hardware does not prefetch. On one busy Zen 3 core, 512 channels of
    1,599 pixels to 512, a window of 3, a stride of 2 and tiles of 6 pixels by 2 vectors took 67 ms
    in place, 52 from blocks.

    Parameters
    ----------
    lanes
        Elements of a vector.
    """
    c, sums = problem.c, problem.image.sums.values()
    if c is None or problem.block != 1 or not problem.window or problem.groups or problem.words:
        return problem
    if problem.image.parts:
        return problem
    if any(problem.y.var in atoms for atoms in sums) or (constant(c.extent) or 0) < BLOCK:
        return problem
    stride = max((atoms.get(problem.x.var, 1) for atoms in sums), default=1)
    window = math.prod(constant(a.extent) or 1 for a in problem.window)
    reads = (constant(problem.k.extent) or 1) / lanes * window / stride
    return replace(problem, block=BLOCK, is_packed=True) if reads >= PACKED else problem


def conv_problem(
    program: Program, stages: Sequence[Stage], constants: Collection[ir.Var]
) -> ConvProblem | Refusal:
    """Read a program as a convolution with a constant weight.

    Parameters
    ----------
    stages
        The program's, without internal maps.
    constants
        Inputs that are known at compile time.
    """
    found = [s for s in program.stages if not s.is_map]
    if len(found) == 2:
        return _pooled_problem(program, stages, constants)
    stage = replace(found[0], axes=_padded_axes(stages, found[0]))
    stages = [stage if s is found[0] else s for s in stages]
    whole = tuple(stage if s is found[0] else s for s in program.stages)
    contraction = analyse(replace(program, stages=whole), stages)
    if isinstance(contraction, Refusal):
        return contraction
    return _problem(contraction, found[0], constants)


def _pooled_problem(
    program: Program, stages: Sequence[Stage], constants: Collection[ir.Var]
) -> ConvProblem | Refusal:
    """Read a program of two reductions as a convolution whose sums are pooled."""
    conv, stage = (s for s in stages if not s.is_map)
    stage = replace(stage, axes=_padded_axes(stages, stage))
    stages = [stage if s.targets[0].same_as(stage.targets[0]) else s for s in stages]
    found = pool_of(stages, conv, stage, program.outputs)
    if isinstance(found, Refusal):
        return found
    pool, conv, pooled, results = found
    extents = {w: pool.windows[w].pixel.extent * pool.size(w) for w in pool.windows}
    extents |= {v: a.extent for a in stage.axes if (v := pool.axes.get(a.var)) is not None}
    whole = replace(conv, axes=tuple(Axis(a.var, extents.get(a.var, a.extent)) for a in conv.axes))
    before = tuple(s for s in program.stages if s.is_map and conv.reads & set(s.targets))
    contraction = analyse(replace(program, stages=(*before, whole)), [whole])
    if isinstance(contraction, Refusal):
        return contraction
    contraction = replace(contraction, total=pooled, results=results)
    problem = _problem(contraction, conv, constants)
    if isinstance(problem, Refusal):
        return problem
    if any(x.source.same_as(problem.source) for x in loads(pool.update)):
        return Refusal("no_constant_weight", "A direct convolution takes a constant weight.")
    if problem.c is None or not set(pool.windows) <= {problem.y.var, problem.x.var}:
        return Refusal("pooling_windows", "The pooling is not over rows and columns of the image.")
    return replace(problem, pool=pool)


def _padded_axes(stages: Sequence[Stage], stage: Stage) -> tuple[Axis, ...]:
    """Extend the axes of a sum to what blocked results ask for, which is zero beyond the sum.

    ``y[k // 16, k % 16]`` of 20 channels is ``where(16 * o + i < 20, sum[16 * o + i], 0)``.
    """
    target = stage.targets[0]
    found = {a.var: a.extent for a in stage.axes}
    for part in stages:
        reads = [x for v in part.values for x in conditional_loads(v)] if part.is_map else []
        analyzer = sym.Analyzer()
        for axis in part.axes:
            analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
        for read in (x for x in reads if x.source.same_as(target)):
            for axis, place in zip(stage.indices[0], read.indices, strict=True):
                if axis not in found:
                    continue
                most, size = analyzer.const_int_bound(place).max_value, constant(found[axis])
                if size is not None and 0 <= most - size < MOST_PADDING:
                    found[axis] = index(most + 1)
    return tuple(Axis(a.var, found[a.var]) for a in stage.axes)


def _problem(
    contraction: SumOfProducts, original: Stage, constants: Collection[ir.Var]
) -> ConvProblem | Refusal:
    stage = contraction.stage
    if contraction.column_split is not None:
        return Refusal("split_channels", "Results combine several parts of the output channels.")
    if contraction.dtype not in SUMS or not isinstance(contraction.term(), tirx.Mul):
        return Refusal(
            "unsupported_dtype",
            f"A direct convolution accumulates products in float32 or int32; {stage.title} does "
            f"so in {contraction.dtype}, or casts them.",
        )
    narrow = {a.var: index(0) for a in (*stage.axes, *stage.reduce) if constant(a.extent) == 1}
    left, right = (substitute(x, narrow) for x in (contraction.left, contraction.right))
    weight, other = (left, right) if is_weight(left, constants) else (right, left)
    results = [r.value for r in contraction.results]
    if not is_weight(weight, constants) or any(
        x.source.same_as(loads(weight)[0].source) for e in (other, *results) for x in loads(e)
    ):
        return Refusal("no_constant_weight", "A direct convolution takes a constant weight.")
    wide = [a for a in stage.axes if a.var not in narrow]
    reduce = [a for a in stage.reduce if a.var not in narrow]
    of_weight = variables(weight)
    columns = [a for a in wide if a.var in of_weight]
    pixels = [a for a in wide if a.var not in of_weight]
    static = all(constant(a.extent) is not None for a in (*columns, *pixels[-2:], *reduce))
    if not static:
        return Refusal("symbolic_image", "Channels, rows, columns or the window are symbolic.")
    if len(columns) != 1 or not reduce:
        return Refusal("not_a_window", "The weight has several axes of output channels, or none.")
    (k,) = columns
    if not {a.var for a in pixels} <= variables(other):
        return Refusal("not_a_window", "The image is broadcast along some axis of the results.")
    image = image_of(replace(stage, axes=tuple(wide), reduce=tuple(reduce)), other)
    if image is None:
        return Refusal(
            "padded_image", "Pixels inside of the image are not intervals of rows and columns."
        )
    moving = {v for atoms in image.sums.values() for v in atoms}
    channels = [a for a in reduce if a.var not in moving]
    window = tuple(a for a in reduce if a.var in moving)
    if len(channels) > 1:
        return Refusal("not_a_window", "Input channels span several axes.")
    for atoms in image.sums.values():
        own = [a for a in pixels if a.var in atoms]
        if len(own) != 1 or not set(atoms) - {own[0].var} <= {a.var for a in window}:
            sentence = "An index of the image is not one output pixel plus axes of the window."
            return Refusal("not_a_window", sentence)
    c = channels[0] if channels else None
    y, x = (*(Axis(tirx.Var(n, "int64"), index(1)) for n in ("y", "x")), *pixels)[-2:]
    (size,) = [constant(a.extent) for a in original.axes if a.var.same_as(k.var)]
    batch = tuple(pixels[:-2])
    return ConvProblem(
        contraction, image, weight, batch, y, x, k, size or 0, c, block_of(other, c), window
    )


def block_of(operand: ir.Expr, c: Axis | None) -> int:
    """Find how many input channels to take together: a block of memory, 1 in plain layouts."""
    if c is None:
        return 1
    for division in find(operand, tirx.FloorMod):
        if division.a.same_as(c.var) and constant(division.b) is not None:
            return constant(division.b) or 1
    last = [x.indices[-1] for x in loads(operand) if len(x.indices)]
    if any(c.var.same_as(i) for i in last):  # as NHWC, or one block
        return min(constant(c.extent) or 1, BLOCK)
    return 1
