"""Convert normalizations, with the statistics that torch returns with the result."""

import math
from typing import Any

import numpy as np
from tvm import relax

from ...registry import Unsupported
from ...tensor_types import accumulation_dtype, dtype_of
from ..call import Call, static
from ..registry import register

op = relax.op


@register("native_layer_norm")
def layer_norm(call: Call) -> Any:
    """Normalize over the last axes."""
    x, extents = call.tensor("input"), call["normalized_shape"]
    axes = list(range(-len(extents), 0))
    narrow = dtype = dtype_of(x)
    weight, bias = call["weight"], call["bias"]
    given = [dtype_of(part) for part in (weight, bias) if part is not None]
    if any(other != narrow for other in given):  # wider ones, under autocast
        dtype = accumulation_dtype(narrow)
        x = call.cast(x, dtype)
    if weight is None or bias is None:
        extents = static(extents)
    weight = relax.const(np.ones(extents), dtype) if weight is None else call.cast(weight, dtype)
    bias = relax.const(np.zeros(extents), dtype) if bias is None else call.cast(bias, dtype)
    result = call.emit(op.nn.layer_norm(x, weight, bias, axes=axes, epsilon=call["eps"]))
    result = call.cast(result, narrow)
    return result, *_statistics(call, x, axes, call["eps"], [1, 2], True)


@register("native_group_norm")
def group_norm(call: Call) -> Any:
    """Normalize over groups of channels."""
    groups, eps, fake = call["group"], call["eps"], call.meta("input")
    call.raw("N"), call.raw("C"), call.raw("HxW")
    (channels,) = static([fake.shape[1]])
    narrow = dtype_of(call.tensor("input"))
    dtype = "float32" if narrow == "bfloat16" else narrow  # Relax's takes no bfloat16.
    x = call.tensor("input", dtype)
    weight, bias = call["weight"], call["bias"]
    weight = relax.const(np.ones(channels), dtype) if weight is None else call.cast(weight, dtype)
    bias = relax.const(np.zeros(channels), dtype) if bias is None else call.cast(bias, dtype)
    axes = list(range(2, len(fake.shape)))
    result = call.emit(
        op.nn.group_norm(x, weight, bias, num_groups=groups, channel_axis=1, axes=axes, epsilon=eps)
    )
    result = call.cast(result, narrow)
    if not (call.is_used(1) or call.is_used(2)):
        return result, None, None
    grouped = call.emit(op.reshape(x, [fake.shape[0], groups, -1]))
    return result, *_statistics(call, grouped, [2], eps, [1, 2], False)


@register("_native_batch_norm_legit_no_training")
def batch_norm(call: Call) -> Any:
    """Normalize by stored statistics; the empty tensors next to the result are not made."""
    mean, variance = call.tensor("running_mean"), call.tensor("running_var")
    call.raw("momentum")
    result = _batch_norm(call, mean, variance)
    return result, None, None


@register("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_functional")
def batch_norm_of_batch(call: Call) -> Any:
    """Normalize by the batch's own statistics, and update the stored ones."""
    x, fake = call.tensor("input"), call.meta("input")
    training, momentum = call["training"], call["momentum"]
    updates = "running_mean" in call
    if not training and updates:
        mean, variance = call.tensor("running_mean"), call.tensor("running_var")
        if any(call.is_used(i) for i in (1, 2)):
            raise Unsupported("outside of training with statistics used", "use its first result")
        return _batch_norm(call, mean, variance), None, None, mean, variance
    axes = [a for a in range(len(fake.shape)) if a != 1]
    wide = call.wide(x)
    mean = call.emit(op.mean(wide, axes))
    variance = call.emit(op.variance(wide, axes))
    result = _batch_norm(call, mean, variance)
    eps = relax.const(call["eps"], dtype_of(wide))
    results = [result, None, None]
    if call.is_used(1):
        results[1] = call.cast(mean, _dtype(call, 1))
    if call.is_used(2):
        results[2] = call.cast(call.emit(op.rsqrt(op.add(variance, eps))), _dtype(call, 2))
    if not updates:
        return tuple(results)
    count = math.prod(static([fake.shape[a] for a in axes]))
    unbiased = op.multiply(variance, relax.const(count / max(1, count - 1), dtype_of(variance)))
    pairs = ((mean, "running_mean"), (call.emit(unbiased), "running_var"))
    for place, (now, name) in enumerate(pairs, 3):
        before = call.tensor(name)
        kept = op.multiply(before, relax.const(1 - momentum, dtype_of(before)))
        added = op.multiply(call.cast(now, dtype_of(before)), _const(momentum, before))
        results.append(call.cast(call.emit(op.add(kept, added)), _dtype(call, place)))
    return tuple(results)


def _batch_norm(call: Call, mean: Any, variance: Any) -> Any:
    """Normalize in float32 where the tensor is of a half type, as torch does."""
    narrow = dtype_of(call.tensor("input"))
    dtype = accumulation_dtype(narrow)
    x = call.tensor("input", dtype)
    # Instances are channels to torch: as many as a batch has, which may be symbolic.
    channels = call.extent(call.meta("input").shape[1])
    weight, bias = call["weight"], call["bias"]
    if not isinstance(channels, int):
        weight = op.ones([channels], dtype) if weight is None else weight
        bias = op.zeros([channels], dtype) if bias is None else bias
    weight = relax.const(np.ones(channels), dtype) if weight is None else weight
    bias = relax.const(np.zeros(channels), dtype) if bias is None else bias
    parts = [call.cast(p, dtype) for p in (weight, bias, mean, variance)]
    both = call.emit(op.nn.batch_norm(x, *parts, axis=1, epsilon=call["eps"], training=False))
    return call.cast(call.emit(both[0]), narrow)


def _statistics(
    call: Call, x: Any, axes: list[int], eps: float, numbers: list[int], keeps: bool
) -> tuple[Any, Any]:
    """Return the mean and the reciprocal deviation, each where the program uses it."""
    wide = call.wide(x)
    mean = deviation = None
    if call.is_used(numbers[0]):
        value = call.emit(op.mean(wide, axes, keepdims=keeps))
        mean = call.cast(value, _dtype(call, numbers[0]))
    if call.is_used(numbers[1]):
        variance = op.variance(wide, axes, keepdims=keeps)
        value = call.emit(op.rsqrt(op.add(variance, relax.const(eps, dtype_of(wide)))))
        deviation = call.cast(value, _dtype(call, numbers[1]))
    return mean, deviation


def _dtype(call: Call, number: int) -> str:
    return str(call.out[number].dtype).removeprefix("torch.")


def _const(number: float, like: Any) -> Any:
    return relax.const(number, dtype_of(like))
