"""Reductions whose results meet, as those of a cosine do, are one kernel."""

import numpy as np
import pytest
import tvm
from group_kernels import CPU, CUDA, check, tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.fusion.estimate import Estimator
from tvm_fusion.schedule.rows.template import Rows

op = relax.op


def cosine(emit, x, y):
    def total(a, b):
        return emit(op.sum(emit(op.multiply(a, b)), [-1], True))

    lengths = emit(op.multiply(total(x, x), total(y, y)))
    return op.divide(total(x, y), emit(op.sqrt(lengths)))


def moments(emit, x, y):
    sizes = (emit(op.max(emit(op.abs(z)), [-1], True)) for z in (x, y))
    return op.maximum(*sizes)


def correlation(emit, x, y):
    """Its sums meet, and each is behind a mean."""
    centred = (emit(op.subtract(z, emit(op.mean(z, [-1], True)))) for z in (x, y))
    return cosine(emit, *centred)


def weighed(emit, x, y):
    """A vector that rows are weighed by makes a matrix-vector product of a sum."""
    weights = emit(op.strided_slice(y, [0], [0], [1]))
    e = emit(op.exp(x))
    total = emit(op.sum(emit(op.multiply(e, weights)), [-1], True))
    return op.divide(total, emit(op.sum(e, [-1], True)))


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a", "rocm:gfx942"])
@pytest.mark.parametrize("body", [cosine, moments, correlation, weighed])
def test_are_one_kernel(body, target):
    tvm_target = parse(target).tvm_target()
    mod = main_module([tensor("x", 37, 130), tensor("y", 37, 130)], body)
    with tvm_target:
        assert Estimator(tvm_target).module(mod).kernels == 1


def test_in_numbers():
    found, x, y = run(cosine)
    lengths = np.sqrt((x * x).sum(-1, keepdims=True) * (y * y).sum(-1, keepdims=True))
    np.testing.assert_allclose(found, (x * y).sum(-1, keepdims=True) / lengths, 0, 1e-6)


def test_rows_weighed_by_a_vector_in_numbers():
    found, x, y = run(weighed)
    e = np.exp(x)
    expected = (e * y[:1]).sum(-1, keepdims=True) / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, 0, 1e-6)


@pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
def test_gates_of_rows(spec):
    """A product with a vector, the rows of which are read again."""

    def body(emit, x, w):
        return op.multiply(x, emit(op.sigmoid(emit(op.matmul(x, w)))))

    params = [tensor("x", 37, 130), tensor("w", 130, 1)]
    check(Rows(), params, body, lambda x, w: [x / (1 + np.exp(-(x @ w)))], spec)


@pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
def test_gates_of_pixels(spec):
    """Their channels are apart in memory, and neighbouring pixels are not."""

    def body(emit, x, w):
        return op.multiply(x, emit(op.sigmoid(emit(op.nn.conv2d(x, w)))))

    def reference(x, w):
        return [x / (1 + np.exp(-(x * w.reshape(1, 19, 1, 1)).sum(1, keepdims=True)))]

    check(Rows(), [tensor("x", 2, 19, 7, 9), tensor("w", 1, 19, 1, 1)], body, reference, spec)


@pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
def test_two_products_of_means(spec):
    """Rows of the weights are contiguous along the results."""

    def body(emit, x, v, w):
        means = emit(op.nn.relu(emit(op.matmul(emit(op.mean(x, [2])), v))))
        return op.sigmoid(emit(op.matmul(means, w)))

    def reference(x, v, w):
        return [1 / (1 + np.exp(-(np.maximum(x.mean(2) @ v, 0) @ w)))]

    params = [tensor("x", 1, 19, 50), tensor("v", 19, 5), tensor("w", 5, 19)]
    check(Rows(), params, body, reference, spec)


def run(body):
    """Run a body on this machine: its result, and its inputs in float64."""
    target = parse("cpu").tvm_target()
    rng = np.random.default_rng()
    x, y = (rng.standard_normal((37, 130)).astype("float32") for _ in range(2))
    pipelines = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    with target:
        mod = main_module([tensor("x", 37, 130), tensor("y", 37, 130)], body)
        built = tvm.compile(mod, target, **pipelines)
    given = map(tvm.runtime.tensor, (x, y))
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*given).numpy()
    return found, x.astype("float64"), y.astype("float64")
