"""Launches of real models against stock TVM's, intermediate bytes, and the floors they meet.

On a GPU; what they are on a CPU is counted where these models are compiled for one anyway, in
``tests/test_zoo_models.py``.
"""

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
RECORDED = table.load()["models"]


@pytest.fixture(scope="module", params=list(MODELS))
def model(request):
    """Name, stock TVM's counts from the record, ours counted now."""
    name = request.param
    return name, RECORDED[name]["stock"][GPU], counting.model_ours(name, GPU)


def test_launches(model):
    name, stock, ours = model
    assert ours["kernels"] <= MODELS[name].launch_floor(stock["kernels"])


def test_intermediate_bytes(model):
    name, stock, ours = model
    ratio = ours["intermediate_bytes"] / stock["intermediate_bytes"]
    assert ratio <= MODELS[name].bytes_floor(GPU)


def test_the_record_is_of_today(model):
    name, _, ours = model
    assert RECORDED[name]["ours"][GPU] == ours


@pytest.mark.parametrize("name", ["t5_small_enc", "mobilenet_v2"])
@pytest.mark.parametrize("target", [GPU, CPU])
def test_stock_is_what_the_record_says(name, target):
    assert RECORDED[name]["stock"][target] == counting.model_stock(name, target)


def test_a_model_has_one_plan():
    """Sets of operators iterate in another order each time the graph is built."""
    target, loaded = parse(GPU).tvm_target(), zoo.load("unet2d")

    def groups():
        mod = import_model(loaded, FusionConfig()).mod
        stages = [transform.NormalizeImport(), transform.Rewrite(), transform.Legalize()]
        with target:
            mod = tvm.ir.transform.Sequential(stages)(mod)
            plans = plan_module(mod, target).values()
        return [(g.title, [v.name for v in g.inputs]) for p in plans for g in p.groups]

    first = groups()
    kept = [object() for _ in range(12345)]  # moves what is built next in memory
    assert groups() == first
    del kept
