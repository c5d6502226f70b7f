"""A depthwise convolution over channels-last images, as the kernel for GPUs sees it."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from tvm import DataType, ir, sym, tirx

from ...._tvm.ir.buffer import declare
from ....core.contract.template import Refusal
from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, index, substitute
from ....program.stage import Axis
from ...contraction.problem.functions.packing import Reordered
from ...contraction.problem.functions.padding import merge_sums
from ...contraction.problem.sum_of_products import SumOfProducts, is_weight
from ...contraction.tile.config import is_plain, narrow_operand, unguarded
from ...gpu.launch import VECTOR_BYTES, VECTOR_TYPES
from ...index.address import conditional_loads, is_aligned, lies_along, offset, same

_LEAST = 2  # channels of a vector


@dataclass(frozen=True, eq=False)
class DepthwiseView:
    """``C[batch, y, x, k] = sum over rows, column of image[.., k] * weight[.., k]``; results."""

    contraction: SumOfProducts
    batch: tuple[Axis, ...]  # pixel axes around y and x
    # Rows and columns of pixels, maybe symbolic; y is of extent 1 where there are none.
    y: Axis
    x: Axis
    k: Axis  # channels
    rows: tuple[Axis, ...]  # axes of the window that do not move along x
    column: Axis | None  # that which does
    # Columns of the image from one pixel to the next, and from one tap to the next.
    step: int
    dilation: int
    image: ir.TensorLoad  # an element inside of the borders, over ``axes``
    inside: ir.Expr | None  # whether it exists, over ``axes``; otherwise it is zero
    # Coordinates of the image, and each of them over the axes of the sum.
    axes: tuple[Axis, ...]
    place: tuple[ir.Expr, ...]
    along: ir.Var  # the coordinate that moves with x
    weight: ir.Expr  # of one constant, over the axes of the sum
    lanes: int  # channels of a vector: all accesses of so many are contiguous and aligned

    @property
    def taps(self) -> int:
        """Taps of the window along x."""
        return 1 if self.column is None else constant(self.column.extent) or 1

    @property
    def source(self) -> ir.Var:
        """The weight."""
        return loads(self.weight)[0].source

    def packed(self) -> Reordered:
        """Declare what the kernel reads instead of the weight: ``[rows][column][k]``."""
        axes = (*self.rows, *([] if self.column is None else [self.column]), self.k)
        shape, dtype = [index(a.extent) for a in axes], str(self.weight.ty.dtype)
        buffer = declare(shape, dtype, f"{self.source.name}_packed")
        return Reordered(self.source, buffer, axes, self.weight)


def depthwise_view(
    contraction: SumOfProducts, constants: Collection[ir.Var]
) -> DepthwiseView | Refusal:
    """View a contraction as a depthwise convolution over channels-last images.

    Parameters
    ----------
    constants
        Inputs that are known at compile time.
    """
    stage = contraction.stage
    if contraction.column_split is not None:
        return Refusal("split_channels", "Results combine several parts of the channels.")
    if not isinstance(contraction.term(), tirx.Mul):
        return Refusal("not_mine", f"{stage.title} is not a sum of products.")
    left, right = (narrow_operand(x) for x in (contraction.left, contraction.right))
    weight, other = (right, left) if is_weight(right, constants) else (left, right)
    results = [r.value for r in contraction.results]
    if not is_weight(weight, constants) or any(
        x.source.same_as(loads(weight)[0].source) for e in (other, *results) for x in loads(e)
    ):
        return Refusal("no_constant_weight", "A depthwise convolution takes a constant weight.")
    ones = {a.var: index(0) for a in (*stage.axes, *stage.reduce) if constant(a.extent) == 1}
    weight, other = substitute(weight, ones), substitute(other, ones)
    wide = [a for a in stage.axes if a.var not in ones]
    reduce = tuple(a for a in stage.reduce if a.var not in ones)
    of_weight = variables(weight)
    channels = [a for a in wide if a.var in of_weight]
    pixels = [a for a in wide if a.var not in of_weight]
    if len(channels) != 1 or not pixels or not reduce:
        return Refusal("not_a_window", "The weight has several axes of channels, or no window.")
    (k,), x = channels, pixels[-1]
    reads_all = {a.var for a in wide} <= variables(other)
    if not {a.var for a in reduce} <= of_weight or not reads_all:
        return Refusal("not_a_window", f"{stage.title} sums over channels.")
    merged = merge_sums(replace(stage, axes=tuple(wide), reduce=reduce), other)
    if merged is None:
        return Refusal(
            "not_a_window", "Indices of the image are not sums of a pixel and the window."
        )
    image, inside = unguarded(merged.value)
    moving = [
        (a, merged.sums.get(a.var, {x.var: 1}))
        for a, place in zip(merged.axes, merged.place, strict=True)
        if x.var in variables(place)
    ]
    if not is_plain(image) or len(moving) != 1 or any(n <= 0 for n in moving[0][1].values()):
        return Refusal("computed_image", "The image is computed in the kernel, or read backwards.")
    (along, factors) = moving[0]
    columns = [a for a in reduce if a.var in factors]
    if len(columns) > 1 or len(columns) + 1 != len(factors):
        return Refusal(
            "not_a_window", "A column is not the sum of a pixel and one axis of the window."
        )
    column = columns[0] if columns else None
    y = pixels[-2] if len(pixels) > 1 else Axis(tirx.Var("y", "int64"), index(1))
    view = DepthwiseView(
        contraction,
        tuple(pixels[:-2]),
        y,
        x,
        k,
        tuple(a for a in reduce if a is not column),
        column,
        factors[x.var],
        1 if column is None else factors[column.var],
        image,
        inside,
        merged.axes,
        merged.place,
        along.var,
        weight,
        1,
    )
    lanes = _lanes(view, str(image.ty.dtype))
    if lanes < _LEAST:
        return Refusal("strided_channels", "Channels of the image are not contiguous.")
    return replace(view, lanes=lanes)


def vector_loads(view: DepthwiseView, value: ir.Expr) -> list[ir.TensorLoad]:
    """List the different loads of a result that are contiguous along the channels."""
    sometimes = conditional_loads(value)
    found: list[ir.TensorLoad] = []
    for x in loads(value):
        is_new = not any(same(x, other) for other in (*found, *sometimes))
        if is_new and is_vector(view, x.source, x.indices, view.lanes):
            found.append(x)
    return found


def is_vector(view: DepthwiseView, buffer: ir.Var, indices: Collection, lanes: int) -> bool:
    """Whether aligned vectors of channels are contiguous and aligned in a buffer."""
    dtype = str(buffer.dtype)
    if dtype not in VECTOR_TYPES or not any(view.k.var in variables(i) for i in indices):
        return False
    return _is_contiguous(buffer, list(indices), view.k, lanes)


def _is_contiguous(buffer: ir.Var, indices: list[ir.Expr], k: Axis, lanes: int) -> bool:
    if not lies_along(buffer, indices, k, lanes):
        return False
    vector = tirx.Var("vector", "int64")
    place = substitute(offset(buffer, indices), {k.var: vector * lanes})
    return is_aligned(place, lanes, sym.Analyzer())


def _lanes(view: DepthwiseView, dtype: str) -> int:
    """Choose the channels of a vector: as many as 16 bytes hold, all accesses being aligned."""
    if dtype not in VECTOR_TYPES or any(r.condition is not None for r in view.contraction.results):
        return 0
    lanes = VECTOR_BYTES // DataType(dtype).itemsize
    size = constant(view.k.extent) or 1
    indices = dict(zip((a.var for a in view.axes), view.place, strict=True))
    image = [substitute(i, indices) for i in view.image.indices]
    accesses = [(view.image.source, image)]
    accesses += [(r.buffer, list(r.indices)) for r in view.contraction.results]
    while lanes >= _LEAST:
        if size % lanes == 0 and all(is_vector(view, *a, lanes) for a in accesses):
            return lanes
        lanes //= 2
    return 0
