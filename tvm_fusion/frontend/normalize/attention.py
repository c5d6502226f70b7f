"""Expand attention into products and a softmax."""

from typing import Any

import numpy as np
from tvm import relax, tirx

from .engine import Scope, op_name, rewrite_pass

_NAMES = ("relax.nn.attention", "relax.nn.attention_bias")


@rewrite_pass
def ExpandAttention(value: Any, scope: Scope) -> Any:
    """``attention(q, k, v, bias) = softmax(q k^T * scale + bias) v`` of each head.

    Kernels of attention are made of the two products and the softmax; TVM's own legalization is a
    single function of five loop nests. Scores are float32, as there.
    """
    if op_name(value) not in _NAMES or value.attrs.window_size is not None:
        return None
    q, k, v = value.args[:3]
    if not all(isinstance(x.ty.shape, relax.ShapeExpr) for x in value.args):
        return None
    dtype, (_, queries, _, size) = str(q.ty.dtype.dtype), q.ty.shape.values
    keys = k.ty.shape.values[1]
    if value.attrs.scale is None and not isinstance(size, tirx.IntImm):
        return None
    scale = int(size) ** -0.5 if value.attrs.scale is None else float(value.attrs.scale)
    q, v = (scope.emit(relax.op.permute_dims(x, [0, 2, 1, 3])) for x in (q, v))
    k = scope.emit(relax.op.permute_dims(k, [0, 2, 3, 1]))
    scores = scope.emit(relax.op.matmul(q, k, out_dtype="float32"))
    scores = scope.emit(relax.op.multiply(scores, relax.const(np.float32(scale))))
    for bias in value.args[3:]:
        wide = scope.emit(relax.op.astype(bias, "float32"))
        scores = scope.emit(relax.op.add(scores, wide))
    if value.attrs.causal_mask is not None:
        ahead = 0
        if str(value.attrs.causal_mask) == "BottomRight":
            ahead = tirx.abs(queries - keys)
        shown = _not_behind(queries, keys, ahead, scope)
        hidden = relax.const(np.float32(-np.inf))
        scores = scope.emit(relax.op.where(shown, scores, hidden))
    weights = scope.emit(relax.op.nn.softmax(scores, -1))
    if dtype != "float32":
        weights = scope.emit(relax.op.astype(weights, dtype))
    heads = scope.emit(relax.op.matmul(weights, v))
    return relax.op.permute_dims(heads, [0, 2, 1, 3])


def _not_behind(queries: Any, keys: Any, ahead: Any, scope: Scope) -> Any:
    """Tell the keys that stand at most ``ahead`` behind each query."""
    first = relax.prim_value(ahead)
    rows = scope.emit(relax.op.arange(first, relax.prim_value(queries + ahead), 1, "int64"))
    columns = scope.emit(relax.op.arange(relax.prim_value(keys), dtype="int64"))
    rows = scope.emit(relax.op.expand_dims(rows, 1))
    return scope.emit(relax.op.less_equal(columns, rows))
