"""Batch normalization of training: the batch's own statistics, alone and in the pipeline."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.frontend.normalize import ExpandBatchNorm

SHAPE, AXIS, EPSILON, MOMENTUM = (3, 5, 7), 1, 1e-3, 0.3
RNG = np.random.default_rng(2)


def module(training):
    data = relax.Var("data", relax.TensorType(SHAPE, "float32"))
    vectors = [
        relax.Var(name, relax.TensorType((SHAPE[AXIS],), "float32"))
        for name in ("gamma", "beta", "mean", "var")
    ]

    def result(emit, *params):
        norm = emit(
            relax.op.nn.batch_norm(
                *params, axis=AXIS, epsilon=EPSILON, momentum=MOMENTUM, training=training
            )
        )
        return [emit(relax.TupleGetItem(norm, i)) for i in range(3)]

    return main_module([data, *vectors], result)


def expected(data, gamma, beta, mean, var):
    of_batch = data.mean((0, 2)), data.var((0, 2))
    centred = data - of_batch[0][:, None]
    result = centred / np.sqrt(of_batch[1][:, None] + EPSILON) * gamma[:, None] + beta[:, None]
    moved = [r * (1 - MOMENTUM) + b * MOMENTUM for r, b in zip((mean, var), of_batch, strict=True)]
    return [result, *moved]


@pytest.fixture
def values():
    vectors = [RNG.random(SHAPE[AXIS]).astype("float32") + 0.1 for _ in range(4)]
    return [RNG.standard_normal(SHAPE).astype("float32"), *vectors]


@pytest.mark.parametrize("stage", [transform.NormalizeImport, transform.Rewrite])
def test_statistics_of_the_batch(stage, values):
    """The stages can be used alone: each has to know."""
    target = parse("cpu").tvm_target()
    with target:
        mod = stage()(module(True))
    machine = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    results = machine["main"](*map(tvm.runtime.tensor, values))
    wanted = expected(*(v.astype("float64") for v in values))
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-6)


def test_inference_stays():
    assert ExpandBatchNorm()(module(False))["main"].script() == module(False)["main"].script()


def test_tvm_still_takes_training_for_inference():
    """Fails when TVM does not: then Rewrite needs no ExpandBatchNorm."""
    found = relax.transform.DecomposeOpsForInference()(module(True))["main"].script()
    assert "R.mean" not in found
    assert "training=True" not in found
