"""The image of a convolution: its elements over coordinates of its own, and its zero padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from ....core.tir.expressions import call_name
from ....core.tir.loops import constant, find, index
from ....program.stage import Axis, Stage
from ...contraction.problem.functions.padding import merge_sums
from ...index.address import conditional_loads


@dataclass(frozen=True)
class Image:
    """The input of a convolution over its own coordinates."""

    value: ir.Expr  # an element inside of the borders: a load, or an expression over several loads
    axes: tuple[Axis, ...]  # the coordinates that ``value`` is over
    place: tuple[ir.Expr, ...]  # each of them over the axes of the convolution
    inside: dict[ir.Var, tuple[int, int]]  # begin and end of the part of an axis that is no padding
    outside: ir.Expr  # the constant that an element of the padding is
    # The axes that move over the image, by coordinate: stride of the pixels, dilation of the
    # window.
    sums: dict[ir.Var, dict[ir.Var, int]]
    # Of a concatenation of channels: where each part of them ends, and an element of it; ``value``
    # is that of the first.
    parts: tuple[tuple[int, ir.Expr], ...] = ()

    @property
    def is_load(self) -> bool:
        """Whether elements are in memory as they are, without padding and arithmetic."""
        is_one = not self.inside and not self.parts
        return isinstance(self.value, ir.TensorLoad) and is_one

    @property
    def values(self) -> list[ir.Expr]:
        """List what an element is, in each part of a concatenation."""
        return [value for _, value in self.parts] or [self.value]

    def average(self, figure: Callable[[ir.Expr], float]) -> float:
        """Average a figure of an element over the parts of a concatenation by their widths."""
        if not self.parts:
            return figure(self.value)
        ends = [end for end, _ in self.parts]
        widths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        total = sum(w * figure(v) for w, (_, v) in zip(widths, self.parts, strict=True))
        return total / ends[-1]

    @property
    def has_zeros(self) -> bool:
        """Whether the padding, if there is any, is zero."""
        return not self.inside or float(self.outside.value) == 0


def image_of(stage: Stage, operand: ir.Expr) -> Image | None:
    """Read an operand as an image; ``None`` where its padding has no intervals."""
    merged = merge_sums(stage, operand)
    if merged is None or any(n <= 0 for atoms in merged.sums.values() for n in atoms.values()):
        return None
    value, inside = choice_outermost(merged.value), {}
    outside: ir.Expr = tirx.const(0, str(value.ty.dtype))
    if _is_padded(value):
        condition, value, outside = value.args
        found = _intervals(condition, {a.var: a.extent for a in merged.axes})
        if found is None:
            return None
        inside = found
    parts = _parts_of(value, [a for a in merged.axes if a.var not in merged.sums])
    if parts:
        value = parts[0][1]
    if conditional_loads(value):
        return None
    return Image(value, merged.axes, merged.place, inside, outside, merged.sums, parts)


def _is_padded(value: ir.Expr) -> bool:
    """Whether an element is a constant outside of some borders."""
    is_choice = isinstance(value, ir.Call) and call_name(value) == "if_then_else"
    return is_choice and isinstance(value.args[2], tirx.FloatImm | tirx.IntImm)


def _parts_of(value: ir.Expr, axes: Sequence[Axis]) -> tuple[tuple[int, ir.Expr], ...]:
    """Read a choice by places along one axis as its parts; empty where it is none."""
    for axis in axes:
        size = constant(axis.extent)
        found = None if size is None else _cut(value, axis.var, 0, size)
        if found is not None and len(found) > 1:
            return tuple(found)
    return ()


def _cut(value: ir.Expr, axis: ir.Var, low: int, high: int) -> list[tuple[int, ir.Expr]] | None:
    """List ends and values of the parts of an axis from ``low`` to ``high``.

    Choices may be inside of what is computed of the elements, as in a norm of a concatenation.
    """

    def places(choice: ir.Expr) -> tuple[int, int] | None:
        """Find the places along the axis at which a choice takes its first branch."""
        if not isinstance(choice, ir.Call) or call_name(choice) != "if_then_else":
            return None
        bounds = _intervals(choice.args[0], {axis: index(high)})
        return None if bounds is None or set(bounds) != {axis} else bounds[axis]

    def between(first: int, last: int) -> list[tuple[int, ir.Expr]] | None:
        def decide(choice: ir.Expr) -> ir.Expr:
            found = places(choice)
            if found is None:
                return choice
            if found[0] <= first and last <= found[1]:
                return choice.args[1]
            return choice.args[2] if last <= found[0] or found[1] <= first else choice

        decided = tvm_ffi.structural_map(value, (ir.Call, decide), order="post")
        return _cut(decided, axis, first, last)

    if not conditional_loads(value):
        return [(high, value)]
    ends = [end for x in find(value, ir.Call) for end in places(x) or () if low < end < high]
    if not ends:
        return None
    parts = between(low, ends[0]), between(ends[0], high)
    return None if parts[0] is None or parts[1] is None else [*parts[0], *parts[1]]


def choice_outermost(value: ir.Expr) -> ir.Expr:
    """Move casts of a choice between elements and a constant into both.

    The image of a convolution of half types or bytes is ``cast(where(inside, x, 0))``.
    """
    if not isinstance(value, tirx.Cast):
        return value
    choice, dtype = choice_outermost(value.value), str(value.ty.dtype)
    if not isinstance(choice, ir.Call) or call_name(choice) != "if_then_else":
        return value
    condition, inside, outside = choice.args
    if not isinstance(outside, tirx.FloatImm | tirx.IntImm):
        return value
    return tirx.if_then_else(condition, tirx.Cast(dtype, inside), converted(outside, dtype))


def converted(number: ir.Expr, dtype: str) -> ir.Expr:
    """Convert a constant to another type that holds its value."""
    return tirx.const(number.value, dtype)


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
    for place, bound, is_lower in ((large, small, True), (small, large, False)):
        axis, each = _block_of(place)
        if isinstance(axis, ir.Var) and axis in extents and constant(bound) is not None:
            size, limit = constant(extents[axis]), constant(bound) or 0
            if size is None:
                return None
            if is_lower:
                return {axis: ((limit + strict) * each, size)}
            return {axis: (0, min(size, (limit + (not strict)) * each))}
    return None


def _block_of(place: ir.Expr) -> tuple[ir.Expr, int]:
    """Read the number of a block of places along an axis: the axis, and how many are in one."""
    each = constant(place.b) if isinstance(place, tirx.FloorDiv) else None
    return (place, 1) if each is None else (place.a, each)
