"""Weights that kernels ask L2 for before they wait: no activation, and nothing that L2 keeps."""

import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import Call
from tvm.script import tirx as T

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.deploy.cuda_graph.dependent_launch import LaunchEarly
from tvm_fusion.deploy.cuda_graph.weight_prefetch import MODEL_BYTES
from tvm_fusion.device import parse
from tvm_fusion.schedule.gpu.launch import PREFETCHED

MIB = 1 << 20
WEIGHT = relax.TensorType([1024, 4096], "float16")  # 8 MiB; L2 of sm_90a has 50
ROW = relax.TensorType([4096], "float16")


@T.prim_func(private=True, s_tir=True)
def kernel(
    x: T.Buffer((4096,), "float16"),
    w: T.Buffer((1024, 4096), "float16"),
    y: T.Buffer((4096,), "float16"),
):
    with T.sblock("root"):
        for i in T.thread_binding(32, "blockIdx.x"):
            for j in T.thread_binding(128, "threadIdx.x"):
                y[i * 128 + j] = x[i * 128 + j] + w[0, i * 128 + j]


def calls(count, numbers=(1,), is_activation=False):
    """So many calls, each with a weight of its own, or one with an activation."""
    builder = relax.BlockBuilder()
    x, given = relax.Var("x", ROW), relax.Var("given", WEIGHT)
    weights = [relax.Var(f"w{i}", WEIGHT) for i in range(count)]
    with builder.function("main", [x, given, *weights], attrs={"num_input": 2}):
        with builder.dataflow():
            gvar = builder.add_func(kernel.with_attr(PREFETCHED, list(numbers)), "kernel")
            value = x
            for number, weight in enumerate(weights):
                passed = given if is_activation and number == count - 1 else weight
                value = builder.emit(relax.call_tir(gvar, [value, passed], ROW))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def statements(mod, target="cuda:sm_90a"):
    """Return the prefetches, and the first statement of the kernel."""
    with parse(target).tvm_target():
        func = LaunchEarly()(mod)["kernel"]
    called = find(func.body, Call)
    asked = [c for c in called if getattr(c.args[0], "value", "") == "tvm_fusion_prefetch_weight"]
    loop = next(x for x in find(func.body, tirx.For) if x.thread_binding.thread_tag == "blockIdx.x")
    first = loop.body.seq[0].value if isinstance(loop.body, tirx.SeqStmt) else None
    return asked, first


def test_a_weight_is_asked_for_before_the_wait():
    asked, first = statements(calls(8))
    assert len(asked) == 1
    assert first.same_as(asked[0])
    address, size = asked[0].args[1:3]
    assert address.args[0].source.name == "w"
    assert int(size) == 8 * MIB


@pytest.mark.parametrize(
    "mod",
    [calls(6), calls(8, is_activation=True), calls(8, numbers=())],
    ids=["fits_l2", "an_activation", "not_allowed"],
)
def test_nothing_else_is(mod):
    asked, first = statements(mod)
    assert not asked
    assert call_name(first) == "griddepcontrol"


def test_a_part_of_a_model_asks_as_the_model_does():
    mod = calls(1)
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr(MODEL_BYTES, 64 * MIB))
    assert len(statements(mod)[0]) == 1


def test_devices_without_dependent_launch():
    assert statements(calls(8), "cuda:sm_80") == ([], None)


def test_other_functions_stay_as_they_were():
    mod = calls(8)
    with parse("cuda:sm_90a").tvm_target():
        early = LaunchEarly()(mod)
    tvm.ir.assert_structural_equal(early["main"], mod["main"])
