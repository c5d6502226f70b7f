"""The image of a convolution: its elements over coordinates of its own, and its zero padding."""

from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.expressions import call_name
from ....core.tir.loops import constant
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

    @property
    def is_load(self) -> bool:
        """Whether elements are in memory as they are, without padding and arithmetic."""
        return isinstance(self.value, ir.TensorLoad) and not self.inside

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
    if isinstance(value, ir.Call) and call_name(value) == "if_then_else":
        condition, value, outside = value.args
        if not isinstance(outside, tirx.FloatImm | tirx.IntImm):
            return None
        found = _intervals(condition, {a.var: a.extent for a in merged.axes})
        if found is None:
            return None
        inside = found
    if conditional_loads(value):
        return None
    return Image(value, merged.axes, merged.place, inside, outside, merged.sums)


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
    for axis, bound, is_lower in ((large, small, True), (small, large, False)):
        if axis in extents and isinstance(axis, ir.Var) and constant(bound) is not None:
            size, limit = constant(extents[axis]), constant(bound) or 0
            if size is None:
                return None
            if is_lower:
                return {axis: (limit + strict, size)}
            return {axis: (0, min(size, limit + (not strict)))}
    return None
