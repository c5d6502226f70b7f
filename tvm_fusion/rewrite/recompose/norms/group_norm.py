"""Group norm and instance norm: normalized groups of channels, scaled and shifted by channel."""

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..matching.extents import extent, known_shape, same_extent, same_shape
from ..matching.match import X, anchored, over
from ..matching.polynomial import Polynomial, monomial
from ..matching.view import View
from ..pattern import Match, Mismatch, Pattern, Writer
from .layer_norm import NORM_ANCHORS, NORM_ROOTS, compose
from .standardize import Standardized, Vector, operands_of, standardized, vector

_CHANNEL = 1


class GroupNorm(Pattern):
    """``reshape(standardize(reshape(x, [N, G, C/G * ...])), [N, C, ...]) * g + b = group_norm(x)``.

    ``g`` and ``b`` change with the channel, if they are there; they may be applied before the
    reshape back.
    """

    name = "group_norm"
    roots = NORM_ROOTS | {"reshape"}
    anchors = NORM_ANCHORS

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find groups of channels that are standardized."""
        found = _grouped(view, root)
        if not isinstance(found, _Grouped):
            return found
        if found.groups == found.channels:
            return None
        return found.compose(view, root, relax.op.nn.group_norm, num_groups=found.groups)


class InstanceNorm(Pattern):
    """``(x - mean(x)) / sqrt(variance(x) + eps) * g + b = instance_norm(x, g, b)``, by channel.

    Means are over all positions of a channel, and ``g`` and ``b`` change with it; likewise through
    reshapes, as a group norm of as many groups as channels.
    """

    name = "instance_norm"
    roots = NORM_ROOTS | {"reshape"}
    anchors = NORM_ANCHORS

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find channels that are standardized."""
        grouped = _grouped(view, root)
        if isinstance(grouped, _Grouped) and grouped.groups == grouped.channels:
            return grouped.compose(view, root, relax.op.nn.instance_norm)
        found = standardized(view, root, is_centred=True)
        if not isinstance(found, Standardized):
            return grouped if isinstance(grouped, Mismatch) else None  # layer norm tells
        own = {a for v in (found.scale, found.shift) if v for a in v.where if a is not None}
        if len(own) != 1 or own & set(found.axes):
            return None
        (channel,) = own

        def apply(x: Any, gamma: Any, beta: Any) -> relax.Call:
            return relax.op.nn.instance_norm(
                x, gamma, beta, channel, list(found.axes), found.spread.epsilon,
                center=found.shift is not None, scale=found.scale is not None,
            )  # fmt: skip

        return compose(view, found, root, (channel,), apply)


@dataclass(frozen=True)
class _Grouped:
    """Groups of channels, standardized.

    Attributes
    ----------
    x : ir.Expr
        Before its channels were parted.
    inner
        The groups.
    groups, channels
        Of ``x``.
    scale, shift
        Along ``axes``.
    axes
        Of the channels, or of the groups and the channels in one, where they are applied.
    extents : list of PrimExpr
        Along them.
    """

    x: Any
    inner: Standardized
    groups: int
    channels: int
    scale: Vector | None
    shift: Vector | None
    axes: tuple[int, ...]
    extents: list[Any]

    def compose(self, view: View, root: relax.Var, operator: Any, **attributes: int) -> Match:
        """Write the operator."""
        spread = replace(self.inner.spread, x=self.x)
        source, vectors, dtype = operands_of(view, spread, self.scale, self.shift, root)
        leaves = (source, *(v.expr for v in vectors if v.expr is not None))
        positions = list(range(2, len(known_shape(root) or [])))

        def build(write: Writer, x: Any, *tensors: Any) -> Any:
            given = iter(tensors)
            gamma, beta = (
                write.reshape(
                    v.write(
                        write,
                        None if v.expr is None else next(given),
                        self.axes,
                        self.extents,
                        dtype,
                    ),
                    [self.channels],
                )
                for v in vectors
            )
            call = operator(
                write.cast(x, dtype), gamma, beta, channel_axis=_CHANNEL, axes=positions,
                epsilon=self.inner.spread.epsilon, center=self.shift is not None,
                scale=self.scale is not None, **attributes,
            )  # fmt: skip
            return write.like(write.emit(call), root)

        return Match(leaves, build)


def _grouped(view: View, root: relax.Var) -> _Grouped | Mismatch | None:
    shape = known_shape(root) or []
    channels = extent(shape[_CHANNEL]) if len(shape) > 2 else None
    if channels is None:
        return None
    axes: tuple[int, ...]
    for back in anchored(view, root, "reshape"):
        if not same_shape(known_shape(back) or [], shape):
            continue
        inner = standardized(view, view.value(back).args[0], is_centred=True)
        if not isinstance(inner, Standardized):
            continue
        at = inner.spread.var
        x = _before_parting(view, inner.spread.x, shape)
        groups = _groups(known_shape(view.value(back).args[0]) or [], inner.axes, shape)
        if x is None or not groups or channels % groups:
            return Mismatch(at, "the normalized rows are not groups of channels")
        outer = _affine(view, over(view, root, back))
        if outer is None:
            return Mismatch(at, "groups are combined in another way")
        if outer == (None, None) and (inner.scale, inner.shift) != (None, None):
            parted = known_shape(view.value(back).args[0]) or []
            axes, extents, outer = (1, 2), parted[1:3], (inner.scale, inner.shift)
            fits = len(parted) > 3 and extent(parted[1]) == groups
            if not fits or extent(parted[2]) != channels // groups:
                return Mismatch(at, "scale or shift vary within a channel")
        else:
            axes, extents = (_CHANNEL,), [shape[_CHANNEL]]
            if (inner.scale, inner.shift) != (None, None):
                return Mismatch(at, "scale or shift are applied twice")
        if not all(v is None or v.lies_in(axes) for v in outer):
            return Mismatch(at, "scale or shift vary along more than the channel axis")
        return _Grouped(x, inner, groups, channels, *outer, axes, extents)
    return None


def _before_parting(view: View, x: Any, shape: list[Any]) -> Any:
    """Find the tensor whose channels were parted."""
    while not same_shape(known_shape(x) or [], shape):
        call = view.call(x, "reshape")
        if call is None and not view.is_cast(x):
            return None
        x = view.value(x).args[0]
    return x


def _groups(parted: list[Any], axes: tuple[int, ...], shape: list[Any]) -> int | None:
    """Count the groups: rows without the batch axis; None if the reduced axes are not the last."""
    kept = [a for a in range(len(parted)) if a not in axes]
    if kept != list(range(len(kept))) or not kept:
        return None
    rows = [extent(parted[a]) for a in kept]
    if same_extent(parted[0], shape[0]):
        rows, batch = rows[1:], 1
    else:
        batch = extent(shape[0]) or 0
    known = [row for row in rows if row is not None]
    if len(known) != len(rows) or not batch or math.prod(known) % batch:
        return None
    return math.prod(known) // batch


def _affine(view: View, found: Polynomial | None) -> tuple[Vector | None, Vector | None] | None:
    """Read ``x * scale + shift``."""
    scale: Vector | None = None
    shift: Vector | None = None
    for factors, coefficient in (found or {}).items():
        rest = dict(factors)
        power = rest.pop(X, 0)
        read = vector(view, monomial(rest), coefficient)
        if read is None or power not in (0, 1) or (scale if power else shift) is not None:
            return None
        if power:
            scale = read
        else:
            shift = read
    if scale is None:
        return None
    return (None if scale == Vector(1.0) else scale), shift
