"""Grouped convolutions: which output channels read the same input, and groups joined to vectors.

Groups of less than a vector of output channels are joined: a vector reads the input channels of all
its groups, ``c = group in the vector * channels of a group + channel``, with zeros in the weight
where a channel is not of the lane's own group. Of groups of 4, whole vectors of 16 lanes multiply 4
times as often as needed, which is less than single lanes would cost.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import tirx

from ...core.expressions import variables
from ...core.loops import constant, index, substitute
from ...program.stage import Axis
from .problem import ConvProblem, block_of
from .simplify import Ranges

MOST_WASTE = 8  # times the multiplications


def join_groups(problem: ConvProblem, lanes: int) -> ConvProblem:
    """Join groups until they have whole vectors, where that wastes no more than the limit.

    Parameters
    ----------
    problem : ConvProblem
        A convolution.
    lanes : int
        Elements of a vector.

    Returns
    -------
    ConvProblem
        The same problem if its groups need no joining, or cannot be joined.
    """
    size, k = shared_k(problem), problem.k
    if problem.c is None or size in (1, constant(k.extent)) or size % lanes == 0:
        return problem
    width = math.lcm(size, lanes)
    channels, count = constant(problem.c.extent) or 1, width // size
    if count > MOST_WASTE or problem.channels % width or constant(k.extent) != problem.channels:
        return problem
    image = problem.image
    places = dict(zip((a.var for a in image.axes), image.place, strict=True))
    own_k = next(a for a, p in places.items() if p.same_as(k.var))
    own_c = next((a for a, p in places.items() if p.same_as(problem.c.var)), None)
    if own_c is None:
        return problem
    c = Axis(problem.c.var, index(channels * count))
    group = tirx.floordiv(own_c, index(channels))
    ranges = Ranges()
    axes = tuple(Axis(own_c, c.extent) if a.var.same_as(own_c) else a for a in image.axes)
    for axis in axes:
        ranges.bind(axis.var, axis.extent)
    value = substitute(
        image.value,
        {
            own_k: tirx.floordiv(own_k, index(width)) * width + group * size,
            own_c: tirx.floormod(own_c, index(channels)),
        },
    )
    value = ranges.value(value)
    lane = tirx.floordiv(tirx.floormod(k.var, index(width)), index(size))
    weight = substitute(problem.weight, {c.var: tirx.floormod(c.var, index(channels))})
    zero = tirx.const(0, str(weight.ty.dtype))
    is_own = tirx.EQ(lane, tirx.floordiv(c.var, index(channels)))
    return replace(
        problem,
        image=replace(image, value=value, axes=axes),
        weight=tirx.if_then_else(is_own, weight, zero),
        c=c,
        block=block_of(value, Axis(own_c, c.extent)),
        waste=count,
    )


def shared_k(problem: ConvProblem) -> int:
    """Count adjacent output channels that read the same input: all, or those of a group."""
    k, image, size = problem.k, problem.image, constant(problem.k.extent) or 1
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
