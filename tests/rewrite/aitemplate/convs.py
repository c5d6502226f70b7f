"""Convolutions with what follows, and the special ones."""

import numpy as np
from tvm import relax
from tvm.relax import op

from .row import Row, example, relu, sigmoid, tensor, weight

_W = weight(8, 5, 3, 3)
_FEW = weight(16, 3, 7, 7)
_POINTS = weight(16, 5, 1, 1)
_DEPTH = weight(5, 1, 3, 3)
_UP = weight(5, 8, 2, 2)
_CUBE = weight(4, 3, 3, 3, 3)
_BIAS, _MORE, _FOUR = weight(8), weight(16), weight(4)
_SCALE, _SHIFT, _MEAN = weight(8), weight(8), weight(8)
_VARIANCE = np.abs(weight(8)) + 0.5


def _const(x):
    return relax.const(x)


def _bias(b):
    return _const(b.reshape(-1, *(1,) * 2))


def _conv(e, x, w=_W, b=_BIAS, **options):
    y = e(op.nn.conv2d(x, _const(w), **{"padding": 1, **options}))
    return y if b is None else e(op.add(y, _bias(b)))


def convolve(x: np.ndarray, w: np.ndarray, padding=1, strides=1, groups=1) -> np.ndarray:
    """Convolve in any number of dimensions, NCHW."""
    spatial = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0)] + [(padding, padding)] * spatial)
    windows = np.lib.stride_tricks.sliding_window_view(
        x, w.shape[2:], axis=tuple(range(2, 2 + spatial))
    )
    steps = (slice(None, None, strides),) * spatial
    windows = windows[(slice(None), slice(None), *steps)]
    parts = []
    for x_, w_ in zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True):
        over = (1, *range(2 + spatial, 2 + 2 * spatial))
        y = np.tensordot(x_, w_, (over, (1, *range(2, 2 + spatial))))
        parts.append(np.moveaxis(y, -1, 1))
    return np.concatenate(parts, 1)


def _b(b, spatial=2):
    return b.reshape(-1, *(1,) * spatial)


def _hard_swish(e, x):
    six = e(op.clip(e(op.add(x, relax.const(3.0, "float32"))), 0, 6))
    return op.multiply(x, e(op.divide(six, relax.const(6.0, "float32"))))


def _hard_swish_reference(x):
    return x * np.clip(x + 3, 0, 6) / 6


def _batch_norm(e, y):
    both = e(
        op.nn.batch_norm(
            y, *(_const(v) for v in (_SCALE, _SHIFT, _MEAN, _VARIANCE)), axis=1, training=False
        )
    )
    return e(relax.TupleGetItem(both, 0))


def _batch_norm_reference(y):
    return (y - _b(_MEAN)) / np.sqrt(_b(_VARIANCE) + 1e-5) * _b(_SCALE) + _b(_SHIFT)


def _up_reference(x):
    y = np.einsum("nchw,cokl->nohkwl", x, _UP)
    n, o, h, k, w, m = y.shape
    return y.reshape(n, o, h * k, w * m)


_X = tensor("x", 2, 5, 9, 11)
_R = tensor("r", 2, 8, 9, 11)

ROWS = (
    Row(
        "Convolutions with batch norms",
        ("fuse_conv_bn",),
        "FoldBatchNorm: the norm's factors go into the weights",
        (
            example(
                "conv_batch_norm_relu",
                [_X],
                lambda e, x: op.nn.relu(_batch_norm(e, _conv(e, x, b=None))),
                lambda x: relu(_batch_norm_reference(convolve(x, _W))),
            ),
            example(
                "conv_bias_batch_norm",
                [_X],
                lambda e, x: _batch_norm(e, _conv(e, x)),
                lambda x: _batch_norm_reference(convolve(x, _W) + _b(_BIAS)),
            ),
        ),
    ),
    Row(
        "Convolutions with what follows",
        ("fuse_conv_elementwise", "conv2d_bias_*", "conv3d_bias"),
        "planner + contraction and convolution templates: any maps behind the sum; transposed "
        "convolutions by phases",
        (
            example(
                "conv_bias",
                [_X],
                lambda e, x: _conv(e, x),
                lambda x: convolve(x, _W) + _b(_BIAS),
            ),
            example(
                "conv_bias_relu",
                lambda n: [tensor("x", n, 5, 9, 11)],
                lambda e, x: op.nn.relu(_conv(e, x)),
                lambda x: relu(convolve(x, _W) + _b(_BIAS)),
            ),
            example(
                "conv_bias_sigmoid",
                [_X],
                lambda e, x: op.sigmoid(_conv(e, x)),
                lambda x: sigmoid(convolve(x, _W) + _b(_BIAS)),
            ),
            example(
                "conv_bias_hardswish",
                [_X],
                lambda e, x: _hard_swish(e, _conv(e, x)),
                lambda x: _hard_swish_reference(convolve(x, _W) + _b(_BIAS)),
            ),
            example(
                "conv_bias_add_relu",
                [_X, _R],
                lambda e, x, r: op.nn.relu(e(op.add(_conv(e, x), r))),
                lambda x, r: relu(convolve(x, _W) + _b(_BIAS) + r),
            ),
            example(
                "conv_bias_add_hardswish",
                [_X, _R],
                lambda e, x, r: _hard_swish(e, e(op.add(_conv(e, x), r))),
                lambda x, r: _hard_swish_reference(convolve(x, _W) + _b(_BIAS) + r),
            ),
            example(
                "depthwise_relu",
                [_X],
                lambda e, x: op.nn.relu(_conv(e, x, _DEPTH, None, groups=5)),
                lambda x: relu(convolve(x, _DEPTH, groups=5)),
            ),
            example(
                "transposed_conv_bias_relu",
                [_X],
                lambda e, x: op.nn.relu(
                    e(op.add(e(op.nn.conv2d_transpose(x, _const(_UP), strides=2)), _bias(_BIAS)))
                ),
                lambda x: relu(_up_reference(x) + _b(_BIAS)),
            ),
            example(
                "conv3d_bias",
                [tensor("x", 1, 3, 5, 7, 6)],
                lambda e, x: op.add(
                    e(op.nn.conv3d(x, _const(_CUBE), padding=1)), _const(_b(_FOUR, 3))
                ),
                lambda x: convolve(x, _CUBE) + _b(_FOUR, 3),
            ),
            example(
                "upsampling_add",
                [tensor("x", 2, 5, 9, 11), tensor("r", 2, 5, 18, 22)],
                lambda e, x, r: op.add(
                    e(
                        op.image.resize2d(
                            x,
                            (18, 22),
                            layout="NCHW",
                            method="nearest_neighbor",
                            coordinate_transformation_mode="asymmetric",
                            rounding_method="floor",
                        )
                    ),
                    r,
                ),
                lambda x, r: x.repeat(2, 2).repeat(2, 3) + r,
            ),
        ),
    ),
    Row(
        "Special convolutions",
        ("transform_special_ops", "*_few_channels", "conv2d 1x1 as gemm"),
        "contraction and convolution templates: channels and window are one sum",
        (
            example(
                "few_channels",
                [tensor("x", 1, 3, 33, 31)],
                lambda e, x: op.nn.relu(_conv(e, x, _FEW, _MORE, padding=3, strides=2)),
                lambda x: relu(convolve(x, _FEW, 3, 2) + _b(_MORE)),
            ),
            example(
                "one_by_one",
                lambda n: [tensor("x", n, 5, 9, 11)],
                lambda e, x: op.nn.relu(_conv(e, x, _POINTS, _MORE, padding=0)),
                lambda x: relu(convolve(x, _POINTS, 0) + _b(_MORE)),
            ),
        ),
    ),
)
