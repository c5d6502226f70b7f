"""Convolutions in numpy, for laws about them."""

import itertools
from collections.abc import Sequence

import numpy as np
from tvm import relax


def convolve(call: relax.Call, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Compute a convolution, transposed or not, in any plain layout, in float64.

    Of integers in int64, which wraps around as all narrower types do.
    """
    attrs = call.attrs
    wide = np.float64 if all(operand.dtype.kind in "fV" for operand in operands) else np.int64
    data, weights = (operand.astype(wide) for operand in operands)
    rank, groups = data.ndim - 2, int(attrs.groups)
    names = "DHW"[-rank:] if rank > 1 else "W"
    data = _to(data, str(attrs.data_layout), f"NC{names}")
    weights = _to(weights, str(attrs.kernel_layout), f"OI{names}")
    before, after = (list(map(int, attrs.padding))[i : i + rank] for i in (0, rank))
    strides = [int(s) for s in attrs.strides]
    if call.op.name.endswith("_transpose"):
        weights = _to(weights, f"OI{names}", f"IO{names}")  # per input channel
        result = _scattered(data, weights, strides, before, after, groups)
    else:
        result = _gathered(data, weights, strides, before, after, groups)
    return _to(result, f"NC{names}", str(attrs.out_layout or attrs.data_layout))


def _gathered(data, weights, strides, before, after, groups):
    pads = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    padded = np.pad(data, pads)
    kernel = weights.shape[2:]
    sizes = [(n - k) // s + 1 for n, k, s in zip(padded.shape[2:], kernel, strides, strict=True)]
    out, inner = weights.shape[0], weights.shape[1]
    result = np.zeros((data.shape[0], out, *sizes), data.dtype)
    for at in itertools.product(*map(range, kernel)):
        window = [
            slice(p, p + (n - 1) * s + 1, s) for p, n, s in zip(at, sizes, strides, strict=True)
        ]
        part = padded[(slice(None), slice(None), *window)]
        for g in range(groups):
            some = slice(g * out // groups, (g + 1) * out // groups)
            read = part[:, g * inner : (g + 1) * inner]
            result[:, some] += np.einsum("nc...,oc->no...", read, weights[(some, slice(None), *at)])
    return result


def _scattered(data, weights, strides, before, after, groups):
    kernel = weights.shape[2:]
    sizes = [(n - 1) * s + k for n, s, k in zip(data.shape[2:], strides, kernel, strict=True)]
    inner, out = weights.shape[0] // groups, weights.shape[1]
    result = np.zeros((data.shape[0], out * groups, *sizes), data.dtype)
    for at in itertools.product(*map(range, kernel)):
        window = [
            slice(p, p + (n - 1) * s + 1, s)
            for p, n, s in zip(at, data.shape[2:], strides, strict=True)
        ]
        for g in range(groups):
            some = slice(g * inner, (g + 1) * inner)
            part = np.einsum("nc...,co->no...", data[:, some], weights[(some, slice(None), *at)])
            written = (slice(None), slice(g * out, (g + 1) * out), *window)
            result[written] += part
    cut = [slice(b, n - a) for b, a, n in zip(before, after, sizes, strict=True)]
    return result[(slice(None), slice(None), *cut)]


def _to(array: np.ndarray, before: str, after: str) -> np.ndarray:
    return array.transpose([before.index(letter) for letter in after])
