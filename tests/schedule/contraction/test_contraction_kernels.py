"""GEMM and convolutions with fused prologues and epilogues, checked against float64."""

import math

import group_kernels
import numpy as np
import pytest
from group_kernels import CPU, CUDA, check, compiles_for_cuda, group, kernel, tensor
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax, tirx

from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.problem.template import RECOMPUTE_FACTOR

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
SPECS = pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])


def template(spec):
    return GpuContraction() if spec is CUDA else CpuContraction()


def convolve(x, w, stride=1, pad=0, dilation=1, groups=1):
    """Convolution over any number of dimensions, straight from its definition."""
    dims = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *(((pad, pad),) * dims)))
    kernel_shape = w.shape[2:]
    reach = [dilation * (k - 1) + 1 for k in kernel_shape]
    axes = tuple(range(2, 2 + dims))
    windows = sliding_window_view(x, reach, axes)
    windows = windows[(slice(None), slice(None), *[slice(None, None, stride)] * dims)]
    windows = windows[(..., *[slice(None, None, dilation)] * dims)]
    out, per_group = w.shape[:2]
    windows = windows.reshape(x.shape[0], groups, per_group, *windows.shape[2:])
    w = w.reshape(groups, out // groups, per_group, *kernel_shape)
    space, window = "hwd"[:dims], "xyz"[:dims]
    y = np.einsum(f"ngc{space}{window},goc{window}->ngo{space}", windows, w)
    return y.reshape(x.shape[0], out, *y.shape[3:])


def transposed(x, w, stride, pad, output_padding):
    """Transposed convolution: each element adds its multiple of the window."""
    batch, _, height, width = x.shape
    _, out, kh, kw = w.shape
    tall = (height - 1) * stride + kh + output_padding
    wide = (width - 1) * stride + kw + output_padding
    y = np.zeros((batch, out, tall, wide))
    for i, j in np.ndindex(height, width):
        window = np.einsum("nc,cokl->nokl", x[:, :, i, j], w)
        y[:, :, i * stride : i * stride + kh, j * stride : j * stride + kw] += window
    return y[:, :, pad : tall - pad, pad : wide - pad]


def dense(emit, x, w, b):
    return op.nn.relu(emit(op.add(emit(op.matmul(x, w)), b)))


def relu_dense(x, w, b):
    return [np.maximum(x @ w + b, 0)]


def pieces(emit, x, w):
    split = emit(op.split(emit(op.matmul(x, w)), 3, 1))
    return [emit(split[i]) for i in range(3)]


def heads(emit, x, w):
    """Queries and values by head, keys transposed as well."""
    split = emit(op.split(emit(op.matmul(x, w)), 3, 1))
    orders = ([1, 0, 2], [1, 2, 0], [1, 0, 2])
    return [
        emit(op.permute_dims(emit(op.reshape(emit(split[i]), (33, 4, 8))), order))
        for i, order in enumerate(orders)
    ]


def head_arrays(x, w):
    orders = ([1, 0, 2], [1, 2, 0], [1, 0, 2])
    parts = np.split(x @ w, 3, 1)
    return [p.reshape(33, 4, 8).transpose(o) for p, o in zip(parts, orders, strict=True)]


def residual(emit, x, w, r):
    product = emit(op.matmul(x, w))
    return [product, emit(op.add(product, r)), emit(op.nn.relu(product))]


def convolution(**options):
    def body(emit, x, w, b):
        return op.nn.relu(emit(op.add(emit(op.nn.conv2d(x, w, **options)), b)))

    return body


def conv_case(x, w, stride=1, pad=0, dilation=1, groups=1):
    options = {
        "strides": (stride, stride),
        "padding": (pad, pad),
        "dilation": (dilation, dilation),
        "groups": groups,
    }
    return (
        [tensor("x", *x), tensor("w", *w), tensor("b", w[0], 1, 1)],
        convolution(**options),
        lambda x, w, b: [np.maximum(convolve(x, w, stride, pad, dilation, groups) + b, 0)],
    )


CASES = {
    "dense": ([tensor("x", 37, 48), tensor("w", 48, 96), tensor("b", 96)], dense, relu_dense),
    "dense of odd sizes": (
        [tensor("x", 2, 13, 33), tensor("w", 33, 31), tensor("b", 31)],
        dense,
        relu_dense,
    ),
    "dense of symbolic rows": (
        [tensor("x", n, 48), tensor("w", 48, 96), tensor("b", 96)],
        dense,
        relu_dense,
    ),
    "symbolic batch": (
        [tensor("x", n, 16, 48), tensor("w", 48, 40), tensor("b", 40)],
        dense,
        relu_dense,
    ),
    "one row": ([tensor("x", 1, 64), tensor("w", 64, 100), tensor("b", 100)], dense, relu_dense),
    "one column": ([tensor("x", 70, 65), tensor("w", 65, 1), tensor("b", 1)], dense, relu_dense),
    "one row, symbolic columns": (
        [tensor("x", 1, 64), tensor("w", 64, m), tensor("b", m)],
        dense,
        relu_dense,
    ),
    "three results of one product": (
        [tensor("x", 33, 64), tensor("w", 64, 96)],
        pieces,
        lambda x, w: np.split(x @ w, 3, 1),
    ),
    "heads of queries, keys and values": (
        [tensor("x", 33, 64), tensor("w", 64, 96)],
        heads,
        head_arrays,
    ),
    "product leaves and is used": (
        [tensor("x", 33, 64), tensor("w", 64, 96), tensor("r", 33, 96)],
        residual,
        lambda x, w, r: [x @ w, x @ w + r, np.maximum(x @ w, 0)],
    ),
    "heads with a residual": (
        [tensor("x", 33, 64), tensor("w", 64, 96), tensor("r", 4, 33, 24)],
        lambda emit, x, w, r: op.add(
            emit(op.permute_dims(emit(op.reshape(emit(op.matmul(x, w)), (33, 4, 24))), [1, 0, 2])),
            r,
        ),
        lambda x, w, r: [(x @ w).reshape(33, 4, 24).transpose(1, 0, 2) + r],
    ),
    "heads joined": (
        [tensor("p", 2, 3, 37, 19), tensor("v", 2, 3, 19, 16)],
        lambda emit, p, v: op.reshape(
            emit(op.permute_dims(emit(op.matmul(p, v)), [0, 2, 1, 3])), (2, 37, 48)
        ),
        lambda p, v: [(p @ v).transpose(0, 2, 1, 3).reshape(2, 37, 48)],
    ),
    "cheap prologue": (
        [tensor("x", 33, 64), tensor("w", 64, 96)],
        lambda emit, x, w: op.matmul(emit(op.nn.relu(x)), w),
        lambda x, w: [np.maximum(x, 0) @ w],
    ),
    "3x3": conv_case((2, 3, 15, 15), (8, 3, 3, 3), pad=1),
    "3x3, stride 2": conv_case((2, 3, 15, 15), (8, 3, 3, 3), stride=2, pad=1),
    "stride and dilation 2": conv_case((2, 3, 15, 15), (8, 3, 3, 3), 2, 2, 2),
    "1x1": conv_case((1, 16, 14, 14), (24, 16, 1, 1)),
    "symbolic images": conv_case((n, 3, 15, 15), (8, 3, 3, 3), pad=1),
    "grouped": conv_case((2, 6, 13, 13), (12, 2, 3, 3), 1, 2, 2, 3),
    "depthwise": conv_case((2, 10, 11, 11), (10, 1, 3, 3), pad=1, groups=10),
    "depthwise, stride 2": conv_case((2, 10, 11, 12), (10, 1, 3, 3), 2, 1, groups=10),
    "transposed": (
        [tensor("x", 2, 6, 9, 9), tensor("w", 6, 4, 3, 3)],
        lambda emit, x, w: op.nn.conv2d_transpose(
            x, w, strides=(2, 2), padding=(1, 1), output_padding=(1, 1)
        ),
        lambda x, w: [transposed(x, w, 2, 1, 1)],
    ),
    "one dimension": (
        [tensor("x", 2, 6, 30), tensor("w", 8, 6, 3)],
        lambda emit, x, w: op.nn.conv1d(x, w, padding=1),
        lambda x, w: [convolve(x, w, pad=1)],
    ),
    "three dimensions": (
        [tensor("x", 1, 3, 6, 7, 8), tensor("w", 4, 3, 3, 3, 3)],
        lambda emit, x, w: op.nn.conv3d(x, w, padding=1),
        lambda x, w: [convolve(x, w, pad=1)],
    ),
}  # fmt: skip
PADDED = {c for c in CASES if c not in ("1x1",) and ("x3" in c or "stride" in c)}
PADDED |= {"symbolic images", "transposed", "one dimension", "three dimensions"}
PADDED -= {"depthwise", "grouped"}  # tasks copy the padded planes of their channels


@SPECS
@pytest.mark.parametrize("case", CASES)
def test_launches_and_numbers(case, spec):
    params, body, reference = CASES[case]
    claim, _ = check(template(spec), params, body, reference, spec)
    assert claim.launches == (2 if spec is CPU and case in PADDED else 1)


HALF = (tirx.floordiv(n - 1, 2) + 1, tirx.floordiv(m - 1, 2) + 1)  # what a stride of 2 leaves
IMAGES = {
    "padded": (conv_case((2, 3, n, m), (8, 3, 3, 3), pad=1), 2),
    "behind a stride": (conv_case((1, 5, *HALF), (9, 5, 3, 3), pad=1), 2),
    "strided": (conv_case((1, 3, n, m), (8, 3, 3, 3), 2, 1), 2),
    "not padded": (conv_case((1, 4, n, m), (9, 4, 3, 3), dilation=2), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", IMAGES)
def test_symbolic_columns_are_vectors(case, monkeypatch):
    """Panels of a GEMM; TVM's schedules split no symbolic loop into whole vectors and a rest."""
    (params, body, reference), launches = IMAGES[case]
    made = group_kernels.emitted(CpuContraction(), params, body, CPU)
    assert made.claim.launches == launches
    assert made.claim.details.config.gemm is not None
    for size in (7, 38):
        monkeypatch.setattr(group_kernels, "SIZE", size)
        group_kernels.agrees(made, params, reference, CPU)


@SPECS
def test_half_precision(spec):
    params = [tensor("x", 65, 128, dtype="float16"), tensor("w", 128, 192, dtype="float16")]
    check(
        template(spec),
        params,
        lambda emit, x, w: op.nn.relu(emit(op.matmul(x, w))),
        lambda x, w: [np.maximum(x @ w, 0)],
        spec,
        2e-3,
    )


def transposed_keys(emit, q, k):
    return op.matmul(q, emit(op.permute_dims(k, [0, 2, 1])))


KEYS = [tensor("q", 3, 37, 16), tensor("k", 3, 19, 16)]


def test_strided_operands_are_expensive_on_a_cpu():
    members = group(KEYS, transposed_keys)
    plain = sum(op.flops for op in members.members)
    assert CpuContraction().claim(members, CPU.device).flops >= RECOMPUTE_FACTOR * plain
    assert GpuContraction().claim(members, CUDA.device).flops == plain


@SPECS
def test_keys_are_read_transposed(spec):
    expected = lambda q, k: [q @ k.transpose(0, 2, 1)]  # noqa: E731
    check(template(spec), KEYS, transposed_keys, expected, spec)


@SPECS
def test_an_expensive_prologue_counts(spec):
    params = [tensor("x", 33, 64), tensor("w", 64, 96)]

    def body(emit, x, w):
        return op.matmul(emit(op.nn.gelu(x)), w)

    claim = template(spec).claim(group(params, body, spec), spec.device)
    assert claim.flops >= RECOMPUTE_FACTOR * 2 * 33 * 64 * 96
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    check(template(spec), params, body, lambda x, w: [gelu(x) @ w], spec)


def test_epilogue_at_another_element_is_refused():
    members = group(
        [tensor("x", 32, 32), tensor("w", 32, 32)],
        lambda emit, x, w: (lambda p: op.add(p, emit(op.permute_dims(p))))(emit(op.matmul(x, w))),
    )
    assert CpuContraction().claim(members, CPU.device).code == "epilogue_elsewhere"


def test_unrelated_result_is_refused():
    members = group(
        [tensor("x", 32, 32), tensor("w", 32, 32)],
        lambda emit, x, w: [op.matmul(x, w), op.exp(x)],
    )
    assert CpuContraction().claim(members, CPU.device).code == "unrelated_output"


def test_two_reductions_are_refused():
    members = group(
        [tensor("x", 32, 32), tensor("w", 32, 32)],
        lambda emit, x, w: op.sum(emit(op.matmul(x, w)), 1),
    )
    assert CpuContraction().claim(members, CPU.device).code == "several_reductions"


@pytest.mark.parametrize("function", [lambda x: op.sum(x, 1), lambda x: op.max(x, 1)])
def test_other_reductions_are_not_contractions(function):
    members = group([tensor("x", 8, 16)], lambda emit, x: function(x))
    assert GpuContraction().claim(members, CUDA.device).code == "not_mine"


def test_cpu_tiles_fill_the_registers():
    members = group([tensor("x", 64, 64), tensor("w", 64, 64)], lambda emit, x, w: op.matmul(x, w))
    text = kernel(CpuContraction(), members, CPU)[1].script()
    assert "T.parallel" in text
    assert "T.vectorized" in text
    assert 'scope="local"' in text


def test_gpu_tiles_share_operands():
    """A plain product takes a tiled schedule, and says nothing; a depthwise one plain sums.

    Float32 has tensor cores from compute capability 8.0 on.
    """
    turing = parse("cuda:sm_75")
    with recording() as decisions:
        params, body, _ = CASES["three results of one product"]
        text = kernel(GpuContraction(), group(params, body, turing), turing)[1].script()
    assert 'scope="shared"' in text
    assert decisions == []
    params, body, _ = CASES["depthwise"]
    text = kernel(GpuContraction(), group(params, body, CUDA), CUDA)[1].script()
    assert 'scope="shared"' not in text


@pytest.mark.cuda_toolchain
def test_cuda_compiles():
    assert compiles_for_cuda(GpuContraction(), CASES)
