"""Weights of convolutions as bytes and, where they do not fit, a number beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.ir import GenericConst

from ...core.weight_names import derived
from ...frontend.normalize.engine import Scope, op_name
from .operands import IntegerWeights
from .widened_convolutions import CONVOLUTIONS

_INT8 = np.iinfo("int8")


@dataclass(frozen=True)
class NarrowWeights:
    """``values + offsets``.

    Attributes
    ----------
    values : GenericConst
        Bytes.
    offsets : numpy.ndarray or None
        An int32 for each output channel, along the axis that results have it on; None: zeros.
    """

    values: GenericConst
    offsets: np.ndarray | None


def narrowed(weights: IntegerWeights, groups: int) -> NarrowWeights | None:
    """Write weights as bytes; None where those of an output channel lie further apart.

    Parameters
    ----------
    weights : IntegerWeights
        With the output channels first.
    groups : int
        Of the convolution: several have no offsets, whose sums would be those of each group.
    """
    whole = weights.bytes()
    if whole is not None:
        return NarrowWeights(whole, None)
    rows = weights.values.reshape(len(weights.values), -1)
    low, high = rows.min(axis=1), rows.max(axis=1)
    if groups > 1 or (high - low > _INT8.max - _INT8.min).any():
        return None
    offsets = np.maximum(high - _INT8.max, 0) + np.minimum(low - _INT8.min, 0)
    ones = (1,) * (weights.values.ndim - 1)
    values = (weights.values - offsets.reshape(-1, *ones)).astype("int8")
    # Channels follow the batch in the result, and the other axes follow them.
    return NarrowWeights(
        derived(relax.const(values), "offset", [weights.source]),
        offsets.astype("int32").reshape(-1, *ones[1:]),
    )


def window_sums(conv: relax.Call, data: ir.Expr, scope: Scope) -> Any:
    """Sum the windows of a padded image of bytes over all channels, in int32.

    In float32, which has all whole numbers that as many bytes add up to as int32 has products of.
    """
    rank = conv.args[1].ty.ndim - 2
    wide = scope.emit(relax.op.astype(data, "float32"))
    channels = scope.emit(relax.op.sum(wide, [1], keepdims=True))
    extents = [int(extent) for extent in conv.args[1].ty.shape][2:]
    attrs = conv.attrs
    sums = CONVOLUTIONS[op_name(conv)](
        channels,
        relax.const(np.ones((1, 1, *extents), "float32")),
        [int(s) for s in attrs.strides],
        [0] * (2 * rank),
        [int(d) for d in attrs.dilation],
        1,
        attrs.data_layout,
        attrs.kernel_layout,
        attrs.out_layout,
        "float32",
    )
    return relax.op.astype(scope.emit(sums), "int32")
