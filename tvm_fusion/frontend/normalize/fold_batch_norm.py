"""Fold batch normalization into the convolution before it, or reduce it to x * scale + shift."""

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from ...core.constants.numpy_types import numpy_dtype
from ...core.constants.weight_names import derived
from ..tensor_types import accumulation_dtype, dtype_of
from .engine import Scope, rewrite_pass

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


@rewrite_pass
def FoldBatchNorm(value: Any, scope: Scope) -> Any:
    """Remove ``relax.nn.batch_norm`` in inference mode.

    With ``scale = gamma / sqrt(var + epsilon)`` and ``shift = beta - mean * scale``:

    * ``bn(conv(x, W) + b) = conv(x, W * scale) + (b * scale + shift)`` where ``W`` and ``b`` are
      constants and nothing else reads the convolution; ``b`` may be absent;
    * ``bn(x) = x * scale + shift`` elsewhere.

    Constants are computed in float64 and rounded once. Source: Jacob et al., "Quantization and
    Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", section 3.2.
    """
    if not isinstance(value, relax.TupleGetItem):
        return None
    norm = scope.call(value.tuple_value, "relax.nn.batch_norm")
    if norm is None or norm.attrs.training:
        return None
    data, gamma, beta, mean, var = norm.args
    if value.index > 0:  # inference hands the running statistics on
        return mean if value.index == 1 else var
    axis = int(norm.attrs.axis) % data.ty.ndim
    if not all(isinstance(p, GenericConst) for p in (gamma, beta, mean, var)):
        return _by_operators(norm, axis, scope)
    gamma_, beta_, mean_, var_ = (
        p.value.numpy().astype(np.float64) for p in (gamma, beta, mean, var)
    )
    scale = 1.0 / np.sqrt(var_ + float(norm.attrs.epsilon))
    if norm.attrs.scale:
        scale = scale * gamma_
    shift = -mean_ * scale
    if norm.attrs.center:
        shift = shift + beta_
    along = [1] * data.ty.ndim
    along[axis] = scale.size
    dtype = dtype_of(data)
    into_conv = _into_convolution(data, scale, shift, axis, scope)
    if into_conv is not None:
        return into_conv
    wide = accumulation_dtype(dtype)
    data = data if wide == dtype else scope.emit(relax.op.astype(data, wide))
    scaled = scope.emit(relax.op.multiply(data, _const(scale.reshape(along), wide, gamma)))
    result = relax.op.add(scaled, _const(shift.reshape(along), wide, beta))
    return result if wide == dtype else relax.op.astype(scope.emit(result), dtype)


def _into_convolution(
    data: Any, scale: np.ndarray, shift: np.ndarray, axis: int, scope: Scope
) -> Any:
    """Scale the weights of the convolution behind ``data``; None where that is not possible."""
    if scope.uses(data) != 1:
        return None
    conv, bias, bias_source = data, None, None
    addition = scope.call(data, "relax.add")
    if addition is not None:
        constant = [arg for arg in addition.args if isinstance(arg, GenericConst)]
        variable = [arg for arg in addition.args if not isinstance(arg, GenericConst)]
        if len(constant) != 1 or scope.uses(variable[0]) != 1:
            return None
        conv, bias_source = variable[0], constant[0]
        bias = _per_channel(bias_source.value.numpy(), scale.size, axis, data.ty.ndim)
        if bias is None:
            return None
    call = scope.call(conv, *_CONVOLUTIONS)
    if call is None or not isinstance(call.args[1], GenericConst):
        return None
    layouts = str(call.attrs.kernel_layout), str(call.attrs.out_layout or call.attrs.data_layout)
    # Blocked layouts such as OIHW4o split the channel over two axes.
    if not all(layout.isalpha() and layout.isupper() for layout in layouts):
        return None
    if layouts[1].index("C") != axis:
        return None
    weight = call.args[1]
    along = [1] * weight.ty.ndim
    along[layouts[0].index("O")] = scale.size
    scaled = weight.value.numpy().astype(np.float64) * scale.reshape(along)
    new = relax.Call(
        call.op,
        [call.args[0], _const(scaled, dtype_of(weight), weight)],
        call.attrs,
        call.ty_args,
    )
    shift = shift if bias is None else shift + bias * scale
    across = [1] * data.ty.ndim
    across[axis] = shift.size
    constant = _const(shift.reshape(across), dtype_of(data), bias_source)
    return relax.op.add(scope.emit(new), constant)


def _per_channel(bias: np.ndarray, channels: int, axis: int, ndim: int) -> np.ndarray | None:
    """Return a constant that broadcasts along ``axis`` alone as a vector, or None."""
    shape = (1,) * (ndim - bias.ndim) + bias.shape
    if len(shape) != ndim or any(n != 1 for i, n in enumerate(shape) if i != axis):
        return None
    return np.broadcast_to(bias.astype(np.float64).reshape(-1), (channels,))


def _by_operators(norm: relax.Call, axis: int, scope: Scope) -> Any:
    """Expand the normalization where its parameters are not constants."""
    data, gamma, beta, mean, var = norm.args
    others = [i for i in range(data.ty.ndim) if i != axis]
    narrow = dtype_of(data)
    dtype = accumulation_dtype(narrow)
    if dtype != narrow:
        data, gamma, beta, mean, var = (
            scope.emit(relax.op.astype(x, dtype)) for x in (data, gamma, beta, mean, var)
        )
    spread = scope.emit(
        relax.op.rsqrt(relax.op.add(var, relax.const(float(norm.attrs.epsilon), dtype)))
    )
    scale = scope.emit(relax.op.multiply(gamma, spread)) if norm.attrs.scale else spread
    shift = scope.emit(relax.op.negative(relax.op.multiply(mean, scale)))
    if norm.attrs.center:
        shift = scope.emit(relax.op.add(beta, shift))
    scaled = scope.emit(relax.op.multiply(data, relax.op.expand_dims(scale, others)))
    result = relax.op.add(scaled, relax.op.expand_dims(shift, others))
    return result if dtype == narrow else relax.op.astype(scope.emit(result), narrow)


def _const(array: np.ndarray, dtype: str, source: Any) -> GenericConst:
    const = relax.const(np.ascontiguousarray(array.astype(numpy_dtype(dtype))), dtype)
    return const if source is None else derived(const, "batch_norm", [source])
