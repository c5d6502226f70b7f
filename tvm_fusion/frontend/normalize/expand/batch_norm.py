"""Expand batch normalization of training into operators.

TVM 0.27's DecomposeOpsForInference takes it for one of inference, silently.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...tensor_types import dtype_of
from ..engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ExpandBatchNorm(value: Any, scope: Scope) -> Any:
    """Compute ``relax.nn.batch_norm`` with ``training`` from the batch's own statistics.

    The results are ``(x - mean) / sqrt(var + epsilon) * gamma + beta`` and the running statistics,
    moved by ``momentum`` towards the mean and the variance (without Bessel's correction).
    """
    if op_name(value) != "relax.nn.batch_norm" or not value.attrs.training:
        return None
    data, gamma, beta, running_mean, running_var = value.args
    axis = int(value.attrs.axis) % data.ty.ndim
    others = [i for i in range(data.ty.ndim) if i != axis]

    def along(vector: Any) -> Any:
        return scope.emit(relax.op.expand_dims(vector, others))

    def moved(running: Any, batch: Any) -> Any:
        dtype, momentum = dtype_of(running), float(value.attrs.momentum)
        old = scope.emit(relax.op.multiply(running, relax.const(1 - momentum, dtype)))
        new = scope.emit(relax.op.multiply(batch, relax.const(momentum, dtype)))
        return scope.emit(relax.op.add(old, new))

    mean = scope.emit(relax.op.mean(data, others))
    var = scope.emit(relax.op.variance(data, others))
    epsilon = relax.const(float(value.attrs.epsilon), dtype_of(data))
    scale = scope.emit(relax.op.rsqrt(scope.emit(relax.op.add(var, epsilon))))
    if value.attrs.scale:
        scale = scope.emit(relax.op.multiply(scale, gamma))
    result = scope.emit(relax.op.subtract(data, along(mean)))
    result = scope.emit(relax.op.multiply(result, along(scale)))
    if value.attrs.center:
        result = scope.emit(relax.op.add(result, along(beta)))
    return relax.Tuple([result, moved(running_mean, mean), moved(running_var, var)])
