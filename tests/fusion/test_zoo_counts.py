"""Launches and intermediate bytes of real models against stock TVM's, and the floors they meet."""

from __future__ import annotations

import pytest
import tvm

from benchmarks import zoo
from benchmarks.fusion import counting, table
from benchmarks.fusion.figures import CPU, GPU, MODELS
from tvm_fusion import FusionConfig, transform
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.fuse import plan_module

pytestmark = pytest.mark.slow
RECORD = table.load()
RECORDED = RECORD["models"]


@pytest.fixture(scope="module", params=list(MODELS))
def model(request):
    """Name, stock TVM's counts from the record, ours counted now."""
    name = request.param
    ours = {target: counting.model_ours(name, target) for target in (GPU, CPU)}
    return name, RECORDED[name]["stock"], ours


def test_launches(model):
    name, stock, ours = model
    launches, floor = ours[GPU]["kernels"], MODELS[name].launch_floor(stock[GPU]["kernels"])
    assert launches <= floor
    if MODELS[name].launches is not None:
        assert ours[CPU]["kernels"] <= MODELS[name].launches


@pytest.mark.parametrize("target", [GPU, CPU])
def test_intermediate_bytes(model, target):
    name, stock, ours = model
    ratio = ours[target]["intermediate_bytes"] / stock[target]["intermediate_bytes"]
    assert ratio <= MODELS[name].bytes_floor(target)


def test_the_record_is_of_today(model):
    name, _, ours = model
    assert RECORDED[name]["ours"][GPU] == ours[GPU]
    if parse(CPU).device.vector_bits == RECORD["environment"]["vector_bits"]:
        assert RECORDED[name]["ours"][CPU] == ours[CPU]


@pytest.mark.parametrize("name", ["t5_small_enc", "mobilenet_v2"])
@pytest.mark.parametrize("target", [GPU, CPU])
def test_stock_is_what_the_record_says(name, target):
    assert RECORDED[name]["stock"][target] == counting.model_stock(name, target)


def test_a_model_has_one_plan():
    """Sets of operators iterate in another order each time the graph is built."""
    target = parse(GPU).tvm_target()

    def groups():
        mod = import_model(zoo.load("unet2d"), FusionConfig()).mod
        stages = [transform.NormalizeImport(), transform.Rewrite(), transform.Legalize()]
        with target:
            mod = tvm.ir.transform.Sequential(stages)(mod)
            plans = plan_module(mod, target).values()
        return [(g.title, [v.name for v in g.inputs]) for p in plans for g in p.groups]

    first = groups()
    kept = [object() for _ in range(12345)]  # moves what is built next in memory
    assert groups() == first
    del kept
