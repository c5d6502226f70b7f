"""Grouped convolutions as dense ones whose weight is block diagonal.

With the input channels of all groups on one axis,

    y[k] = sum over c of image[c] * (weight[k, c % C] if c // C == k // K else 0)

for groups of C input and K output channels. Of the sum, adjacent output channels need the band of
their own groups alone. A tile of channels of two groups reads the channels of both, and multiplies
by zeros: of groups of 34, 9 vectors of 16 take 1.5 times as many products as needed, of 68 channels
1.2 times, where a tile for each group would leave lanes empty as often and store parts of vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ....core.tir.expressions import variables
from ....core.tir.loops import constant, index, substitute
from ....program.stage import Axis
from ...index.index_ranges import Ranges
from .problem import ConvProblem, Groups, block_of

MOST_WASTE = 8  # times the multiplications


@dataclass(frozen=True)
class Band:
    """The input channels that each tile of output channels reads.

    Parameters
    ----------
    problem
        A convolution with input channels.
    width
        Output channels of a tile.
    """

    problem: ConvProblem
    width: int

    @property
    def _all(self) -> int:
        c = self.problem.c
        return 1 if c is None else constant(c.extent) or 1

    @property
    def is_dense(self) -> bool:
        """Whether each tile reads all."""
        return self.problem.groups is None

    @property
    def most(self) -> int:
        """The most channels that a tile reads."""
        return max(end - begin for begin, end in self._tiles())

    @property
    def size(self) -> int | None:
        """How many channels tiles read, where that is the same number."""
        sizes = {end - begin for begin, end in self._tiles()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def is_aligned(self) -> bool:
        """Whether tiles read whole blocks of channels; all channels may end within a block."""
        block = self.problem.block
        return self.is_dense or all(x % block == 0 for tile in self._tiles() for x in tile)

    @property
    def blocks(self) -> int:
        """The most blocks of channels that a tile reads from."""
        block = self.problem.block
        return max(-(-end // block) - begin // block for begin, end in self._tiles())

    def begin(self, tile: ir.Expr) -> ir.Expr:
        """Return the first channel that a tile reads."""
        groups = self.problem.groups
        if groups is None:
            return index(0)
        return tirx.floordiv(tile * index(self.width), index(groups.k)) * groups.c

    def end(self, tile: ir.Expr) -> ir.Expr:
        """Return the end of the channels that a tile reads."""
        groups = self.problem.groups
        if groups is None:
            return index(self._all)
        last = tile * index(self.width) + (self.width - 1)
        if constant(self.problem.k.extent) != self.problem.channels or (
            self.problem.channels % self.width
        ):
            last = tirx.min(last, index(self.problem.channels - 1))
        return tirx.floordiv(last, index(groups.k)) * groups.c + groups.c

    def _tiles(self) -> Iterator[tuple[int, int]]:
        problem = self.problem
        if problem.groups is None:
            yield 0, self._all
            return
        yield from problem.groups.bands(problem.channels, self.width)
        if -(-problem.channels // self.width) * self.width < (constant(problem.k.extent) or 1):
            yield self._all, self._all  # tiles of zeros beyond the channels


def with_groups(problem: ConvProblem, lanes: int) -> ConvProblem | None:
    """Find the groups of a convolution, and let its image and weight be over channels of all.

    Parameters
    ----------
    lanes
        Elements of a vector.

    Returns
    -------
    ConvProblem or None
        The same problem without groups; ``None`` where vectors would mostly multiply by zeros.
    """
    size, k, image = shared_k(problem), problem.k, problem.image
    if problem.c is None or size == problem.channels:
        return problem
    places = dict(zip((a.var for a in image.axes), image.place, strict=True))
    own_k = next(a for a, p in places.items() if p.same_as(k.var))
    own_c = next((a for a, p in places.items() if p.same_as(problem.c.var)), None)
    if own_c is None or {own_k, own_c} & set(image.inside):
        return None
    groups = Groups(size, constant(problem.c.extent) or 1)
    bands = groups.bands(problem.channels, lanes)
    if max(end - begin for begin, end in bands) > MOST_WASTE * groups.c:
        return None
    total = index(problem.channels // size * groups.c)
    axes = tuple(
        Axis(own_c, total) if a.var.same_as(own_c) else a
        for a in image.axes
        if not a.var.same_as(own_k)
    )
    ranges = Ranges()
    for axis in axes:
        ranges.bind(axis.var, axis.extent)
    each = index(groups.c)
    first_k = tirx.floordiv(own_c, each) * size
    moved = substitute(image.value, {own_k: first_k, own_c: tirx.floormod(own_c, each)})
    value = ranges.value(moved)
    c = Axis(problem.c.var, total)
    weight = substitute(problem.weight, {c.var: tirx.floormod(c.var, each)})
    is_own = tirx.EQ(tirx.floordiv(k.var, index(size)), tirx.floordiv(c.var, each))
    weight = _where(is_own, weight)
    place = tuple(places[a.var] for a in axes)
    return replace(
        problem,
        image=replace(image, value=value, axes=axes, place=place),
        weight=weight,
        c=c,
        block=block_of(value, Axis(own_c, total)),
        groups=groups,
    )


def _where(condition: ir.Expr, weight: ir.Expr) -> ir.Expr:
    """Choose between a weight and zero, before the weight is cast."""
    if isinstance(weight, tirx.Cast):
        return tirx.Cast(weight.ty.dtype, _where(condition, weight.value))
    return tirx.if_then_else(condition, weight, tirx.const(0, str(weight.ty.dtype)))


def shared_k(problem: ConvProblem) -> int:
    """Count adjacent output channels that read the same input: all, or those of a group."""
    k, image, size = problem.k, problem.image, problem.channels
    own = [a for a, p in zip(image.axes, image.place, strict=True) if p.same_as(k.var)]
    if not own:
        return size
    ranges, number = Ranges(), tirx.Var("number", "int64")
    for axis in image.axes:
        ranges.bind(axis.var, axis.extent)
    for width in (d for d in range(size, 0, -1) if size % d == 0):
        lane = tirx.Var("lane", "int64")
        ranges.bind(lane, width)
        position = number * index(width) + lane
        if lane not in variables(ranges.value(substitute(image.value, {own[0].var: position}))):
            return width
    return 1
