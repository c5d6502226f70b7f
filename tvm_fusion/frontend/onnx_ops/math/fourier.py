"""Convert DFT and STFT to products with matrices of cosines and sines; MelWeightMatrix.

A complex tensor has a last axis of two, real and imaginary parts; a real one has a last axis of one
there. With that axis behind the transformed one, a transform is one matrix product::

    y[.., k, r] = sum over n, c of  x[.., n, c] * M[n, c, k, r]
"""

from typing import Any

import numpy as np
from tvm import relax

from ...registry import Unsupported
from ...shape_values.reference import run_node
from ...tensor_types import dtype_of
from ..node import Node
from ..registry import register

op = relax.op
# Elements of a transform's matrix: 64 MiB in float32.
_LARGEST = 2**24


def dft_matrix(
    points: int, parts: int, length: int, *, inverse: bool = False, onesided: bool = False
) -> np.ndarray:
    """Make the matrix of a discrete Fourier transform.

    Parameters
    ----------
    points
        Elements along the axis; those from ``length`` on count as cut off, missing ones as zero.
    parts
        1 for a real input, 2 for a complex one.
    inverse
        Whether it is the inverse one, with its factor of ``1 / length``.
    onesided
        Forward: only the first half of the frequencies, and the one in the middle. Inverse: the
        input has only these, and the output is real.

    Returns
    -------
    numpy.ndarray
        float64, of shape (points, parts, bins, parts of the output).
    """
    if onesided and inverse:
        used, out = min(points, length // 2 + 1), length
    else:
        used, out = min(points, length), length // 2 + 1 if onesided else length
    # Exact angles: the product modulo the length, in integers.
    turns = np.outer(np.arange(used), np.arange(out)) % length / length
    cosine, sine = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
    if not inverse:
        sine = -sine
    matrix = np.zeros((points, parts, out, 2))
    matrix[:used, 0, :, 0], matrix[:used, 0, :, 1] = cosine, sine
    if parts == 2:
        matrix[:used, 1, :, 0], matrix[:used, 1, :, 1] = -sine, cosine
    if inverse:
        matrix /= length
    if onesided and inverse:
        # Each other frequency stands for its conjugate, too.
        alone = [0, length // 2] if length % 2 == 0 else [0]
        twice = [k for k in range(used) if k not in alone]
        matrix[twice] *= 2
        matrix = matrix[..., :1]
    return matrix


@register("DFT")
def dft(node: Node) -> Any:
    """Convert DFT of known length along a constant axis."""
    shape = node.static_shape()
    rank, axis = len(shape), node.attribute("axis", 1)
    if node.opset >= 20:
        axis = int(node.required_constant(2, "axis").reshape(-1)[0]) if node.has(2) else -2
    axis %= rank
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    if axis == rank - 1 or shape[-1] not in (1, 2):
        raise Unsupported("along the axis of real and imaginary parts", "correct the axis")
    if onesided and shape[-1] != (2 if inverse else 1):
        kind = "real" if inverse else "complex"
        raise Unsupported(f"with onesided on a {kind} input", "leave onesided out")
    length = 2 * (shape[axis] - 1) if onesided and inverse else shape[axis]
    if node.has(1):
        length = int(node.required_constant(1, "dft_length").reshape(-1)[0])
    if length < 1:
        raise Unsupported(f"of length {length}", "transform one point or more")
    order = [i for i in range(rank) if i != axis]
    order.insert(rank - 2, axis)
    x = node.wide(node.emit(op.permute_dims(node.inputs[0], order)))
    y = _product(node, x, shape[axis], shape[-1], length, inverse=inverse, onesided=onesided)
    back = [order.index(i) for i in range(rank)]
    return node.cast(op.permute_dims(y, back), node.dtype())


def _product(node: Node, x: Any, points: int, parts: int, length: int, **kind: bool) -> Any:
    """Transform a tensor [..., points, parts] by one matrix product."""
    size = points * parts * length * 2
    if size > _LARGEST:
        raise Unsupported(
            f"of {length} points, whose matrix has {size} elements",
            f"transform at most {int((_LARGEST / 4) ** 0.5)} points at a time",
        )
    matrix = dft_matrix(points, parts, length, **kind)
    bins, outs = matrix.shape[2:]
    dtype = dtype_of(x)
    leading = list(x.ty.shape)[:-2]
    weight = relax.const(matrix.reshape(points * parts, -1).astype(dtype), dtype)
    rows = node.emit(op.reshape(x, [*leading, points * parts]))
    return node.emit(op.reshape(node.emit(op.matmul(rows, weight)), [*leading, bins, outs]))


@register("STFT")
def stft(node: Node) -> Any:
    """Convert STFT: frames of the signal, gathered by constant numbers, times the window."""
    shape = node.static_shape()
    if len(shape) == 2:
        shape = [*shape, 1]
    step = int(node.required_constant(1, "frame_step").reshape(-1)[0])
    length = shape[1]
    if node.has(3):
        length = int(node.required_constant(3, "frame_length").reshape(-1)[0])
    elif node.has(2):
        (length,) = node.static_shape(2)
    if node.has(2) and node.static_shape(2) != [length]:
        raise Unsupported(
            f"with a window of {node.static_shape(2)} for frames of {length}",
            "give both the same length",
        )
    if step < 1 or not 1 <= length <= shape[1]:
        raise Unsupported(
            f"with frames of {length} every {step} of a signal of {shape[1]}", "correct them"
        )
    onesided = bool(node.attribute("onesided", 1))
    if onesided and shape[2] != 1:
        raise Unsupported("with onesided on a complex input", "set onesided=0")
    count = 1 + (shape[1] - length) // step
    places = np.arange(count)[:, None] * step + np.arange(length)
    signal = node.emit(op.reshape(node.inputs[0], shape))
    frames = op.take(signal, relax.const(places.reshape(-1), "int64"), 1, mode="fast")
    frames = op.reshape(node.emit(frames), [shape[0], count, length, shape[2]])
    frames = node.wide(node.emit(frames))
    if node.has(2):
        window = op.reshape(node.cast(node.inputs[2], dtype_of(frames)), [length, 1])
        frames = node.emit(op.multiply(frames, window))
    y = _product(node, frames, length, shape[2], length, onesided=onesided)
    return node.cast(y, node.dtype())


@register("MelWeightMatrix")
def mel_weight_matrix(node: Node) -> Any:
    """Convert MelWeightMatrix of constants to the matrix that onnx's reference makes."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    values = [node.required_constant(i, name) for i, name in enumerate(names)]
    node.attribute("output_datatype")
    (matrix,) = run_node(node.proto, values, node.opset)
    return relax.const(matrix, matrix.dtype.name)
