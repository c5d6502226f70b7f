"""Refusals of the templates of convolutions, columns, long rows and grouped products."""

import numpy as np
from group_kernels import tensor
from refusal_case import Case
from tvm import relax, tirx

from tvm_fusion.program.layouts import Layout
from tvm_fusion.schedule.columns.template import ColumnReductions
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.contraction.cpu.templates.grouped import GroupedGemm
from tvm_fusion.schedule.contraction.gpu.grouped_gemm_template import GpuGroupedGemm
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.convolution.depthwise.gpu_template import GpuDepthwise
from tvm_fusion.schedule.convolution.template import CpuConvolution
from tvm_fusion.schedule.rows.split.template import SplitRows

op = relax.op
N = tirx.Var("n", "int64")
LAST = Layout(0)  # channels last
W = (32, 16, 3, 3)
IMAGE = [tensor("x", 1, 16, 9, 9)]
HALVES = [tensor("x", 1, 16, 9, 9, dtype="float16")]


def ones(*shape, dtype="float32"):
    return relax.const(np.ones(shape, dtype))


def conv(emit, x):
    return emit(op.nn.conv2d(x, ones(*W)))


def depthwise(emit, x):
    return emit(op.nn.conv2d(x, ones(16, 1, 3, 3, dtype="float16"), groups=16))


def gated(convolve):
    def body(emit, x):
        parts = emit(op.split(convolve(emit, x), 2, 1))
        a, b = (emit(relax.TupleGetItem(parts, i)) for i in range(2))
        return op.multiply(a, emit(op.sigmoid(b)))

    return body


def behind(convolve, last):
    return lambda emit, x: last(convolve(emit, x))


def products(*dtype):
    def body(emit, *operands):
        pairs = zip(operands[::2], operands[1::2], strict=True)
        return [op.matmul(a, b, *dtype) for a, b in pairs]

    return body


def shared_weight(emit, a, b):
    w = ones(20, 20)
    return [op.matmul(a, w), op.matmul(b, w)]


def squares(count, size, dtype):
    return [tensor(f"a{i}", size, size, dtype=dtype) for i in range(count)]


def across(emit, x, w):
    """Rows of one half of the columns, columns of the other."""
    first, second = (emit(part) for part in op.split(emit(op.matmul(x, w)), 2, -1))
    return [first, op.permute_dims(second, [1, 0])]


def centred(emit, x):
    return op.subtract(x, emit(op.mean(x, [0], True)))


CONVOLUTIONS = [
    ("no_constant_weight", [*IMAGE, tensor("w", *W)], lambda e, x, w: op.nn.conv2d(x, w), "weight"),
    (
        "several_reductions",
        IMAGE,
        behind(conv, lambda y: op.nn.softmax(y, 1)),
        "there are 3 (conv2d, softmax)",
    ),
    (
        "pooling_windows",
        IMAGE,
        behind(conv, lambda y: op.nn.max_pool2d(y, (3, 3), (2, 2))),
        "windows overlap, or have gaps",
    ),
    (
        "pooling_windows",
        IMAGE,
        behind(conv, lambda y: op.nn.max_pool2d(y, (2, 2), (2, 2), (1, 1))),
        "windows are padded",
    ),
    (
        "pooling_windows",
        IMAGE,
        behind(conv, lambda y: op.mean(y, [2, 3])),
        "rows and columns: mean reduces whole axes",
    ),
    ("pooling_windows", IMAGE, behind(conv, lambda y: op.max(y, [1])), "rows and columns"),
    ("split_channels", IMAGE, gated(conv), "several parts of the output channels"),
    (
        "unsupported_dtype",
        [tensor("x", 1, 16, 9, 9, dtype="float64")],
        lambda e, x: op.nn.conv2d(x, e(op.astype(ones(*W), "float64"))),
        "float32 or int32; conv2d does so in float64",
    ),
    ("symbolic_image", [tensor("x", 1, 16, N, 9)], conv, "symbolic"),
    (
        "not_a_window",
        [tensor("x", 1, 16, 9, 1)],
        lambda e, x: op.nn.conv2d(e(op.broadcast_to(x, (1, 16, 9, 9))), ones(*W)),
        "broadcast along some axis",
    ),
    ("padded_image", IMAGE, lambda e, x: conv(e, e(op.flip(x, 2))), "not intervals of rows"),
    (
        "not_a_window",
        [tensor("x", 1, 48, 9, 9)],
        lambda e, x: op.nn.conv2d(x, ones(16, 3, 3, 3), groups=16),
        "not one output pixel plus axes of the window",
    ),
    (
        "strided_results",
        [*IMAGE, tensor("y", 1, 3, 7, 7)],
        lambda e, x, y: op.concat([conv(e, x), y], 1),
        "Channels of a concatenation are not contiguous",
    ),
    (
        "partial_results",
        IMAGE,
        behind(conv, lambda y: op.strided_slice(y, [2], [0], [5])),
        "only a part of the channels or of the pixels",
    ),
    (
        "strided_channels",
        IMAGE,
        lambda e, x: op.nn.conv2d(x, ones(16, 1, 3, 3), groups=16),
        "Channels of the image are not contiguous",
    ),
    # Neither window nor blocks of channels: what contraction kernels are for.
    ("not_mine", IMAGE, lambda e, x: op.nn.conv2d(x, ones(32, 16, 1, 1)), "It is a GEMM"),
    # No convolution, though of one reduction: nothing is near.
    ("not_mine", [tensor("x", 33, 16)], lambda e, x: op.matmul(x, ones(16, 32)), "one pixel"),
]
DEPTHWISE = [
    (
        "no_constant_weight",
        [*HALVES, tensor("w", 16, 1, 3, 3, dtype="float16")],
        lambda e, x, w: op.nn.conv2d(x, w, groups=16),
        "takes a constant weight",
    ),
    (
        "several_reductions",
        HALVES,
        behind(depthwise, lambda y: op.nn.softmax(y, 1)),
        "A depthwise convolution computes one reduction; there are",
    ),
    ("split_channels", HALVES, gated(depthwise), "several parts of the channels"),
    ("computed_image", HALVES, lambda e, x: depthwise(e, e(op.exp(x))), "computed in the kernel"),
    ("strided_channels", HALVES, depthwise, "Channels of the image are not contiguous"),
    (
        "not_mine",
        HALVES,
        lambda e, x: op.nn.conv2d(x, ones(*W, dtype="float16")),
        "conv2d sums over channels",
    ),
]
COLUMNS = [
    (
        "unsupported_combiner",
        [tensor("x", 64, 48)],
        lambda e, x: op.prod(x, [0]),
        "prod is not a sum",
    ),
    ("unsupported_combiner", [tensor("x", 64, 48)], lambda e, x: op.argmax(x, 0), "several"),
    (
        "symbolic_extent",
        [tensor("x", N, 48)],
        lambda e, x: op.sum(x, [0]),
        "sum reduces a symbolic",
    ),
    (
        "partial_results",
        [tensor("x", 64, 48)],
        lambda e, x: op.strided_slice(e(op.sum(x, [0])), [0], [0], [16]),
        "reads only a part of the result of sum",
    ),
    # Sums along rows, and of few elements, are what row kernels are for.
    ("not_mine", [tensor("x", 64, 48)], lambda e, x: op.sum(x, [1]), "contiguous columns"),
    (
        "not_mine",
        [tensor("x", 4, 48), tensor("mask", 48, dtype="bool")],
        lambda e, x, mask: op.sum(e(op.where(mask, x, relax.const(0.0))), [0]),
        "fewer than 32 elements",
    ),
]
KERNEL_CASES = [
    *(Case(c, CpuConvolution(), params, body, (s,)) for c, params, body, s in CONVOLUTIONS),
    *(
        Case(c, GpuDepthwise(), params, body, (s,), True, LAST if c == "split_channels" else None)
        for c, params, body, s in DEPTHWISE
    ),
    *(Case(c, ColumnReductions(), params, body, (s,), True) for c, params, body, s in COLUMNS),
    Case(
        "dependent_sums",
        SplitRows(),
        [tensor("x", 2, 1 << 18)],
        lambda e, x: op.nn.softmax(x),
        ("sums of inputs", "there is another reduction"),
        True,
    ),
    Case(
        "strided_rows", SplitRows(), [tensor("x", 1 << 18, 2)], centred, ("bytes of a row",), True
    ),
    Case(
        "no_gemm",
        GroupedGemm(),
        squares(4, 20, "int8"),
        products("int32"),
        ("not floating-point GEMMs",),
    ),
    Case("shared_weight", GroupedGemm(), squares(2, 20, "float32"), shared_weight, ("same const",)),
    Case(
        "too_many_products",
        GpuGroupedGemm(),
        squares(18, 32, "float16"),
        products("float32"),
        ("code for each product", "8"),
        True,
    ),
    Case(
        "symbolic_extent",
        GpuGroupedGemm(),
        [tensor("a", N, 32, dtype="float16"), *squares(3, 32, "float16")],
        products("float32"),
        ("number of blocks of a product is symbolic",),
        True,
    ),
    Case(
        "no_gemm",
        GpuGroupedGemm(),
        squares(4, 32, "float64"),
        products(),
        ("Tensor cores cannot compute",),
        True,
    ),
    Case(
        "results_across",
        GpuContraction(),
        [tensor("x", 256, 64, dtype="float16"), tensor("w", 64, 256, dtype="float16")],
        across,
        ("along its rows", "along its columns"),
        True,
    ),
    Case(
        "blocked_results", CpuContraction(), IMAGE, conv, ("blocks of channels",), False, Layout(8)
    ),
    Case(  # the short tiles of one product of few terms, but no longer ones
        "no_common_block",
        GpuGroupedGemm(),
        squares(4, 64, "float16"),
        products("float32"),
        ("same number of threads",),
        True,
        limits={"shared_memory_per_block": 16 << 10},
    ),
]
