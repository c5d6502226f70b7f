"""Kernels launched while the one before them runs: each waits first, and lets the next go last."""

import pytest
import tvm
from nvcc import cuda_source
from tvm import relax
from tvm.script import tirx as T

from tvm_fusion.deploy.build.lower import LowerToVM
from tvm_fusion.deploy.cuda_graph.copies import copies
from tvm_fusion.deploy.cuda_graph.dependent_launch import (
    LAUNCH_PARAMS,
    LaunchEarly,
    has_dependent_launch,
    launched_early,
)
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.schedule.stage.launches import launches


@T.prim_func(private=True, s_tir=True)
def two_kernels(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.noalias": True})
    with T.sblock("root"):
        for i in T.thread_binding(2, "blockIdx.x"):
            for j in T.thread_binding(32, "threadIdx.x"):
                b[i * 32 + j] = a[i * 32 + j] + T.float32(1)
        for i in T.thread_binding(2, "blockIdx.x"):
            for _ in range(1):
                for j in T.thread_binding(32, "threadIdx.x"):
                    b[i * 32 + j] = b[i * 32 + j] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def two_kernels_early(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    T.func_attr(
        {
            "tirx.noalias": True,
            "tirx.kernel_launch_params": ["tirx.use_programtic_dependent_launch"],
        }
    )
    with T.sblock("root"):
        for i in T.thread_binding(2, "blockIdx.x"):
            T.ptx.griddepcontrol.wait()
            for j in T.thread_binding(32, "threadIdx.x"):
                b[i * 32 + j] = a[i * 32 + j] + T.float32(1)
            T.ptx.griddepcontrol.launch_dependents()
        for i in T.thread_binding(2, "blockIdx.x"):
            T.ptx.griddepcontrol.wait()
            for _ in range(1):
                for j in T.thread_binding(32, "threadIdx.x"):
                    b[i * 32 + j] = b[i * 32 + j] * T.float32(2)
            T.ptx.griddepcontrol.launch_dependents()


@T.prim_func(private=True, s_tir=True)
def waits_by_itself(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.noalias": True})
    with T.sblock("root"):
        for i in T.thread_binding(2, "blockIdx.x"):
            for j in T.thread_binding(32, "threadIdx.x"):
                T.ptx.griddepcontrol.wait()
                b[i * 32 + j] = a[i * 32 + j] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def lets_go_by_itself(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.noalias": True})
    with T.sblock("root"):
        for i in T.thread_binding(2, "blockIdx.x"):
            for j in T.thread_binding(32, "threadIdx.x"):
                if j < 16:
                    b[i * 32 + j] = a[i * 32 + j] + T.float32(1)
                    T.ptx.griddepcontrol.launch_dependents()


@T.prim_func(private=True, s_tir=True)
def on_the_host(a: T.Buffer((64,), "float32")):
    with T.sblock("root"):
        for i in range(64):
            a[i] = T.float32(1)


def test_every_kernel_waits_first_and_lets_go_last():
    early = launched_early(two_kernels)
    tvm.ir.assert_structural_equal(early, two_kernels_early)
    assert launches(early) == launches(two_kernels) == 2


def test_it_is_done_once():
    early = launched_early(two_kernels)
    assert launched_early(early).same_as(early)


def test_a_kernel_that_waits_by_itself_waits_once():
    body = str(launched_early(waits_by_itself).body)
    assert body.count("wait") == 1
    assert body.count("launch_dependents") == 1


def test_a_kernel_that_lets_the_next_go_by_itself_does_so_there_alone():
    body = str(launched_early(lets_go_by_itself).body)
    assert body.count("wait") == 1
    assert body.count("launch_dependents") == 1


def test_what_has_no_kernel_stays():
    assert launched_early(on_the_host).same_as(on_the_host)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cuda:sm_80", False),
        ("cuda:sm_80,sm_90a", False),
        ("cuda:sm_90", True),
        ("cuda:sm_90a", True),
        ("rocm:gfx942", False),
        ("cpu", False),
    ],
)
def test_devices_that_know_it(target, expected):
    assert has_dependent_launch(parse(target).tvm_target()) == expected


def calling(func, **attrs):
    """A function that calls a kernel, next to a kernel that nobody calls."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([64], "float32"))
    with builder.function("main", [x], attrs=attrs):
        with builder.dataflow():
            gvar = builder.add_func(func, "kernel")
            y = builder.emit_output(relax.call_tir(gvar, [x], relax.TensorType([64], "float32")))
        builder.emit_func_output(y)
    mod = builder.get()
    mod["other"] = two_kernels
    return mod


@pytest.mark.parametrize(
    ("target", "attrs", "expected"),
    [
        ("cuda:sm_80", {}, False),
        ("cuda:sm_90a", {}, True),
        ("cuda:sm_90a", {"Primitive": True}, False),
        ("rocm:gfx942", {}, False),
    ],
)
def test_kernels_of_our_functions_are_launched_early(target, attrs, expected):
    mod = calling(two_kernels, **attrs)
    with parse(target).tvm_target():
        early = LaunchEarly()(mod)
        lowered = LowerToVM()(mod)
    for found in (early, lowered):
        assert (LAUNCH_PARAMS in found["kernel"].attrs) == expected
        assert LAUNCH_PARAMS not in found["other"].attrs
    tvm.ir.assert_structural_equal(early["main"], mod["main"])


def source_of(func, tir_pipeline="tvm_fusion"):
    text = cuda_source(func, tir_pipeline=tir_pipeline)
    return text[text.rindex("__global__") :]


@pytest.fixture
def copying():
    return copies([relax.TensorType((129, 8), "float16")])


@pytest.mark.cuda_toolchain
def test_machine_code_waits_before_it_reads(copying):
    spec = parse("cuda:sm_90a")
    mod = tvm.IRModule({"main": launched_early(copying).with_attr("global_symbol", "main")})
    with toolchain(spec):
        built = tvm.compile(mod, spec.tvm_target(), tir_pipeline="tvm_fusion")
    body = built.mod.imports[0].inspect_source()
    body = body[body.rindex("__global__") :]
    wait, dependents = body.index("griddepcontrol_wait()"), body.index("launch_dependents()")
    assert wait < body.index("= *(uint4*)") < dependents


def test_what_is_read_may_change_until_the_wait(copying):
    assert "__restrict__" not in source_of(launched_early(copying))
    assert "__restrict__" in source_of(copying)


def test_tvm_still_says_that_what_is_read_never_changes(copying):
    assert "__restrict__" in source_of(launched_early(copying), "s_tir")
