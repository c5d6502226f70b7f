"""Layer norm and RMS norm: normalized rows, with a scale and a shift along the rows."""

from typing import Any

from tvm import relax

from ..matching.extents import known_shape
from ..matching.view import View
from ..pattern import Match, Mismatch, Pattern, Writer
from .standardize import Standardized, operands_of, standardized

NORM_ROOTS = frozenset({"add", "subtract", "multiply", "divide"})
NORM_ANCHORS = frozenset({"sqrt", "rsqrt", "power"})


class LayerNorm(Pattern):
    """``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * g + b = layer_norm(x, g, b, eps)``.

    With or without ``g`` and ``b``. So is the form with ``mean(x^2) - mean(x)^2`` as variance: the
    deviations' squares lose nothing by cancellation, so the operator is only more accurate.
    """

    name = "layer_norm"
    roots = NORM_ROOTS
    anchors = NORM_ANCHORS

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find rows that are centred and divided by their deviation."""
        found = standardized(view, root, is_centred=True)
        if not isinstance(found, Standardized):
            return found
        axes = found.axes
        if not all(v is None or v.lies_in(axes) for v in (found.scale, found.shift)):
            return Mismatch(found.spread.var, "scale or shift vary along other axes")

        def apply(x: Any, gamma: Any, beta: Any) -> relax.Call:
            return relax.op.nn.layer_norm(
                x, gamma, beta, list(axes), found.spread.epsilon,
                center=found.shift is not None, scale=found.scale is not None,
            )  # fmt: skip

        return compose(view, found, root, axes, apply)


class RMSNorm(Pattern):
    """``x / sqrt(mean(x^2) + eps) * g = rms_norm(x, g, eps)``, with or without ``g``."""

    name = "rms_norm"
    roots = NORM_ROOTS
    anchors = NORM_ANCHORS

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find rows that are divided by the root of their mean square."""
        found = standardized(view, root, is_centred=False)
        if not isinstance(found, Standardized):
            return found
        axes = found.axes
        if found.shift is not None:
            return Mismatch(found.spread.var, "a shift is added, which an RMS norm does not have")
        if found.scale is not None and not found.scale.lies_in(axes):
            return Mismatch(found.spread.var, "the scale varies along other axes")

        def apply(x: Any, weight: Any, _: Any) -> relax.Call:
            return relax.op.nn.rms_norm(x, weight, list(axes), found.spread.epsilon)

        return compose(view, found, root, axes, apply)


def compose(
    view: View, found: Standardized, root: relax.Var, axes: tuple[int, ...], apply: Any
) -> Match:
    """Write a norm whose scale and shift have some axes of the root.

    A norm of half operands that is computed in float32 and rounded is one of half operands: it
    computes in float32 as well, and reads and writes half as much.

    Parameters
    ----------
    found
        What the norm is of.
    root
        In whose place it stands.
    apply : callable
        Makes the call of ``x``, the scale and the shift.
    """
    x, vectors, dtype = operands_of(view, found.spread, found.scale, found.shift, root)
    leaves = [x, *(v.expr for v in vectors if v.expr is not None)]
    whole = known_shape(root) or []

    def build(write: Writer, x: Any, *tensors: Any) -> Any:
        given = iter(tensors)
        shape = [whole[axis] for axis in axes]
        gamma, beta = (
            v.write(write, None if v.expr is None else next(given), axes, shape, dtype)
            for v in vectors
        )
        x = write.reshape(write.cast(x, dtype), whole)
        return write.like(write.emit(apply(x, gamma, beta)), root)

    return Match(tuple(leaves), build)
