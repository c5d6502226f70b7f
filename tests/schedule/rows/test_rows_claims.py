"""What rows claims on a GPU it emits: rows of tables with computed places, windows over maps."""

import pytest
from group_kernels import tensor
from relax_modules import main_module
from tvm import relax
from tvm.ir.transform import Sequential

from benchmarks.broken_claims import broken_claims
from tvm_fusion import pipeline, transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse

op = relax.op
GPUS = ("cuda:sm_90", "rocm:gfx942")


def embedding(emit, ids, table, scale, shift):
    """Negative places count from the end; then a row of the table is normalised."""
    is_negative = emit(op.less(ids, relax.const(0, "int64")))
    wrapped = emit(op.where(is_negative, emit(ids + relax.const(100, "int64")), ids))
    return op.nn.layer_norm(emit(op.take(table, wrapped, axis=0)), scale, shift, axes=[-1])


def centred_pool(emit, x):
    mean = emit(op.mean(x, [2, 3], keepdims=True))
    return op.nn.max_pool2d(emit(x - mean), (3, 3), (2, 2), (1, 1))


def mean_and_pool(emit, x):
    mean = emit(op.mean(x, [2, 3], keepdims=True))
    return relax.Tuple([mean, emit(op.nn.max_pool2d(x, (2, 2), (2, 2)))])


IMAGE = tensor("x", 2, 16, 12, 12)
TABLE = tensor("ids", 4, 16, dtype="int64"), tensor("table", 100, 64)
MODELS = {
    "embedding": (embedding, (*TABLE, tensor("scale", 64), tensor("shift", 64))),
    "centred pool": (centred_pool, (IMAGE,)),
    "mean and pool": (mean_and_pool, (IMAGE,)),
}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", MODELS)
def test_claims_are_kept(name, gpu):
    compute, params = MODELS[name]
    with recording() as decisions, parse(gpu).tvm_target():
        Sequential([transform.NormalizeImport(), *pipeline.stages()])(
            main_module(list(params), compute)
        )
    assert not broken_claims(decisions)
