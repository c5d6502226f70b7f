"""A serving module goes through the named pipeline as through the stock one, in fewer kernels."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from paged_llama import (
    CHUNK,
    HIDDEN,
    MOST_SEQUENCES,
    MOST_TOKENS,
    PAGE,
    Llama,
    specification,
)
from tvm import relax

import tvm_fusion
from tvm_fusion import DimRange, transform
from tvm_fusion.core.untouched import is_scheduled
from tvm_fusion.device import parse

# Kernels and runtime calls a function: a layer is norm, QKV, (attention,) output + residual, norm,
# gate and up with SiLU, down + residual. Of many rows the weights, which are parameters, are
# transposed first.
KERNELS = {"embed": 1, "decode": 9, "softmax_with_temperature": 1}


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


@pytest.fixture(scope="module")
def model(target):
    with target:
        return Llama().export_tvm(specification())


@pytest.fixture(scope="module")
def weights(model):
    rng = np.random.default_rng(4)

    def drawn(param):
        shape = [int(extent) for extent in param.shape]
        centre = 1.0 if len(shape) == 1 else 0.0
        return tvm.runtime.tensor((centre + 0.3 * rng.standard_normal(shape)).astype(param.dtype))

    return [drawn(param) for _, param in model[1]]


@pytest.fixture(scope="module")
def expected(model, target, weights):
    return served(relax.VirtualMachine(tvm.compile(model[0], target), tvm.cpu()), weights)


def served(machine, weights, flat=False):
    """Serve two sequences: prefill and decode one, then both in one batch."""
    sizes = (MOST_SEQUENCES, MOST_TOKENS, CHUNK, PAGE, 0)
    cache = machine["create_paged_kv_cache"](*(tvm_ffi.Shape([size]) for size in sizes))
    state = {
        name: tvm.get_global_func(f"vm.builtin.kv_state_{name}")
        for name in ("add_sequence", "begin_forward", "end_forward")
    }
    logits = []

    def forward(name, ids, lengths, *extra):
        sequences = tvm_ffi.Shape(range(len(lengths)))
        state["begin_forward"](cache, sequences, tvm_ffi.Shape(lengths))
        embedded = machine["embed"](tvm.runtime.tensor(np.array(ids, "int32")), *params)
        rows = (len(ids), 1) if name.endswith("decode") else (1, len(ids))
        embedded = tvm.runtime.tensor(embedded.numpy().reshape(*rows, HIDDEN))
        result, same = machine[name](embedded, *extra, cache, weights)
        assert same.same_as(cache)
        state["end_forward"](cache)
        logits.append(result)

    params = weights if flat else [weights]
    state["add_sequence"](cache, 0)
    forward("prefill", [3, 1, 4, 1, 5], [5])
    forward("decode", [9], [1])
    state["add_sequence"](cache, 1)
    last = tvm.runtime.tensor(np.array([1, 5], "int32"))
    forward("batch_prefill", [2, 6, 5, 3, 5, 8], [2, 4], last)
    forward("batch_decode", [9, 7], [1, 1])
    temperature = tvm.runtime.tensor(np.array([0.5, 2.0], "float32"))
    logits.append(machine["softmax_with_temperature"](logits[-1], temperature))
    return [result.numpy() for result in logits]


def check(found, expected):
    assert [x.shape for x in found] == [x.shape for x in expected]
    for ours, stock in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_named_pipeline(model, target, weights, expected):
    built = tvm.compile(model[0], target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    check(served(relax.VirtualMachine(built, tvm.cpu()), weights), expected)


@pytest.mark.slow
def test_kernels_and_what_stays(model):
    before, _ = model
    target = parse("cpu:x86-64-v3").tvm_target()  # prices of others may choose other kernels
    after = relax.get_pipeline("tvm_fusion", target=target, lower=False)(before)
    count = {name: after[name].script().count("R.call_tir(") for name in KERNELS}
    assert count == KERNELS
    for name in ("prefill", "decode", "batch_prefill", "batch_decode"):
        assert after[name].script().count("attention_kv_cache_attention_with_fused_qkv") == 2
    of_cache = relax.analysis.all_global_vars(before["create_paged_kv_cache"])
    assert len(of_cache) == 14
    assert {g.name_hint for g in of_cache} <= {g.name_hint for g in after.functions}
    scheduled = [g for g in of_cache if is_scheduled(before[g])]
    assert scheduled
    for gvar in scheduled:
        tvm.ir.assert_structural_equal(after[gvar.name_hint], before[gvar])
    with target:
        again = transform.ScheduleKernels()(after)
    for gvar in of_cache:
        tvm.ir.assert_structural_equal(again[gvar.name_hint], after[gvar.name_hint])


@pytest.mark.slow
def test_whole_build(model, weights, expected, tmp_path):
    dims = {"length": DimRange(1, CHUNK), "batch": DimRange(1, MOST_SEQUENCES), "page_size": PAGE}
    artifact = tvm_fusion.compile(model[0], "cpu", dims=dims)
    described = artifact.manifest["functions"]
    assert set(described) == {"embed", "softmax_with_temperature"}
    codes = {d["producer"] for d in artifact.manifest["decisions"] if d["code"] == "no_signature"}
    assert codes == {"prefill", "decode", "batch_prefill", "batch_decode", "create_paged_kv_cache"}
    library = tvm.runtime.load_module(str(artifact.export(tmp_path / "artifact") / "model.so"))
    machine = relax.VirtualMachine(library, tvm.cpu())
    check(served(machine, weights, flat=True), expected)


@pytest.mark.slow
def test_extents_of_shapes_need_no_option(model):
    with pytest.raises(tvm_fusion.UserError, match=r"unbound dimensions [^;]*; give") as raised:
        tvm_fusion.compile(model[0], "cpu")
    assert "length" in str(raised.value)
    assert "max_batch_size" not in str(raised.value)
