"""Launches of hand-written GPU functions: names, host loops, pipelines, refusals."""

import counted_graphs as graphs
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

from tvm_fusion._tvm.ir.pass_context import copied
from tvm_fusion.deploy.count import Count, count, profiler
from tvm_fusion.deploy.count.device import SplitFunctions, device_profile
from tvm_fusion.deploy.count.host import Profile
from tvm_fusion.errors import UserError


@T.prim_func(s_tir=True)
def two_kernels(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    a = T.sblock_alloc_buffer((64,))
    for i in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("a"):
            vi = T.axis.spatial(64, i)
            a[vi] = T.exp(x[vi])
    for i in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("y"):
            vi = T.axis.spatial(64, i)
            y[vi] = a[63 - vi]


def called(*names: str, tir_pipeline: str = "default") -> Count:
    """Count a chain of calls of the same function under several names."""
    builder = relax.BlockBuilder()
    x = graphs.tensor("x", 64)
    with builder.function("main", [x]):
        value: relax.Expr = x
        for name in names:
            # The builder would merge equal functions; an attribute tells them apart until the end.
            func = two_kernels.without_attr("global_symbol").with_attr("name", name)
            gvar = builder.add_func(func, name)
            call = relax.call_tir(gvar, (value,), relax.TensorType((64,), "float32"))
            value = builder.emit(call)
        builder.emit_func_output(value)
    mod = builder.get()
    for name in names:
        mod.update_func(mod.get_global_var(name), mod[name].without_attr("name"))
    return count(mod, graphs.cuda(), tir_pipeline=tir_pipeline)


def test_equal_functions_keep_their_names() -> None:
    counted = called("first", "second")
    assert [(launch.primfunc, launch.kernel) for launch in counted.launches] == [
        ("first", "first_kernel"),
        ("first", "first_kernel_1"),
        ("second", "second_kernel"),
        ("second", "second_kernel_1"),
    ]
    assert (counted.calls, counted.kernels) == (2, 4)
    assert (counted.visible_bytes, counted.hidden_bytes) == (64 * 4, 2 * 64 * 4)


def test_loops_on_the_host_multiply() -> None:
    @T.prim_func(s_tir=True)
    def triangle(x: T.Buffer((64,), "float32")):
        for level in T.serial(4):
            for _ in T.serial(level + 1):
                for i in T.thread_binding(64, thread="threadIdx.x"):
                    with T.sblock("x"):
                        vi = T.axis.spatial(64, i)
                        T.reads(x[vi])
                        T.writes(x[vi])
                        x[vi] = x[vi] + T.float32(1)

    found = device_profile(triangle, "triangle", graphs.cuda(), "default")
    assert sum(found.launches.values()) == 1 + 2 + 3 + 4


def test_named_pipeline_lowers() -> None:
    used: list[str] = []

    def factory() -> tuple:
        used.append("here")
        return tirx.get_tir_pipeline("s_tir")

    tirx.compilation_pipeline.register_tir_pipeline("recorded_for_counting", factory)
    assert called("first", tir_pipeline="recorded_for_counting") == called("first")
    assert used == ["here"]


def test_unlowerable_function_is_refused() -> None:
    @tvm.transform.module_pass(opt_level=0)
    def refuse(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        raise ValueError("thread extents differ")

    name = "refusing_for_counting"
    tirx.compilation_pipeline.register_tir_pipeline(name, lambda: (refuse, None, None))
    with pytest.raises(UserError, match=r"'first' cannot be lowered for cuda \(.*extents differ"):
        called("first", tir_pipeline=name)


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.slow
def test_what_a_build_has_lowered_counts_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of static shapes without buffers of their own are not lowered again."""
    entry, target = graphs.GRAPHS[name], graphs.cuda()
    mod, split = graphs.stock(entry, target), SplitFunctions()
    own = {g: f for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    with copied(PassContext.current(), instruments=[split]):
        tirx.get_tir_pipeline("default")[0](tirx.transform.BindTarget(target)(tvm.IRModule(own)))
    again: list[str] = []

    def recorded(func: tirx.PrimFunc, name: str, *others: object) -> Profile:
        again.append(name)
        return device_profile(func, name, *others)

    monkeypatch.setattr(profiler, "device_profile", recorded)
    for function in entry.functions:
        given = {"function": function, "dims": entry.dims}
        expected = count(mod, target, **given)
        again.clear()
        assert count(mod, target, **given, lowered=split.functions) == expected
        hidden = expected.hidden_bytes or any(map(_is_symbolic, own.values()))
        assert bool(again) <= bool(hidden)


def _is_symbolic(func: tirx.PrimFunc) -> bool:
    extents = [e for p in func.params for e in getattr(p.ty, "shape", ())]
    return any(not isinstance(e, tirx.IntImm) for e in extents)
