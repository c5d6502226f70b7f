"""Reshapes of tensors that are split: which axis of the result is, and where its segments end."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tvm import sym, tirx

from ..core.shards import Shard


def extent(value: Any) -> int | None:
    """Return a fixed extent; ``None`` for a symbolic one."""
    return int(value) if isinstance(value, (int, tirx.IntImm)) else None


def fixed(values: Sequence[Any]) -> list[int] | None:
    """Return fixed extents; ``None`` where one is symbolic."""
    found = [number for number in map(extent, values) if number is not None]
    return found if len(found) == len(values) else None


def reshaped(before: Sequence[Any], after: Sequence[Any], shard: Shard, size: int) -> Shard | None:
    """Follow a part through a reshape.

    Parameters
    ----------
    before, after : sequence of int or PrimExpr
        Shapes of the whole tensor.
    shard
        Of the tensor before.

    Returns
    -------
    Shard or None
        Of the result; ``None`` where a worker's elements are no even part of one of its axes.
    """
    (begin, end), (first, last) = group_of(before, after, shard.axis)
    outer = fixed(before[begin : shard.axis])
    inner, new = fixed(before[shard.axis + 1 : end]), fixed(after[first:last])
    if outer is None or inner is None or new is None:
        return None
    flat = tuple(s * math.prod(inner) for s in shard.segments) * math.prod(outer)
    for axis, length in enumerate(new):
        repeats, behind = math.prod(new[:axis]), math.prod(new[axis + 1 :])
        count = len(flat) // max(1, repeats)
        segments = flat[:count]
        if len(flat) % repeats or segments * repeats != flat:
            continue
        if sum(segments) != length * behind or any(s % (behind * size) for s in segments):
            continue
        return Shard(first + axis, tuple(s // behind for s in segments))
    return None


def group_of(
    before: Sequence[Any], after: Sequence[Any], axis: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find the fewest axes around one that become as many elements of the result.

    Returns
    -------
    tuple of (int, int), tuple of (int, int)
        Begin and end of the axes before, and after.
    """
    products = [_products(shape) for shape in (before, after)]
    analyzer = sym.Analyzer()
    cuts = [(0, 0)]
    for i in range(1, len(before) + 1):
        for j in range(cuts[-1][1] + 1, len(after) + 1):
            if analyzer.can_prove_equal(products[0][i], products[1][j]):
                cuts.append((i, j))
                break
    if cuts[-1] != (len(before), len(after)):  # ones at the end
        cuts = [*(c for c in cuts if c[0] < len(before)), (len(before), len(after))]
    for low, high in pairwise(cuts):
        if low[0] <= axis < high[0]:
            return (low[0], high[0]), (low[1], high[1])
    return (0, len(before)), (0, len(after))


def _products(shape: Sequence[Any]) -> list[Any]:
    found: list[Any] = [tirx.IntImm("int64", 1)]
    for value in shape:
        found.append(found[-1] * value)
    return found


def sliced(shard: Shard, begin: int, end: int) -> tuple[int, ...] | None:
    """Return the segments between two places of an axis; ``None`` if one is inside a segment."""
    at, found = 0, []
    for segment in shard.segments:
        if at >= begin and at + segment <= end:
            found.append(segment)
        elif at < end and at + segment > begin:
            return None
        at += segment
    return tuple(found) if sum(found) == end - begin else None
