"""Operators of the mapping table's five types, each with its float64 reference.

Apart from those over images they take tensors of any rank; leading extents may be symbolic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.relax import op

from .references import EPSILON, layer_norm, softmax

Shape = Sequence[Any]
BLOCK = 2  # of depth-to-space


@dataclass(frozen=True)
class Operator:
    """One operator."""

    type: str  # its mapping type for the operand that the first operator of a pair computes
    # From the ``BlockBuilder``, that operand and the others to an expression.
    emit: Callable[..., relax.Expr]
    reference: Callable[..., np.ndarray]  # the same in numpy
    # From that operand's shape to those of the others.
    others: Callable[[Shape], list[Shape]] = lambda shape: []
    # What must follow the leading extent of the graph's input, if any rank 4 will not do.
    shape: tuple[int, ...] | None = None
    position: int = 0  # which operand of the operator it is
    dtype: str = "float32"  # type of the others


def _same(shape: Shape) -> list[Shape]:
    return [list(shape)]


def _wider(shape: Shape) -> list[Shape]:
    """Broadcast along a last axis of one element if there is one, else along a new first one."""
    return [[*shape[:-1], 9]] if _is_one(shape[-1]) else [[2, *shape]]


def _is_one(extent: Any) -> bool:
    return not hasattr(extent, "name") and str(extent) == "1"


def _shape(x: relax.Expr) -> list[Any]:
    return list(x.ty.shape)


# One-to-Many


def _broadcast(_builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    return op.broadcast_to(x, [2, *_shape(x)])


def _tile(_builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    return op.tile(x, [*[1] * (x.ty.ndim - 1), 2])


def _resize(_builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    height, width = (int(extent) for extent in _shape(x)[2:])
    return op.image.resize2d(
        x,
        (2 * height, 2 * width),
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )


# Many-to-Many


def _windows(x: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))


def _conv2d(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.einsum("nchwij,ocij->nohw", _windows(x), weight)


# Reorganize


def _swapped(shape: Shape) -> list[Any]:
    *leading, rows, columns = shape
    return [*leading, columns, rows]


# Shuffle


def _rotated(rank: int) -> list[int]:
    """Move the last axis behind the first."""
    return [0, rank - 1, *range(1, rank - 1)]


def _depth_to_space_te(x: te.Tensor) -> te.Tensor:
    batch, depth, height, width = x.shape
    channels = depth // (BLOCK * BLOCK)

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        offset = (h % BLOCK) * BLOCK + w % BLOCK
        return x[n, offset * channels + c, h // BLOCK, w // BLOCK]

    shape = (batch, channels, height * BLOCK, width * BLOCK)
    return te.compute(shape, element, "depth_to_space")


def _depth_to_space(x: np.ndarray) -> np.ndarray:
    n, depth, height, width = x.shape
    blocks = x.reshape(n, BLOCK, BLOCK, depth // BLOCK**2, height, width)
    return blocks.transpose(0, 3, 4, 1, 5, 2).reshape(n, -1, height * BLOCK, width * BLOCK)


_DEPTH = (BLOCK * BLOCK, 5, 7)
_ONE_CHANNEL = (1, 5, 7)

OPERATORS = {
    "exp": Operator("One-to-One", lambda _, x: op.exp(x), np.exp),
    "add": Operator("One-to-One", lambda _, x, y: op.add(x, y), np.add, _same),
    "subtract": Operator("One-to-One", lambda _, x, y: op.subtract(x, y), np.subtract, _same),
    "subtract_from": Operator(
        "One-to-One", lambda _, x, y: op.subtract(y, x), lambda x, y: y - x, _same, position=1
    ),
    "concat": Operator(
        "One-to-One",
        lambda _, x, y: op.concat([x, y], axis=1),
        lambda x, y: np.concatenate([x, y], 1),
        _same,
    ),
    "slice": Operator(
        "One-to-One",
        lambda _, x: op.strided_slice(
            x, [x.ty.ndim - 2], [1], [int(x.ty.shape[-2])], [2], assume_inbound=True
        ),
        lambda x: x[..., 1::2, :],
    ),
    "broadcast": Operator("One-to-Many", _broadcast, lambda x: np.broadcast_to(x, (2, *x.shape))),
    "tile": Operator("One-to-Many", _tile, lambda x: np.concatenate([x, x], -1)),
    "repeat": Operator(
        "One-to-Many",
        lambda _, x: op.repeat(x, 2, axis=x.ty.ndim - 1),
        lambda x: np.repeat(x, 2, -1),
    ),
    "resize": Operator("One-to-Many", _resize, lambda x: np.repeat(np.repeat(x, 2, 2), 2, 3)),
    "take": Operator(
        "One-to-Many",
        lambda _, x, i: op.take(x, i, axis=1, mode="clip"),
        lambda x, i: np.take(x, i, 1),
        lambda shape: [[11]],
        dtype="int64",
    ),
    "broadcast_subtract": Operator(
        "One-to-Many", lambda _, x, y: op.subtract(x, y), np.subtract, _wider
    ),
    "broadcast_subtract_from": Operator(
        "One-to-Many", lambda _, x, y: op.subtract(y, x), lambda x, y: y - x, _wider, position=1
    ),
    "sum": Operator(
        "Many-to-Many",
        lambda _, x: op.sum(x, axis=-1, keepdims=True),
        lambda x: x.sum(-1, keepdims=True),
    ),
    "mean": Operator(
        "Many-to-Many",
        lambda _, x: op.mean(x, axis=-1, keepdims=True),
        lambda x: x.mean(-1, keepdims=True),
    ),
    "softmax": Operator("Many-to-Many", lambda _, x: op.nn.softmax(x, axis=-1), softmax),
    "layer_norm": Operator(
        "Many-to-Many",
        lambda _, x, gamma, beta: op.nn.layer_norm(x, gamma, beta, axes=-1, epsilon=EPSILON),
        layer_norm,
        lambda shape: [[shape[-1]], [shape[-1]]],
    ),
    "max_pool": Operator(
        "Many-to-Many",
        lambda _, x: op.nn.max_pool2d(x, (3, 3)),
        lambda x: _windows(x).max((-2, -1)),
    ),
    "matmul": Operator(
        "Many-to-Many",
        lambda _, x, w: op.matmul(x, w),
        np.matmul,
        lambda shape: [[shape[-1], 11]],
    ),
    "matmul_by": Operator(
        "Many-to-Many",
        lambda _, x, w: op.matmul(w, x),
        lambda x, w: w @ x,
        lambda shape: [[11, shape[-2]]],
        position=1,
    ),
    "conv2d": Operator(
        "Many-to-Many",
        lambda _, x, w: op.nn.conv2d(x, w),
        _conv2d,
        lambda shape: [[6, shape[1], 3, 3]],
    ),
    "reshape": Operator(
        "Reorganize",
        lambda _, x: op.reshape(x, _swapped(_shape(x))),
        lambda x: x.reshape(_swapped(x.shape)),
    ),
    "flatten": Operator("Reorganize", lambda _, x: op.flatten(x), np.ravel),
    "squeeze": Operator(
        "Reorganize",
        lambda _, x: op.squeeze(x, axis=1),
        lambda x: x.squeeze(1),
        shape=_ONE_CHANNEL,
    ),
    "expand_dims": Operator(
        "Reorganize", lambda _, x: op.expand_dims(x, axis=1), lambda x: x[:, None]
    ),
    "permute_batch": Operator(
        "Shuffle",
        lambda _, x: op.permute_dims(x, [1, 0, 2, 3]),
        lambda x: x.transpose(1, 0, 2, 3),
    ),
    "permute": Operator(
        "Shuffle",
        lambda _, x: op.permute_dims(x, _rotated(x.ty.ndim)),
        lambda x: x.transpose(_rotated(x.ndim)),
    ),
    "flip": Operator("Shuffle", lambda _, x: op.flip(x, x.ty.ndim - 1), lambda x: np.flip(x, -1)),
    "depth_to_space": Operator(
        "Shuffle",
        lambda builder, x: builder.call_te(_depth_to_space_te, x),
        _depth_to_space,
        shape=_DEPTH,
    ),
    "to_channels_last": Operator(
        "Shuffle",
        lambda _, x: op.layout_transform(x, lambda n, c, h, w: (n, h, w, c)),
        lambda x: x.transpose(0, 2, 3, 1),
    ),
}
