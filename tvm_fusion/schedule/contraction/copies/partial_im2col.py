"""Convolutions of few channels as GEMMs over a copy of the image: im2col of all taps but the last.

    kernel:   columns[n, y, x, (c, r)] = image[n, c, y * stride_y + r - pad_y, x - pad_x]
              zeros around the image, and up to a multiple of 16 bytes                   (below)
    weight:   packed[k, (s, c, r)]                                          at compile time
    kernel:   C[(n, y, x), k] = sum over j of columns[n, y][x * stride_x * D + j] * packed[k, j]
              D = C * R, rounded up; j < S * D; rows of packed are whole lines of memory

The few channels of a network's first image are neither multiples of 16 bytes nor, before the layout
stage, contiguous: gathered by elements they keep tensor cores waiting (8x3x224x224, 64 channels of
7x7, stride 2: 91 us on an H200). Behind the copy the terms of a pixel are one run in memory, which
overlaps with that of the next pixel; TMA and cp.async read runs. The whole im2col would have S /
stride_x times the bytes. No run has a term of a pixel outside of its window, so infinities stay
where they belong, as they would not behind a space-to-depth transform.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import declare, scratch
from ....core.contract.forms import other_form
from ....core.contract.template import Refusal
from ....core.tir.expressions import load, loads
from ....core.tir.loops import (
    block,
    constant,
    coordinates,
    index,
    local,
    sequence,
    substitute,
    threads,
    unrolled,
    vectorized,
    when,
)
from ....core.untouched import SCHEDULED
from ....program.stage import Axis
from ...gpu.memory.tma import ALIGNMENT, ROW_BYTES
from ...instructions.nvidia import HALF_TYPES
from ..problem.functions.packing import packing_function
from ..problem.gemm_view import gemm_view
from ..problem.sum_of_products import SumOfProducts, is_weight
from ..tile.config import is_plain, narrow_operand, unguarded
from ..wgmma.operands.match_window import image_dim, is_of_bounds
from ..wgmma.operands.window import ImageDim
from .operand_copies import OperandCopies

MOST_GROWTH = 4 / 3  # of a column, so that those of pixels are at lines of memory
MOST_TERMS = 96  # of a column: those of more channels have vectors without a copy


def partial_im2col(
    contraction: SumOfProducts, constants: Collection[ir.Var]
) -> OperandCopies | Refusal:
    """View a convolution as a GEMM over a copy of its image.

    Parameters
    ----------
    contraction
        Any product, its weight as the graph has it.
    constants
        Inputs that are known at compile time.

    Returns
    -------
    OperandCopies or Refusal
        Refused is what is no convolution of a plain image of a half type by a constant weight,
        for groups, many channels, symbolic extents, and windows of one column or with holes along
        a row.
    """
    view = gemm_view(contraction, allows_conditions=True)
    if view is None:
        return other_form("It is not read as a GEMM.")
    if view.batch:
        return other_form("It is a batched product, as of the groups of a convolution.")
    if contraction.column_split is not None:
        return other_form("Its epilogue reads several columns of the result.")
    found = other_form("Neither operand is a plain constant.")
    for operand, pixels, weight, own in (
        (view.a, view.m_axes, view.b, view.n_axes),
        (view.b, view.n_axes, view.a, view.m_axes),
    ):
        kernel = narrow_operand(weight)
        if not is_weight(weight, constants) or not is_plain(kernel):
            continue
        image, guard = unguarded(narrow_operand(operand))
        if not is_plain(image):
            found = other_form("The image is computed on its way to shared memory.")
            continue
        if not is_of_bounds(guard, image):
            found = other_form("The image is read under conditions other than its bounds.")
            continue
        window = _window(image, pixels, view.k_axes)
        if isinstance(window, Refusal):
            found = window
            continue
        read = {x.source for r in contraction.results for x in loads(r.value)}
        if {image.source, kernel.source} & read:
            found = other_form("The epilogue reads an operand, too.")
            continue
        if any(constant(a.extent) is None for a in own):
            found = other_form("An extent of the weight is symbolic.")
            continue
        if image.source.same_as(kernel.source):
            found = other_form("Both operands are the same tensor.")
            continue
        return _copies(contraction, _Convolution(image, kernel, own, view.k_axes, window))
    return found


@dataclass(frozen=True)
class _Window:
    """How an image is read."""

    dims: tuple[ImageDim, ...]
    pixels: tuple[Axis, ...]  # of the results, the axis along rows last
    # The dimension of the image along rows, and the tap's axis that moves along it.
    row: int
    along: int


@dataclass(frozen=True)
class _Convolution:
    image: ir.TensorLoad
    kernel: ir.TensorLoad
    own: tuple[Axis, ...]  # of the weight and the results
    taps: tuple[Axis, ...]  # of the sum
    window: _Window


def _window(
    image: ir.TensorLoad, pixels: Sequence[Axis], taps: Sequence[Axis]
) -> _Window | Refusal:
    """Read the indices of an image, where the terms of a pixel are runs of the copied rows."""
    extents = [constant(a.extent) for a in (*pixels, *taps)]
    if None in (*extents, *(constant(d) for d in image.source.ty.shape)):
        return other_form("An extent of the image or of the window is symbolic.")
    if str(image.ty.dtype) not in HALF_TYPES:
        return other_form(f"The image is of {image.ty.dtype}, not a half type.")
    found = [image_dim(i, pixels, taps) for i in image.indices]
    dims = [d for d in found if d is not None]
    rows = sorted(d.row for d in dims if d.row is not None)
    if len(dims) != len(found) or rows != list(range(len(pixels))):
        return other_form("An index of the image is not a pixel plus a tap.")
    row = next(n for n, d in enumerate(dims) if d.row == len(pixels) - 1)
    moving = [n for n, step in enumerate(dims[row].taps) if step]
    if len(moving) != 1:
        return other_form(f"{len(moving)} axes of the window move along a row, not one.")
    if dims[row].taps[moving[0]] != 1:
        return other_form("The window has holes along a row.")
    if any(d.taps[moving[0]] for n, d in enumerate(dims) if n != row):
        return other_form("The window moves along a row and across rows at once.")
    terms = math.prod(int(a.extent) for n, a in enumerate(taps) if n != moving[0])
    if terms > MOST_TERMS:
        return other_form(f"A column of the window has {terms} terms, more than {MOST_TERMS}.")
    return _Window(tuple(dims), tuple(pixels), row, moving[0])


def _depth(terms: int, lanes: int, aligned: int) -> int:
    """Choose the elements of a column: whole vectors, or runs of pixels at whole lines of memory.

    TMA copies rows of 128 bytes at lines in less than half of the time. On an H100 the convolution
    of 8x3x224x224 by 64x3x7x7 took 27.7 us with 24 elements, 24.1 where rows of the weight are at
    lines, 20.2 with 32 elements as well; of one image 7.2, 6.0 and 5.2.
    """
    vectors = -(-terms // lanes) * lanes
    whole = -(-terms // aligned) * aligned
    return whole if whole <= MOST_GROWTH * vectors else vectors


def _copies(contraction: SumOfProducts, found: _Convolution) -> OperandCopies:
    """Make the product over columns and a packed weight."""
    window, image, kernel = found.window, found.image, found.kernel
    dtype = str(image.ty.dtype)
    lanes = ALIGNMENT // DataType(dtype).itemsize
    sizes = [int(a.extent) for a in found.taps]
    rest = [n for n in range(len(sizes)) if n != window.along]
    places = list(itertools.product(*(range(sizes[n]) for n in rest)))
    line = ROW_BYTES // DataType(dtype).itemsize
    *outer, last = (int(a.extent) for a in window.pixels)
    step = window.dims[window.row].step
    depth = _depth(len(places), lanes, line // math.gcd(step, line))
    width = (last - 1) * step + sizes[window.along]
    taps = [dict(zip(rest, place, strict=True)) for place in places]
    terms = tuple(
        tuple(d.start + sum(d.taps[n] * at for n, at in tap.items()) for d in window.dims)
        for tap in taps
    )
    columns = ImageColumns(window.dims, window.row, (*outer, width), depth, terms)
    copy = declare([*(outer or [1]), width * depth], dtype, f"{image.source.name}_columns")

    k = Axis(tirx.Var("k", "int64"), index(sizes[window.along] * depth))
    pixels = [a.var for a in window.pixels]
    read = load(copy, [*(pixels[:-1] or [index(0)]), pixels[-1] * (step * depth) + k.var])

    own = [Axis(tirx.Var(a.var.name, "int64"), a.extent) for a in found.own]
    term = tirx.floormod(k.var, index(depth))
    at = coordinates(term, [sizes[n] for n in rest])
    place = {found.taps[n].var: value for n, value in zip(rest, at, strict=True)}
    place[found.taps[window.along].var] = tirx.floordiv(k.var, index(depth))
    place |= {a.var: fresh.var for a, fresh in zip(found.own, own, strict=True)}
    zero = tirx.const(0, str(kernel.ty.dtype))
    is_term = tirx.all(term < index(len(places)), k.var < k.extent)
    weight = tirx.if_then_else(is_term, substitute(kernel, place), zero)
    axes = (*own, Axis(k.var, index(-(-int(k.extent) // line) * line)))
    shape = [index(a.extent) for a in axes]
    packed = declare(shape, str(kernel.ty.dtype), f"{kernel.source.name}_packed")
    factor = load(packed, [*(a.var for a in found.own), k.var])

    def widened(value: ir.Expr, like: ir.Expr) -> ir.Expr:
        same = str(like.ty.dtype) == str(value.ty.dtype)
        return value if same else tirx.Cast(str(like.ty.dtype), value)

    left, right = contraction.left, contraction.right
    is_left = any(x.source.same_as(image.source) for x in loads(left))
    values = (read, factor) if is_left else (factor, read)
    made = replace(
        contraction,
        stage=replace(contraction.stage, reduce=(k,)),
        left=widened(values[0], left),
        right=widened(values[1], right),
    )
    return OperandCopies(
        made,
        (image.source, kernel.source),
        (copy, packed),
        (None, partial(packing_function, kernel.source, packed, axes, weight)),
        partial(partial_im2col_gpu, image.source, copy, columns),
    )


# The kernel that copies an image to the columns of its partial im2col.
#
# block of 128 columns thread (n, y, x): for term in depth: column[term] = image[.. of the term ..]
# or 0, outside or beyond the last own[thread] = column shared, chunks of 16 bytes threads, of all
# chunks in the order of memory: columns[first + chunk] = own[..] 16 bytes of each thread, side by
# side
#
# Terms are known at compile time, so that addresses are constants away from that of a pixel.
# Adjacent threads read adjacent pixels, and write adjacent chunks: stored by the thread that made
# them, chunks of a column would be parts of sectors.
THREADS = 128  # of a block, a column each: of 96 terms they take 26 KiB


@dataclass(frozen=True)
class ImageColumns:
    """Columns of an image: the terms that one input column has for a row of results."""

    dims: tuple[ImageDim, ...]  # how each dimension of the image is moved along by pixels
    row: int  # the dimension along rows, of which columns are places, and not pixels of the results
    extents: tuple[int, ...]  # extents of the pixels, and of the columns of a row
    depth: int  # elements of a column: terms, then zeros
    # For each term, where it is along each dimension from the first pixel on.
    terms: tuple[tuple[int, ...], ...]


def partial_im2col_gpu(image: ir.Var, copy: ir.Var, columns: ImageColumns) -> tirx.PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    image, copy
        The image, and where the columns of a row lie one behind the other.

    Returns
    -------
    PrimFunc
        Its parameters are the image and the copy.
    """
    dtype = str(image.ty.dtype)
    lanes = ALIGNMENT // DataType(dtype).itemsize
    chunks, count = columns.depth // lanes, math.prod(columns.extents)
    stride = (chunks | 1) * lanes  # odd numbers of chunks lie in different banks
    shared = scratch([THREADS * stride], dtype, "own", "shared")

    def make(first: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        made = local("column", [columns.depth], dtype)
        place = coordinates(first + thread, columns.extents)
        zeros = [tirx.const(0, dtype)] * (columns.depth - len(columns.terms))
        values = [*(_element(image, columns, place, t) for t in columns.terms), *zeros]
        stmts: list[tirx.Stmt] = [
            tirx.BufferStore(made, value, [index(n)]) for n, value in enumerate(values)
        ]
        for chunk in range(chunks):

            def keep(lane: ir.Expr, at: int = chunk * lanes) -> tirx.Stmt:
                return tirx.BufferStore(
                    shared, load(made, [lane + at]), [thread * stride + lane + at]
                )

            stmts.append(vectorized(lanes, keep))
        return when(first + thread < count, block("make", sequence(stmts), [made]))

    def store(first: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        def one(step: ir.Expr) -> tirx.Stmt:
            column, chunk = coordinates(step * THREADS + thread, [THREADS, chunks])
            *outer, x = coordinates(first + column, columns.extents)

            def move(lane: ir.Expr) -> tirx.Stmt:
                place = [*(outer or [index(0)]), (x * chunks + chunk) * lanes + lane]
                value = load(shared, [column * stride + chunk * lanes + lane])
                return tirx.BufferStore(copy, value, place)

            return when(first + column < count, vectorized(lanes, move))

        return unrolled("step", chunks, one)

    def of_block(number: ir.Expr) -> tirx.Stmt:
        first = number * THREADS
        phases = [
            threads("threadIdx.x", THREADS, partial(make, first)),
            threads("threadIdx.x", THREADS, partial(store, first)),
        ]
        return block("columns", sequence(phases), [shared])

    grid = threads("blockIdx.x", -(-count // THREADS), of_block)
    func = tirx.PrimFunc([image, copy], block("root", grid))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})


def _element(
    image: ir.Var, columns: ImageColumns, place: Sequence[ir.Expr], term: Sequence[int]
) -> ir.Expr:
    """Return the element of a term, or zero where it is not in the image."""
    indices: list[ir.Expr] = []
    conditions: list[ir.Expr] = []
    for n, (dim, start, extent) in enumerate(zip(columns.dims, term, image.ty.shape, strict=True)):
        if dim.row is None:
            if not 0 <= start < int(extent):
                return tirx.const(0, str(image.ty.dtype))
            indices.append(index(start))
            continue
        step = 1 if n == columns.row else dim.step
        at = place[dim.row] * step + start
        indices.append(at)
        if start < 0:
            conditions.append(at >= 0)
        if (columns.extents[dim.row] - 1) * step + start >= int(extent):
            conditions.append(at < index(extent))
    value = load(image, indices)
    if not conditions:
        return value
    return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0, str(value.ty.dtype)))
