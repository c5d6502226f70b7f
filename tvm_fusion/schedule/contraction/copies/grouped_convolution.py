"""Grouped convolutions of channels-last images as batches of implicit GEMMs, a group a matrix.

    Y[g, pixel, k] = sum over (window, c) of X[pixel + window, g C + c] * packed[g, k, window, c]

Groups of few channels are joined, the weight of j groups being block diagonal:

    packed[g, k, window, c] = weight[g j K + k, c % C, window] if c // C == k // K else 0

of C input and K output channels. A tile of 32 columns takes as long with 4 of them, and chunks of
16 bytes take 8 channels: multiplying by zeros is free up to a tile's width, and memory, not tensor
cores, is the limit beyond. As on CPUs, an infinite pixel is one of all groups that are joined.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load, loads, variables
from ....core.tir.loops import constant, find, index, substitute
from ....program.stage import Axis
from ..problem.results import Result
from ..problem.sum_of_products import SumOfProducts, is_weight
from ..tile.config import is_plain, narrow_operand, unguarded
from .implicit_gemm import ImplicitGemm

WIDTHS = (32, 64, 128)  # columns that groups are joined up to
MOST_COLUMNS = 256  # of all groups, as one dense convolution


@dataclass(frozen=True, eq=False)
class _Groups:
    """A grouped convolution."""

    contraction: SumOfProducts  # over output channels of all groups
    weight: ir.TensorLoad  # the constant
    is_right: bool  # whether it is the right operand
    channel: Axis  # of all output channels
    term: Axis  # the input channels of a group
    dim: int  # the dimension of the image that has them
    # Groups, and output channels of each.
    count: int
    size: int


def grouped_gemms(
    contraction: SumOfProducts, constants: Collection[ir.Var]
) -> Iterator[ImplicitGemm]:
    """View a grouped convolution as batches of implicit GEMMs, of some joined groups each.

    Parameters
    ----------
    constants
        Inputs that are known at compile time.

    Yields
    ------
    ImplicitGemm
        Nothing for what is no grouped convolution by a constant weight, and for depthwise ones.
    """
    groups = _groups(contraction, constants)
    if groups is not None:
        for joined in _joined(groups):
            yield _of_joined(groups, joined)


def _joined(groups: _Groups) -> list[int]:
    """List how many groups may be one matrix: one, and those of about the widths of tiles."""
    divisors = [n for n in range(1, groups.count + 1) if groups.count % n == 0]
    found = {1}
    for width in WIDTHS:
        found |= set([n for n in divisors if n * groups.size >= width][:1])
    if groups.count * groups.size <= MOST_COLUMNS:
        found.add(groups.count)
    return sorted(found)


def _groups(contraction: SumOfProducts, constants: Collection[ir.Var]) -> _Groups | None:
    """Find the groups of a convolution; ``None`` where there are none."""
    if contraction.column_split is not None or not isinstance(contraction.term(), tirx.Mul):
        return None
    is_right = is_weight(contraction.right, constants)
    weight, image = contraction.right, contraction.left
    if not is_right:
        weight, image = image, weight
    if not is_weight(weight, constants):
        return None
    kernel, (pixel, guard) = narrow_operand(weight), unguarded(narrow_operand(image))
    if not is_plain(kernel) or not is_plain(pixel):
        return None
    others = [pixel, *(x for r in contraction.results for x in loads(r.value))]
    if any(x.source.same_as(kernel.source) for x in others):
        return None
    stage = contraction.stage
    shared = [a for a in stage.axes if {a.var} <= variables(pixel) & variables(kernel)]
    if len(shared) != 1 or (guard is not None and shared[0].var in variables(guard)):
        return None
    (channel,) = shared
    dims = [n for n, i in enumerate(pixel.indices) if channel.var in variables(i)]
    found = (constant(d.b) for i in pixel.indices for d in find(i, tirx.FloorDiv))
    sizes = sorted({n for n in found if n})
    total = constant(channel.extent)
    if len(dims) != 1 or total is None:
        return None
    place = pixel.indices[dims[0]]
    for term in stage.reduce:
        count = constant(term.extent)
        if term.var not in variables(place) or count is None or count == 1:
            continue
        if guard is not None and term.var in variables(guard):
            continue
        for size in sizes:
            if total % size == 0 and _is_of_group(place, channel, term, size):
                axes, counts = (channel, term, dims[0]), (total // size, size)
                return _Groups(contraction, kernel, is_right, *axes, *counts)
    return None


def _is_of_group(place: ir.Expr, channel: Axis, term: Axis, size: int) -> bool:
    """Whether an index is ``channel // size * C + term`` for C terms."""
    analyzer = sym.Analyzer()
    for axis in (channel, term):
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
    group = tirx.floordiv(channel.var, index(size))
    return analyzer.can_prove_equal(place, group * index(term.extent) + term.var)


def _of_joined(groups: _Groups, joined: int) -> ImplicitGemm:
    """Make the batch of GEMMs of some joined groups each."""
    contraction, stage = groups.contraction, groups.contraction.stage
    size, terms, of_group = groups.size, constant(groups.term.extent) or 1, groups.channel.var
    g = Axis(tirx.Var("group", "int64"), index(groups.count // joined))
    k = Axis(tirx.Var(of_group.name, "int64"), index(size * joined))
    c = Axis(tirx.Var(groups.term.var.name, "int64"), index(terms * joined))
    number: ir.Expr = g.var if groups.count > joined else index(0)
    split = [g, k] if groups.count > joined else [k]
    channel = number * (size * joined) + k.var if groups.count > joined else k.var
    of_image = {of_group: number * (size * joined), groups.term.var: c.var}
    of_weight = {of_group: channel, groups.term.var: tirx.floormod(c.var, index(terms))}

    source = groups.weight.source
    value: ir.Expr = substitute(groups.weight, of_weight)
    if joined > 1:
        is_own = tirx.EQ(tirx.floordiv(c.var, index(terms)), tirx.floordiv(k.var, index(size)))
        value = tirx.if_then_else(is_own, value, tirx.const(0, str(value.ty.dtype)))
    reduce = [*(a for a in stage.reduce if a is not groups.term), c]
    used = {*variables(value)}
    axes = tuple(a for a in (*split, *reduce) if a.var in used)
    packed = declare([index(a.extent) for a in axes], str(value.ty.dtype), f"{source.name}_packed")
    factor: ir.Expr = load(packed, [a.var for a in axes])

    own = contraction.right if groups.is_right else contraction.left
    image = contraction.left if groups.is_right else contraction.right
    if str(own.ty.dtype) != str(factor.ty.dtype):
        factor = tirx.Cast(str(own.ty.dtype), factor)
    image = _with_place(image, groups.dim, of_image, number * (terms * joined) + c.var)
    spread = [x for a in stage.axes for x in (split if a is groups.channel else [a])]
    moved = replace(
        stage,
        axes=tuple(spread),
        reduce=tuple(reduce),
        indices=tuple(tuple(substitute(i, of_weight) for i in one) for one in stage.indices),
        values=tuple(substitute(v, of_weight) for v in stage.values),
        solution=None,
    )
    made = replace(
        contraction,
        stage=moved,
        left=image if groups.is_right else factor,
        right=factor if groups.is_right else image,
        results=tuple(_result(r, of_weight) for r in contraction.results),
    )
    return ImplicitGemm(made, source, packed, axes, value)


def _with_place(image: ir.Expr, dim: int, places: dict[ir.Var, ir.Expr], place: ir.Expr) -> ir.Expr:
    """Move an image to the channels of joined groups, with an index for them as it is."""

    def one(node: ir.TensorLoad) -> ir.TensorLoad:
        where = [place if n == dim else i for n, i in enumerate(node.indices)]
        return load(node.source, where)

    return tvm_ffi.structural_map(substitute(image, places), (ir.TensorLoad, one))


def _result(result: Result, places: dict[ir.Var, ir.Expr]) -> Result:
    indices = tuple(substitute(i, places) for i in result.indices)
    condition = None if result.condition is None else substitute(result.condition, places)
    return Result(result.buffer, indices, substitute(result.value, places), condition)
