"""Convert operators that make tensors, and reads of extents and values, with their assertions."""

from typing import Any

import torch
from torch import fx
from tvm import relax

from ....core.decisions import Decision, record
from ...registry import Unsupported
from ...tensor_types import is_float
from ..call import Call
from ..registry import register

op = relax.op

#: Elements up to which a computed table is stored with the model.
_LARGEST_TABLE = 2**22


@register("full", "ones", "zeros", "empty.memory_format", "empty", "empty_permuted")
@register("new_full", "new_ones", "new_zeros", "new_empty", "new_empty_strided", "empty_strided")
@register("full_like", "ones_like", "zeros_like", "empty_like", "fill.Scalar", "fill.Tensor")
def fill(call: Call) -> Any:
    """Fill a tensor; one that torch leaves without values gets zeros."""
    name = call.node.target.__name__.split(".")[0]
    for given in call.given:
        if given not in ("fill_value", "value"):
            call.raw(given)
    value: Any = 1.0 if "ones" in name else 0.0
    for key in ("fill_value", "value"):
        value = call.get(key, value)
    dtype = call.dtype
    if dtype == "bool" and isinstance(value, float):
        value = bool(value)
    filling = call.as_tensor(value, dtype)
    shape = call.shape()
    if "_like" in name:  # No constant is made of it, which would be as large as the tensor.
        return op.full_like(call.tensor("self"), filling, dtype)
    return op.full(shape, filling, dtype) if shape else op.reshape(filling, [])


@register("scalar_tensor")
def scalar(call: Call) -> Any:
    """Make a tensor of one number."""
    call.raw("dtype")
    return call.as_tensor(call["s"], call.dtype)


@register("arange", "arange.start", "arange.start_step")
def arange(call: Call) -> Any:
    """Count; in floating point as torch does, by multiplication."""
    call.raw("dtype")
    start = call.get("start", 0)
    step = call.get("step", 1)
    end = call["end"]
    if any(isinstance(getattr(x, "ty", None), relax.TensorType) for x in (start, step, end)):
        raise Unsupported(
            "over a number of a tensor that may be negative",
            "say that it is not, before: torch._check(number >= 0)",
        )
    is_whole = all(not isinstance(x, float) for x in (start, step, end))
    if is_whole and isinstance(step, int) and step < 0:
        # Relax counts downwards to one element too many, or too few.
        return _downwards(call, start, step)
    if is_whole and not is_float(call.dtype):
        return op.arange(start, end, step, call.dtype)
    if is_whole:
        return call.cast(call.emit(op.arange(start, end, step, "int64")), call.dtype)
    return table(call)


def _downwards(call: Call, start: Any, step: int) -> Any:
    (count,) = call.shape()
    up = call.emit(op.arange(0, count, 1, "int64"))
    down = op.multiply(up, relax.const(step, "int64"))
    return call.cast(call.emit(op.add(down, call.as_tensor(start, "int64"))), call.dtype)


@register("linspace", "logspace", "eye", "eye.m", "tril_indices", "triu_indices")
@register("hamming_window.periodic_alpha_beta", "hann_window.periodic", "hann_window")
@register("bartlett_window", "blackman_window", "kaiser_window", "hamming_window")
@register("hamming_window.periodic", "hamming_window.periodic_alpha", "kaiser_window.beta")
def table(call: Call) -> Any:
    """Let torch compute a tensor that depends on numbers only, and store it."""
    for name in call.given:
        if any(isinstance(x, fx.Node) for x in _leaves(call.raw(name))):
            raise Unsupported("of computed numbers", "give its arguments as numbers")
    if call.out.numel() > _LARGEST_TABLE:
        raise Unsupported(f"of {call.out.numel()} elements", "make a buffer of it")
    value = call.node.target(*call.node.args, **call.node.kwargs)
    return (
        relax.const(value.to(torch.float32).numpy().astype(call.dtype), call.dtype)
        if (call.dtype == "bfloat16")
        else relax.const(value.numpy(), call.dtype)
    )


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@register("tril", "triu")
def tril_or_triu(call: Call) -> Any:
    """Keep the elements below or above a diagonal."""
    function = op.tril if call.node.target.__name__.startswith("tril") else op.triu
    x, diagonal = call.tensor("self"), call["diagonal"]
    if call.dtype == "bool":
        return call.cast(call.emit(function(call.cast(x, "int8"), diagonal)), "bool")
    return function(x, diagonal)


@register("native_dropout")
def dropout(call: Call) -> Any:
    """Pass what is not dropped outside of training."""
    if call["train"] is not False and call["p"] != 0:
        return random(call)
    call.raw("p")
    return call.tensor("input"), call.emit(op.ones(call.shape(call.out[1]), "bool"))


@register("rand", "randn", "randint", "randint.low", "randperm", "rand_like", "randn_like")
@register("randint_like", "randint_like.low_dtype", "bernoulli", "bernoulli.p", "bernoulli.Tensor")
@register("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
@register("normal_functional", "uniform", "exponential", "geometric", "cauchy", "log_normal")
@register("multinomial", "poisson", "binomial", "_standard_gamma", "rrelu_with_noise_functional")
@register("normal.float_float", "random", "random.from", "random.to", "_sample_dirichlet")
def random(call: Call) -> Any:
    """Refuse random numbers: each call would have to draw others."""
    raise Unsupported("(random numbers)", "pass them as an input, or call model.eval() first")


@register("sym_size.int")
def sym_size(call: Call) -> Any:
    """Return an extent."""
    extent = call.importer.shape_of(call.tensor("self"))[call["dim"]]
    return int(extent) if hasattr(extent, "value") else extent


@register("sym_numel", "sym_stride.int", "sym_storage_offset", "sym_is_contiguous")
def property_of_tensor(call: Call) -> Any:
    """Return what torch knows of how a tensor is stored."""
    for name in call.given:
        call.raw(name)
    value = call.out
    if isinstance(value, bool | int):
        return value
    raise Unsupported("of a symbolic extent", "give the dimension a fixed extent")


@register("_assert_tensor_metadata", "sym_constrain_range_for_size", "sym_constrain_range")
@register("_assert_scalar")
def nothing(call: Call) -> Any:
    """Leave assertions about shapes out: what holds for extents is checked at calls."""
    for name in call.given:
        call.raw(name)
    return None


@register("_assert_async", "_assert_async.msg", "_functional_assert_async.msg")
def unchecked(call: Call) -> Any:
    """Leave an assertion about a tensor's value out, and say so."""
    told = f" ({call['assert_msg']})" if "assert_msg" in call else ""
    sentence = f"An assertion about a value{told} is not checked when the program runs."
    record(Decision(call.node.name, "", "refused", "assertion", sentence))
    return nothing(call)


@register("_linalg_check_errors")
def unchecked_matrix(call: Call) -> Any:
    """Leave linalg's check of singular matrices out; the factorization says so."""
    return nothing(call)
