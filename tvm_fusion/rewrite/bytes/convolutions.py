"""Convolutions of quantized images as those of 8-bit integers, dequantized afterwards.

    conv(x - z, W)            = conv(pad(x, z), W) - z sum(W)             zeros as padding become z
    conv(s(x - z), t(W - u))  = s t (conv(pad(x, z), W - u) - z sum(W - u))

``W - u`` is constant. Where it does not fit into bytes, as of uint8 weights whose zero point is not
128, it is ``V + d`` with a number ``d`` for each output channel:

    conv(x - z, V + d) = conv(x - z, V) + d window(x - z)      sums of windows over all channels

A zero point that is known at run time alone pads by ``pad(x ^ z, 0) ^ z``.

Dot-product instructions multiply unsigned by signed bytes, so an image of
the weight's type is moved to the other one: ``x ^ 128`` seen as that is ``x + 128`` or ``x - 128``,
and z moves as x does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.ir import GenericConst
from tvm.target import Target

from ...core.constants.weight_names import derived
from ...frontend.normalize.engine import Scope, op_name
from ...frontend.tensor_types import dtype_of
from ..egraph.changes import Change, note
from .operands import (
    BYTES,
    WIDE_WEIGHTS,
    Dequantized,
    IntegerWeights,
    byte_tensor,
    decide,
    dequantized,
    integer_weights,
    is_single,
    scalar,
    scaled,
)
from .widened_convolutions import CONVOLUTIONS, ByteImage, convolve, widened

WORD = 4  # channels that an instruction multiplies together
SIGN = 128


def convolution(conv: relax.Call, scope: Scope) -> Any:
    """Rewrite a convolution; None where it stays as it is."""
    attrs = conv.attrs
    if not str(attrs.data_layout).startswith("NC") or not str(attrs.kernel_layout).startswith("OI"):
        return None
    if dtype_of(conv) == "int32":
        return _integers(conv, scope)
    return _dequantised(conv, scope) if dtype_of(conv) == "float32" else None


def _integers(conv: relax.Call, scope: Scope) -> Any:
    given = byte_tensor(conv.args[0], scope)
    weights = integer_weights(conv.args[1], scope)
    if given is None or weights is None or (given.zero is not None and not is_single(given.zero)):
        return None
    zero = given.zero
    image = ByteImage(
        given.data,
        0 if zero is None else _number(zero, scope),
        zero is None or _was_byte(zero, scope),
    )
    narrow = narrowed(weights, int(conv.attrs.groups))
    reason = _refusal(conv, image, narrow)
    if reason is not None:
        return widened(conv, image, weights, reason, scope)
    assert narrow is not None
    is_narrow = given.data.same_as(conv.args[0]) and narrow.values.same_as(conv.args[1])
    if is_narrow and dtype_of(given.data) != dtype_of(narrow.values):
        return None
    decide(
        conv,
        scope,
        "accepted",
        "bytes",
        "Both operands are 8-bit integers: instructions widen them as they multiply.",
    )
    note(Change("", "", ("byte_products",), "conv(x - z, W)", "conv(pad(x, z), W) - z sum(W)"))
    return _of_bytes(conv, image, weights, narrow, scope)


def _dequantised(conv: relax.Call, scope: Scope) -> Any:
    rank = conv.args[1].ty.ndim
    found = dequantized(conv, 0, range(1, rank), scope)
    if found is None:
        return None
    image = ByteImage(found.data, _number(found.zero, scope))
    narrow = narrowed(found.weights, int(conv.attrs.groups))
    reason = _refusal(conv, image, narrow)
    if reason is not None:
        decide(conv, scope, "refused", *reason)
        return _of_floats(conv, found)
    assert narrow is not None
    decide(
        conv,
        scope,
        "accepted",
        "bytes",
        "The quantized operands are multiplied as 8-bit integers, and the result is dequantized.",
    )
    both_scaled = ("conv(s(x - z), t(W - u))", "s t (conv(pad(x, z), W - u) - z sum(W - u))")
    note(Change("", "", ("byte_products",), *both_scaled))
    total = scope.emit(_of_bytes(conv, image, found.weights, narrow, scope))
    return scaled(total, found.scale, found.scales, (-1, *(1,) * (rank - 2)), scope)


def _of_floats(conv: relax.Call, found: Dequantized) -> Any:
    """Dequantize the weights at compile time: convolutions on CPUs pack constant ones."""
    target = Target.current()
    if target is None or target.kind.name != "llvm":
        return None
    source = found.weights.source
    scales = found.scales.value.numpy().reshape(-1, *(1,) * (source.ty.ndim - 1))
    weights = found.weights.values.astype("float32") * scales
    floats = derived(relax.const(weights.astype("float32")), "dequantize", [source, found.scales])
    return convolve(conv, conv.args[0], floats, [int(p) for p in conv.attrs.padding], "float32")


def _refusal(
    conv: relax.Call, image: ByteImage, narrow: NarrowWeights | None
) -> tuple[str, str] | None:
    """Tell why a convolution is not computed in 8-bit integers: a code and a sentence."""
    groups, channels = int(conv.attrs.groups), int(conv.args[1].ty.shape[1])
    target = Target.current()
    if target is not None and target.kind.name != "llvm":
        return "no_byte_kernels", "Convolution kernels of 8-bit integers are for CPUs."
    if narrow is None:
        return WIDE_WEIGHTS
    if groups > 1 and channels == 1:
        return "depthwise", "It is depthwise, and dot-product instructions add up several channels."
    if groups > 1 and channels % WORD:
        return "narrow_groups", f"The channels of a group are not a multiple of {WORD}."
    if not _is_padded(conv):
        return None
    if not isinstance(image.zero, int):
        if image.has_byte_zero:
            return None
        return "unknown_padding", "The zero point that pads the image is an int32 of the run."
    limits = np.iinfo(dtype_of(image.data))
    if not limits.min <= image.zero <= limits.max:
        return "wide_padding", "The zero point that pads the image does not fit into 8 bits."
    return None


def _of_bytes(
    conv: relax.Call, image: ByteImage, weights: IntegerWeights, narrow: NarrowWeights, scope: Scope
) -> Any:
    """Convolve bytes in int32, and take the zero point times the sums of the weight away."""
    data, zero = image.data, image.zero
    padding = [int(p) for p in conv.attrs.padding]
    if any(padding) and not isinstance(zero, int):
        byte = scope.emit(relax.op.astype(zero, dtype_of(data)))
        inner = scope.emit(relax.op.bitwise_xor(data, byte))
        padded = scope.emit(_padded(inner, padding, 0))
        data, padding = scope.emit(relax.op.bitwise_xor(padded, byte)), [0] * len(padding)
    if dtype_of(data) == dtype_of(narrow.values):
        data, zero = _flipped(data, zero, scope)
    if isinstance(zero, int) and (zero or narrow.offsets is not None) and any(padding):
        data, padding = scope.emit(_padded(data, padding, zero)), [0] * len(padding)
    total = convolve(conv, data, narrow.values, padding, "int32")
    if narrow.offsets is not None:
        windows = scope.emit(window_sums(conv, data, scope))
        offsets = derived(relax.const(narrow.offsets), "offsets", [weights.source])
        total = relax.op.add(scope.emit(total), scope.emit(relax.op.multiply(windows, offsets)))
    if isinstance(zero, int) and not zero:
        return total
    total = scope.emit(total)
    behind = (1,) * (weights.values.ndim - 2)
    sums = weights.values.reshape(len(weights.values), -1).sum(axis=1).reshape(-1, *behind)
    if isinstance(zero, int):
        scaled = (zero * sums).astype("int32")  # wraps around
        away: Any = derived(relax.const(scaled), "zero_point", [weights.source])
    else:
        column_sums = derived(relax.const(sums.astype("int32")), "sum", [weights.source])
        away = scope.emit(relax.op.multiply(zero, column_sums))
    return relax.op.subtract(total, away)


def _padded(data: ir.Expr, padding: list[int], value: int) -> Any:
    half = len(padding) // 2
    ends = zip(padding[:half], padding[half:], strict=True)
    widths = [0, 0, 0, 0, *(p for pair in ends for p in pair)]
    return relax.op.nn.pad(data, widths, "constant", float(value))


def _flipped(data: ir.Expr, zero: int | ir.Expr, scope: Scope) -> tuple[ir.Expr, int | ir.Expr]:
    """Convert bytes and their zero point between int8 and uint8, shifted by 128."""
    dtype = dtype_of(data)
    by, other = (SIGN, "uint8") if dtype == "int8" else (-SIGN, "int8")
    sign = relax.const(np.array(SIGN, "uint8").view(dtype))
    flipped = scope.emit(relax.op.bitwise_xor(data, sign))
    moved = (
        zero + by
        if isinstance(zero, int)
        else scope.emit(relax.op.add(zero, relax.const(np.int32(by))))
    )
    return scope.emit(relax.op.astype(flipped, other)), moved


def _number(zero: ir.Expr, scope: Scope) -> int | ir.Expr:
    """Return the value of a zero point that is known, or else an int32 scalar."""
    if isinstance(zero, GenericConst):
        return int(zero.value.numpy().reshape(()))
    return scalar(zero, "int32", scope)


def _was_byte(zero: ir.Expr, scope: Scope) -> bool:
    """Whether a tensor is one of bytes, widened."""
    if dtype_of(zero) in BYTES:
        return True
    value = scope.call(zero, "relax.astype", "relax.reshape")
    return value is not None and _was_byte(value.args[0], scope)


def _is_padded(conv: relax.Call) -> bool:
    return any(int(p) for p in conv.attrs.padding)


# Weights of convolutions as bytes and, where they do not fit, a number next to them.
_INT8 = np.iinfo("int8")


@dataclass(frozen=True)
class NarrowWeights:
    """``values + offsets``."""

    values: GenericConst  # bytes
    # An int32 for each output channel, along the axis that results have it on; None: zeros.
    offsets: np.ndarray | None


def narrowed(weights: IntegerWeights, groups: int) -> NarrowWeights | None:
    """Write weights as bytes; None where those of an output channel lie further apart.

    Parameters
    ----------
    weights
        With the output channels first.
    groups
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
