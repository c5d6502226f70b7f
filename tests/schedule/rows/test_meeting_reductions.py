"""Reductions whose results meet, as those of a cosine do, are one kernel."""

import numpy as np
import pytest
import tvm
from group_kernels import tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.fusion.estimate import Estimator

op = relax.op


def cosine(emit, x, y):
    def total(a, b):
        return emit(op.sum(emit(op.multiply(a, b)), [-1], True))

    lengths = emit(op.multiply(total(x, x), total(y, y)))
    return op.divide(total(x, y), emit(op.sqrt(lengths)))


def moments(emit, x, y):
    sizes = (emit(op.max(emit(op.abs(z)), [-1], True)) for z in (x, y))
    return op.maximum(*sizes)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a", "rocm:gfx942"])
@pytest.mark.parametrize("body", [cosine, moments])
def test_are_one_kernel(body, target):
    tvm_target = parse(target).tvm_target()
    mod = main_module([tensor("x", 37, 130), tensor("y", 37, 130)], body)
    with tvm_target:
        assert Estimator(tvm_target).module(mod).kernels == 1


def test_in_numbers():
    target = parse("cpu").tvm_target()
    rng = np.random.default_rng()
    x, y = (rng.standard_normal((37, 130)).astype("float32") for _ in range(2))
    pipelines = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    with target:
        mod = main_module([tensor("x", 37, 130), tensor("y", 37, 130)], cosine)
        built = tvm.compile(mod, target, **pipelines)
    given = map(tvm.runtime.tensor, (x, y))
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*given).numpy()
    a, b = x.astype("float64"), y.astype("float64")
    lengths = np.sqrt((a * a).sum(-1, keepdims=True) * (b * b).sum(-1, keepdims=True))
    np.testing.assert_allclose(found, (a * b).sum(-1, keepdims=True) / lengths, 0, 1e-6)
