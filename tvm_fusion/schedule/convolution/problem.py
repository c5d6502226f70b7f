"""A convolution as direct kernels see it: roles of axes, the image, the constant weight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tvm import ir, sym, tirx

from ...core.expressions import call_name, loads, variables
from ...core.loops import constant, find, index, substitute
from ...core.template import Refusal
from ...program.program import Program
from ...program.stage import Axis, Stage
from ..address import conditional_loads
from ..contraction.operands import SumOfProducts, analyse
from ..contraction.padding import merge_sums

NOT_MINE = "not_mine"
BLOCK = 16  # input channels that are taken together where more are contiguous
MOST_PADDING = 64  # channels that a block may have beyond the last


@dataclass(frozen=True)
class Image:
    """The input of a convolution over its own coordinates.

    Attributes
    ----------
    value : PrimExpr
        An element inside of the borders: a load, or an expression over several loads.
    axes : tuple of Axis
        The coordinates that ``value`` is over.
    place : tuple of PrimExpr
        Each of them over the axes of the convolution.
    inside : dict of Var to (int, int)
        Begin and end of the part of an axis that is no padding, which is zero.
    sums : dict of Var to dict of Var to int
        The axes that move over the image, by coordinate: stride of the pixels, dilation of the
        window.
    """

    value: ir.Expr
    axes: tuple[Axis, ...]
    place: tuple[ir.Expr, ...]
    inside: dict[ir.Var, tuple[int, int]]
    sums: dict[ir.Var, dict[ir.Var, int]]

    @property
    def is_load(self) -> bool:
        """Whether elements are in memory as they are, without padding and arithmetic."""
        return isinstance(self.value, ir.TensorLoad) and not self.inside


@dataclass(frozen=True)
class ConvProblem:
    """``C[batch, k, y, x] = sum of image * weight`` over channels and a window, then results.

    Attributes
    ----------
    contraction : SumOfProducts
        The sum; channels that only blocked results have are among its axes, and zero there.
    image : Image
        The input.
    weight : PrimExpr
        The weight, of one constant.
    batch : tuple of Axis
        Pixel axes around y and x: images, or planes.
    y, x : Axis
        Rows and columns of pixels; of extent 1 where there are none.
    k : Axis
        Output channels.
    channels : int
        Those that exist.
    c : Axis or None
        Input channels of a group; ``None`` in depthwise convolutions.
    block : int
        Input channels that are contiguous in memory; 1 in plain layouts.
    window : tuple of Axis
        Other reduction axes.
    waste : int
        How many times as many products it has as it would without joined groups.
    """

    contraction: SumOfProducts
    image: Image
    weight: ir.Expr
    batch: tuple[Axis, ...]
    y: Axis
    x: Axis
    k: Axis
    channels: int
    c: Axis | None
    block: int
    window: tuple[Axis, ...]
    waste: int = 1

    @property
    def source(self) -> ir.Var:
        """The buffer of the weight."""
        return loads(self.weight)[0].source


def conv_problem(
    program: Program, stages: Sequence[Stage], constants: Collection[ir.Var]
) -> ConvProblem | Refusal:
    """Read a program as a convolution with a constant weight.

    Parameters
    ----------
    program : Program
        With one reduction.
    stages : sequence of Stage
        The program's, without internal maps.
    constants : collection of Var
        Inputs that are known at compile time.
    """
    found = [s for s in program.stages if not s.is_map]
    if len(found) != 1:
        return Refusal(NOT_MINE, f"There are {len(found)} reductions.")
    stage = replace(found[0], axes=_padded_axes(stages, found[0]))
    stages = [stage if s is found[0] else s for s in stages]
    whole = tuple(stage if s is found[0] else s for s in program.stages)
    contraction = analyse(replace(program, stages=whole), stages)
    if isinstance(contraction, Refusal):
        return contraction
    return _problem(contraction, found[0], constants)


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
    if contraction.dtype != "float32" or contraction.column_split is not None:
        return Refusal(NOT_MINE, "Direct convolutions sum in float32.")
    if not isinstance(contraction.term(), tirx.Mul):
        return Refusal(NOT_MINE, "The products are cast before they are summed.")
    narrow = {a.var: index(0) for a in (*stage.axes, *stage.reduce) if constant(a.extent) == 1}
    left, right = (substitute(x, narrow) for x in (contraction.left, contraction.right))
    weight, other = (left, right) if _is_weight(left, constants) else (right, left)
    results = [r.value for r in contraction.results]
    if not _is_weight(weight, constants) or any(
        x.source.same_as(loads(weight)[0].source) for e in (other, *results) for x in loads(e)
    ):
        return Refusal(NOT_MINE, "A direct convolution takes a constant weight.")
    wide = [a for a in stage.axes if a.var not in narrow]
    reduce = [a for a in stage.reduce if a.var not in narrow]
    of_weight = variables(weight)
    columns = [a for a in wide if a.var in of_weight]
    pixels = [a for a in wide if a.var not in of_weight]
    static = all(constant(a.extent) is not None for a in (*columns, *pixels[-2:], *reduce))
    if len(columns) != 1 or not reduce or not static:
        return Refusal(NOT_MINE, "There is no single axis of output channels, or it is symbolic.")
    (k,) = columns
    if not {a.var for a in pixels} <= variables(other):
        return Refusal(NOT_MINE, "Some pixels read no image.")
    image = _image(replace(stage, axes=tuple(wide), reduce=tuple(reduce)), other, pixels)
    if image is None:
        return Refusal(NOT_MINE, "The image is padded or dilated in a way that has no intervals.")
    moving = {v for atoms in image.sums.values() for v in atoms}
    channels = [a for a in reduce if a.var not in moving]
    window = tuple(a for a in reduce if a.var in moving)
    if len(channels) > 1:
        return Refusal(NOT_MINE, "Input channels are several axes.")
    for number, atoms in image.sums.items():
        own = [a for a in pixels if a.var in atoms]
        if len(own) != 1 or not set(atoms) - {own[0].var} <= {a.var for a in window}:
            return Refusal(NOT_MINE, f"{number.name} is no sum of a pixel and a window.")
    c = channels[0] if channels else None
    y, x = (*(Axis(tirx.Var(n, "int64"), index(1)) for n in ("y", "x")), *pixels)[-2:]
    (size,) = [constant(a.extent) for a in original.axes if a.var.same_as(k.var)]
    batch = tuple(pixels[:-2])
    return ConvProblem(
        contraction, image, weight, batch, y, x, k, size or 0, c, block_of(other, c), window
    )


def _is_weight(operand: ir.Expr, constants: Collection[ir.Var]) -> bool:
    sources = {x.source for x in loads(operand)}
    return len(sources) == 1 and sources <= set(constants) and not conditional_loads(operand)


def _image(stage: Stage, operand: ir.Expr, pixels: Sequence[Axis]) -> Image | None:
    merged = merge_sums(stage, operand)
    if merged is None or any(n <= 0 for atoms in merged.sums.values() for n in atoms.values()):
        return None
    value, inside = merged.value, {}
    if isinstance(value, ir.Call) and call_name(value) == "if_then_else":
        condition, value, zero = value.args
        if not isinstance(zero, tirx.FloatImm) or float(zero.value) != 0:
            return None
        found = _intervals(condition, {a.var: a.extent for a in merged.axes})
        if found is None:
            return None
        inside = found
    if conditional_loads(value):
        return None
    return Image(value, merged.axes, merged.place, inside, merged.sums)


def _intervals(condition: ir.Expr, extents: dict) -> dict[ir.Var, tuple[int, int]] | None:
    """Read a conjunction of bounds of axes as an interval of each."""
    if isinstance(condition, tirx.And):
        both = [_intervals(x, extents) for x in (condition.a, condition.b)]
        if both[0] is None or both[1] is None:
            return None
        merged = dict(both[0])
        for axis, (begin, end) in both[1].items():
            low, high = merged.get(axis, (begin, end))
            merged[axis] = max(low, begin), min(high, end)
        return merged
    if not isinstance(condition, tirx.LE | tirx.LT | tirx.GE | tirx.GT):
        return None
    small, large = condition.a, condition.b
    strict = isinstance(condition, tirx.LT | tirx.GT)
    if isinstance(condition, tirx.GE | tirx.GT):
        small, large = large, small
    for axis, bound, is_lower in ((large, small, True), (small, large, False)):
        if axis in extents and isinstance(axis, ir.Var) and constant(bound) is not None:
            size, limit = constant(extents[axis]), constant(bound) or 0
            if size is None:
                return None
            if is_lower:
                return {axis: (limit + strict, size)}
            return {axis: (0, min(size, limit + (not strict)))}
    return None


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
