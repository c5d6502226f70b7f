"""Programs of workers are scheduled once: weights of others follow from their parts."""

import numpy as np
import parallel_models
import pytest
from tvm import relax

import tvm_fusion
from tvm_fusion import compiler
from tvm_fusion.core.constants.weight_names import Packing, WeightNames, derived, tracking
from tvm_fusion.deploy.build import prepare

SPLIT = {"workers": 4, "shards": {"*": "split"}}


def weights(artifact):
    """Elements of all workers' weights, by worker and name."""
    return {
        (worker, name): np.asarray(artifact.weights[stored.label]).tobytes()
        for worker, names in artifact.used.items()
        for name, stored in names.items()
    }


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a"])
def test_stages_run_once_for_all_workers(target, monkeypatch):
    calls, scheduled = [], compiler._scheduled

    def counted(imported, config):
        calls.append(imported)
        return scheduled(imported, config)

    monkeypatch.setattr(compiler, "_scheduled", counted)
    model = parallel_models.experts()
    once = weights(tvm_fusion.compile(model, target, **SPLIT))
    assert len(calls) == 1
    monkeypatch.setattr(prepare, "_of_twins", lambda *_: None)
    assert weights(tvm_fusion.compile(model, target, **SPLIT)) == once
    assert len(calls) == 5


def test_a_constant_is_made_again_of_what_is_in_the_place_of_its_sources():
    def doubled(sources):
        return relax.const(2 * sources[0].value.numpy())

    one, other, same = (relax.const(np.full(2, n, "float32")) for n in (1, 5, 7))
    names = WeightNames(keeps_origins=True)
    with tracking(names):
        twice = derived(doubled([one]), "twice", [one], doubled)
        unknown = derived(relax.const(np.zeros(2, "float32")), "unknown", [one])
        names.pack(packed := doubled([same]), Packing("pack0", (2,)), same, doubled)
    twins = {hash(one): other, hash(same): same}
    assert names.twin(twice, twins).value.numpy().tolist() == [10, 10]
    assert names.twin(packed, twins).same_as(packed)
    assert names.twin(unknown, twins) is None
    assert names.twin(relax.const(np.zeros(1, "float32")), twins) is None
