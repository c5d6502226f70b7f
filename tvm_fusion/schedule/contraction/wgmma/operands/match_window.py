"""Which operands of a product are an image under a window and its weight, as tensor maps.

    image[n, y * stride + r * dilation - padding, .., c]    contiguous along c, all channels
    image[n, y, x * stride * C + k]                         runs of k that overlap from x to x
    image[n, y .., x .., g * C + c], weight[g, k, r, s, c]  of groups, a matrix of the batch each
    weight[k, r, s, c]                                      contiguous along c, taps as one

Every index of the image is a sum of multiples of one pixel axis and of taps. A condition around it
may say no more than that the pixel is one of the image: boxes are zeros beyond.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from tvm import DataType, ir, sym, tirx

from .....core.tir.loops import constant, index, product, simplified, substitute
from .....program.stage import Axis
from ....gpu.memory.tma import ALIGNMENT, MAX_RANK, MAX_STEP, ROW_BYTES, TensorMap
from ....index.address import known_step, offset, stride
from ...problem.gemm_view import GemmView
from ...tile.config import is_plain, unguarded
from .window import ImageDim, TmaTaps, TmaWindow

SECTOR = 16  # elements of a half type


def tma_window(view: GemmView, block_k: int) -> tuple[TmaTaps, TmaTaps] | None:
    """View one operand as an image, the other as its weight, of tiles of no rows yet.

    Parameters
    ----------
    view
        With the channels as last axis of K.

    Returns
    -------
    (TmaTaps, TmaTaps) or None
        A and B, one of which is a :class:`TmaWindow`; ``None`` if they are no such operands.
    """
    if len(view.batch) > 1 or any(constant(a.extent) is None for a in view.batch):
        return None
    sides = (view.a, view.m_axes), (view.b, view.n_axes)
    for number in range(2):
        image = _image(*sides[number], view.k_axes, block_k, view.batch)
        weight = _weight(*sides[1 - number], view.k_axes, block_k, view.batch)
        if image is None or weight is None:
            continue
        if number == 0:
            return image, weight
        # Stores of a channel's pixels are whole sectors of 32 bytes.
        least = min(SECTOR, 1 << (int(image.pixels[-1]) - 1).bit_length())
        return weight, replace(image, multiple=least)
    return None


def _image(
    operand: ir.Expr,
    pixels: Sequence[Axis],
    k_axes: Sequence[Axis],
    block_k: int,
    groups: Sequence[Axis],
) -> TmaWindow | None:
    """View an operand as an image under a window; ``None`` if it is none."""
    image, guard = unguarded(operand)
    if not is_plain(image):
        return None
    *taps, channels = k_axes
    shape = list(image.source.ty.shape)
    fixed = [constant(x) for x in (*(a.extent for a in k_axes), shape[-1])]
    if None in fixed or not 1 < len(shape) <= MAX_RANK:
        return None
    sizes: list[ir.Expr | int] = [*shape[:-1], int(shape[-1])]
    item_bytes = DataType(str(image.ty.dtype)).itemsize
    strides = [product(shape[i:]) for i in reversed(range(1, len(shape)))]
    place = _without_groups(image.indices[-1], groups, channels)
    last = None if place is None else image_dim(place, pixels, k_axes)
    found = [image_dim(i, pixels, k_axes) for i in image.indices[:-1]]
    dims = [d for d in reversed(found) if d is not None]
    no_tap, count = (0,) * len(taps), int(channels.extent)
    if last is None or (*last.taps, last.start) != (*no_tap, 1, 0) or len(dims) != len(found):
        return None
    sizes.reverse()
    if last.row is not None:  # a run for each pixel, from which the next one begins a step further
        dims.insert(0, ImageDim(last.row, 1, (*no_tap, 0), 0))
        sizes.insert(1, (int(shape[-1]) - count) // last.step + 1)
        strides.insert(0, index(last.step))
        sizes[0] = count
    for group in groups:
        dims.insert(0, ImageDim(None, 1, (*no_tap, 0), 0, is_group=True))
        sizes[:1] = [count, int(shape[-1]) // count]
        strides.insert(0, index(count))
        if last.row is not None or sizes[1] != constant(group.extent):
            return None
    rows = sorted(d.row for d in dims if d.row is not None)
    if count != sizes[0] or rows != list(range(len(pixels))) or len(sizes) > MAX_RANK:
        return None
    if any(d.step > MAX_STEP or d.taps[-1] for d in dims) or not is_of_bounds(guard, image):
        return None
    analyzer = sym.Analyzer()
    if not all(analyzer.can_prove_equal(s * item_bytes % ALIGNMENT, 0) for s in strides):
        return None
    box = (ROW_BYTES // item_bytes, *[1] * len(dims))
    own = TensorMap(
        image.source,
        index(0),
        tuple(map(index, sizes)),
        tuple(strides),
        box,
        (1, *(d.step for d in dims)),
    )
    return TmaWindow(
        (own,),
        is_k_contiguous=True,
        batch=tuple(a.var for a in groups),
        rows=0,
        block_k=block_k,
        chunks=-(-count // block_k),
        dims=tuple(replace(d, taps=d.taps[:-1]) for d in dims),
        pixels=tuple(_known(a.extent) for a in pixels),
        taps=tuple(int(a.extent) for a in taps),
    )


def _known(extent: ir.Expr) -> ir.Expr | int:
    found = constant(extent)
    return extent if found is None else found


def _without_groups(place: ir.Expr, groups: Sequence[Axis], channels: Axis) -> ir.Expr | None:
    """Return the index of channels within a group; ``None`` if groups are not contiguous.

    An image that does not depend on its group, or elsewhere, is none of a window's.
    """
    for group in groups:
        own = substitute(place, {group.var: index(0)})
        whole = group.var * index(channels.extent) + own
        if not sym.Analyzer().can_prove_equal(place, whole):
            return None
        place = own
    return place


def image_dim(place: ir.Expr, pixels: Sequence[Axis], k_axes: Sequence[Axis]) -> ImageDim | None:
    """Read an index of an image as a sum of a pixel's place and a tap's; ``None`` if it is none."""
    every = [a.var for a in (*pixels, *k_axes)]
    found = [stride(place, axis, every) for axis in every]
    steps = [None if s is None else constant(s) for s in found]
    start = constant(simplified(substitute(place, dict.fromkeys(every, index(0)))))
    if start is None or None in steps:
        return None
    known = [int(s) for s in steps if s is not None]
    total = sum((axis * s for axis, s in zip(every, known, strict=True)), start=index(start))
    if not sym.Analyzer().can_prove_equal(place, total):
        return None
    moved = [(i, s) for i, s in enumerate(known[: len(pixels)]) if s]
    taps = tuple(known[len(pixels) :])
    if not moved:
        return ImageDim(None, 1, taps, start)
    (row, step) = moved[0]
    if len(moved) > 1 or step < 0:
        return None
    return ImageDim(row, step, taps, start)


def is_of_bounds(guard: ir.Expr | None, image: ir.TensorLoad) -> bool:
    """Whether a condition says no more than that a pixel is one of the image."""
    if guard is None:
        return True
    if isinstance(guard, tirx.And):
        return is_of_bounds(guard.a, image) and is_of_bounds(guard.b, image)
    if isinstance(guard, tirx.LE | tirx.LT):
        least = guard.b - guard.a - int(isinstance(guard, tirx.LT))
    elif isinstance(guard, tirx.GE | tirx.GT):
        least = guard.a - guard.b - int(isinstance(guard, tirx.GT))
    else:
        return False
    analyzer = sym.Analyzer()
    ends = [
        (i, index(d) - 1 - i) for i, d in zip(image.indices, image.source.ty.shape, strict=True)
    ]
    return any(analyzer.can_prove_equal(least, end) for both in ends for end in both)


def _weight(
    operand: ir.Expr,
    own: Sequence[Axis],
    k_axes: Sequence[Axis],
    block_k: int,
    groups: Sequence[Axis],
) -> TmaTaps | None:
    """View an operand as a weight: channels, taps that lie in memory as one, and columns."""
    if not is_plain(operand):
        return None
    *taps, channels = k_axes
    every = [a.var for a in (*groups, *own, *k_axes)]
    steps = {a: known_step(operand.source, operand.indices, a, every) for a in every}
    merged = [_merged(axes, steps) for axes in (taps, own)]
    sizes = [product([a.extent for a in axes]) for axes in ((channels,), taps, own)]
    sizes += [index(a.extent) for a in groups]
    place = offset(operand.source, operand.indices)
    start = simplified(substitute(place, dict.fromkeys(every, index(0))))
    count = constant(channels.extent)
    strides = [s or count for s in merged]  # 0 of a single tap
    strides += [steps[a.var] or None for a in groups]
    aligned = [constant(start), *strides]
    if steps[channels.var] != 1 or count is None or None in (*merged, *aligned):
        return None
    item_bytes = DataType(str(operand.ty.dtype)).itemsize
    if any(s is None or s * item_bytes % ALIGNMENT for s in aligned):
        return None
    box = (ROW_BYTES // item_bytes, *[1] * len(strides))
    steps_of = tuple(index(s) for s in strides if s is not None)
    found = TensorMap(operand.source, start, tuple(sizes), steps_of, box)
    batch = tuple(a.var for a in groups)
    return TmaTaps((found,), True, batch, 0, block_k, chunks=-(-count // block_k))


def _merged(axes: Sequence[Axis], steps: dict[ir.Var, int | None]) -> int | None:
    """Return the stride of axes contiguous with each other; 0 for no axes, else ``None``."""
    for outer, inner in itertools.pairwise(axes):
        step = steps[inner.var]
        if step is None or steps[outer.var] != step * (constant(inner.extent) or 0):
            return None
    return steps[axes[-1].var] if axes else 0
