"""Convolutions of bytes that instructions for bytes are not for: of int16, or of float32.

Differences of bytes are int16, and so are weights less their zero point: where x86 has no products
of their bytes it has those of pairs of int16. Depthwise convolutions multiply in float32, where few
terms are exact.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax

from ...core.constants.weight_names import derived
from ...frontend.normalize.engine import Scope, op_name
from ...frontend.tensor_types import dtype_of
from .operands import IntegerWeights, decide

CONVOLUTIONS = {f"relax.nn.conv{rank}d": getattr(relax.op.nn, f"conv{rank}d") for rank in (1, 2, 3)}
EXACT = 1 << 24  # whole numbers below it are float32 numbers
IN_INT16 = ("wide_weights", "unknown_padding", "wide_padding")  # reasons
INT16 = np.iinfo("int16").max


@dataclass(frozen=True)
class ByteImage:
    """``data - zero``: bytes, and a number or an int32 tensor of one element."""

    data: ir.Expr  # of int8 or uint8
    zero: int | ir.Expr  # the zero point
    has_byte_zero: bool = True  # whether a zero point that is no number is a byte, too

    @property
    def largest(self) -> int:
        """The largest magnitude of the difference."""
        limits = np.iinfo(dtype_of(self.data))
        least, most = np.iinfo("int8" if self.has_byte_zero else "int32").min, np.iinfo("uint8").max
        zeros = [self.zero] if isinstance(self.zero, int) else [int(least), int(most)]
        return max(abs(end - z) for end in (int(limits.min), int(limits.max)) for z in zeros)


def widened(
    conv: relax.Call,
    image: ByteImage,
    weights: IntegerWeights,
    reason: tuple[str, str],
    scope: Scope,
) -> Any:
    """Convolve in int16, or in float32 where its sums are exact; None: in int32, as it is.

    Parameters
    ----------
    conv
        The convolution, whose result is int32.
    reason
        Code and sentence: why it is not convolved in bytes.
    """
    code, sentence = reason
    terms = np.abs(weights.values.reshape(len(weights.values), -1))
    if code in IN_INT16 and max(image.largest, terms.max(initial=0)) <= INT16:
        decide(conv, scope, "refused", code, f"{sentence} It is convolved in int16.")
        return _convolved_in(conv, image, weights, "int16", "int32", scope)
    if terms.sum(axis=1).max(initial=0) * image.largest < EXACT:
        decide(conv, scope, "refused", code, f"{sentence} Its sums are exact in float32.")
        total = scope.emit(_convolved_in(conv, image, weights, "float32", "float32", scope))
        return relax.op.astype(total, "int32")
    decide(conv, scope, "refused", code, f"{sentence} It stays in int32.")
    return None


def _convolved_in(
    conv: relax.Call,
    image: ByteImage,
    weights: IntegerWeights,
    dtype: str,
    sums: str,
    scope: Scope,
) -> Any:
    x = scope.emit(relax.op.astype(image.data, dtype))
    if not isinstance(image.zero, int):
        x = scope.emit(relax.op.subtract(x, scope.emit(relax.op.astype(image.zero, dtype))))
    elif image.zero:
        x = scope.emit(relax.op.subtract(x, relax.const(np.array(image.zero, dtype))))
    w = derived(relax.const(weights.values.astype(dtype)), "astype", [weights.source])
    return convolve(conv, x, w, [int(p) for p in conv.attrs.padding], sums)


def convolve(conv: relax.Call, x: ir.Expr, w: ir.Expr, padding: list[int], dtype: str) -> Any:
    """Convolve other operands with the attributes of a convolution, but its padding."""
    attrs = conv.attrs
    return CONVOLUTIONS[op_name(conv)](
        x,
        w,
        [int(s) for s in attrs.strides],
        padding,
        [int(d) for d in attrs.dilation],
        int(attrs.groups),
        attrs.data_layout,
        attrs.kernel_layout,
        attrs.out_layout,
        dtype,
    )
