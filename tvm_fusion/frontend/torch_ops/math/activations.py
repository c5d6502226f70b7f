"""Convert activations that torch does not decompose."""

from typing import Any

from tvm import relax

from ...operators import formulas
from ...registry import Unsupported
from ..call import Call
from ..registry import register

op = relax.op


@register("elu")
def elu(call: Call) -> Any:
    """Convert ELU, SELU and CELU: negative values through the exponential function."""
    alpha, scale, input_scale = (call[name] for name in ("alpha", "scale", "input_scale"))
    x = call.wide(call.tensor("self"))
    result = formulas.elu(x, alpha, scale, input_scale, dtype=call.dtype)
    return call.cast(call.emit(result), call.dtype)


@register("gelu")
def gelu(call: Call) -> Any:
    """Convert GELU, by erf or by tanh."""
    kinds = {"none": op.nn.gelu, "tanh": op.nn.gelu_tanh}
    return kinds[call["approximate"]](call.tensor("self"))


@register("leaky_relu", "hardtanh", "hardsigmoid", "hardswish", "relu6")
def piecewise(call: Call) -> Any:
    """Convert activations of straight pieces."""
    x, name, dtype = call.tensor("self"), call.node.target.__name__, call.dtype
    if name.startswith("leaky_relu"):
        return op.nn.leakyrelu(x, call["negative_slope"])
    if name.startswith("relu6"):
        return op.clip(x, 0, 6)
    if name.startswith("hardtanh"):
        return op.clip(x, call["min_val"], call["max_val"])
    gate = op.divide(
        op.clip(op.add(x, relax.const(3, dtype)), 0, 6),
        relax.const(6, dtype),
    )
    return gate if name.startswith("hardsigmoid") else op.multiply(x, gate)


@register("softplus")
def softplus(call: Call) -> Any:
    """Convert softplus; above the threshold the argument itself."""
    return op.nn.softplus(call.tensor("self"), call["beta"], call["threshold"])


@register("softshrink")
def softshrink(call: Call) -> Any:
    """Convert softshrink: values are moved towards zero."""
    x, edge = call.tensor("self"), call["lambd"]
    dtype = call.dtype
    up, down = relax.const(edge, dtype), relax.const(-edge, dtype)
    below = op.where(op.less(x, down), op.add(x, up), op.multiply(x, _zero(dtype)))
    return op.where(op.greater(x, up), op.subtract(x, up), below)


@register("_softmax", "softmax.int", "_log_softmax", "log_softmax.int")
def softmax(call: Call) -> Any:
    """Convert softmax and its logarithm."""
    if call.get("half_to_float"):
        raise Unsupported("from a half type to float32", "cast the argument first")
    x = call.tensor("self", call.dtype)
    if "dtype" in call:
        call.raw("dtype")
    axis, name = call["dim"], call.node.target.__name__
    if not call.out.shape:
        return op.zeros_like(x) if "log" in name else op.ones_like(x)
    return (op.nn.log_softmax if "log" in name else op.nn.softmax)(x, axis)


@register("prelu", "_prelu_kernel")
def prelu(call: Call) -> Any:
    """Convert PReLU: slopes of negative values by channel."""
    x, slope = call.tensor("self"), call.tensor("weight")
    rank = len(call.out.shape)
    if len(call.meta("weight").shape) == 1 and rank > 1:
        slope = call.emit(op.reshape(slope, [1, -1, *[1] * (rank - 2)]))
    return op.where(op.greater(x, _zero(call.dtype)), x, op.multiply(x, slope))


def _zero(dtype: str) -> Any:
    return relax.const(0, dtype)
