"""What a template may emit, installed in the place of its group and run."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.schedule.toy_kernels import (
    MATRIX,
    ROOT,
    TARGET,
    Chain,
    Doubled,
    Toy,
    buffer,
    called,
    compiled,
    each,
    func,
    kernel,
    random,
    run,
    tanh_then_add,
    through_workspace,
    unary,
)
from tvm_fusion import transform
from tvm_fusion.core.contract.template import Emission
from tvm_fusion.core.contract.templates import registered
from tvm_fusion.core.untouched import is_scheduled
from tvm_fusion.device import parse
from tvm_fusion.schedule.stage.emit import is_group
from tvm_fusion.schedule.stage.install import install


@I.ir_module
class TwoOutputs:
    @R.function
    def main(x: R.Tensor((6, 8), "float32"), y: R.Tensor((6, 8), "float32")):
        with R.dataflow():
            a = R.tanh(x)
            b = R.add(a, y)
            R.output(a, b)
        return a, b


# Several kernels ---------------------------------------------------------------------------------


def test_two_kernels_with_a_workspace():
    x, y = random(*MATRIX), random(*MATRIX)[::-1].copy()
    toy = Toy("tanh+add", through_workspace)
    planned, mod = compiled(Chain, toy)
    assert [is_group(f) for f in planned.functions.values()].count(True) == 1
    assert not any(is_group(f) for f in mod.functions.values())
    assert len(called(mod)) == 2
    (got,) = run(mod, x, y)
    np.testing.assert_allclose(got, np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_a_workspace_is_seen_by_the_memory_planner():
    _, mod = compiled(Chain, Toy("tanh+add", through_workspace))
    with TARGET:
        lowered = transform.LowerToVM()(mod)
    assert f"{4 * 6 * 8}" in str(lowered["main"])  # bytes of its storage


def both_at_once():
    """``a = tanh(x)`` and ``b = tanh(x) + y`` in one function, with ``b`` before ``a``."""
    x, y, b, a = (buffer(name) for name in "xyba")
    load = tirx.BufferLoad
    first = each(a, lambda *at: tirx.tanh(load(x, at)))
    second = each(b, lambda *at: load(a, at) + load(y, at))
    return func([x, y, b, a], tirx.SeqStmt([first, second]))


def each_its_own(group):
    first, second = tanh_then_add()
    return Emission((kernel(first, "i0", "o0"), kernel(second, "o0 i1", "o1")))


def one_in_another_order(group):
    return Emission((kernel(both_at_once(), "i0 i1", "o1 o0"),))


def an_output_and_a_workspace_for_the_next(group):
    _, second = tanh_then_add()
    kernels = (kernel(both_at_once(), "i0 i1", "w0 o0"), kernel(second, "o0 i1", "o1"))
    return Emission(kernels, workspaces=(ROOT,))


@pytest.mark.parametrize(
    "emission", [each_its_own, one_in_another_order, an_output_and_a_workspace_for_the_next]
)
def test_kernels_that_write_two_outputs(emission):
    x, y = random(*MATRIX), random(*MATRIX)[::-1].copy()
    _, mod = compiled(TwoOutputs, Toy("tanh+add", emission))
    a, b = run(mod, x, y)
    np.testing.assert_allclose(a, np.tanh(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b, np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_one_kernel_that_needs_a_workspace():
    def emission(group):
        return Emission((kernel(both_at_once(), "i0 i1", "o0 w0"),), workspaces=(ROOT,))

    x, y = random(*MATRIX), random(*MATRIX)[::-1].copy()
    _, mod = compiled(Chain, Toy("tanh+add", emission))
    (got,) = run(mod, x, y)
    np.testing.assert_allclose(got, np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_one_function_launched_twice():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((6, 8), "float32")):
            with R.dataflow():
                a = R.tanh(x)
                b = R.nn.relu(a)
                R.output(b)
            return b

    def emission(group):  # tanh(relu(x)) = relu(tanh(x)), in two steps of one function
        half = unary("half", lambda v: tirx.max(v, tirx.FloatImm("float32", 0)))
        last = unary("last", tirx.tanh)
        kernels = (kernel(half, "i0", "w0"), kernel(half, "w0", "w1"), kernel(last, "w1", "o0"))
        return Emission(kernels, workspaces=(ROOT, ROOT))

    x = random(*MATRIX)
    _, mod = compiled(Mod, Toy("tanh+relu", emission))
    names = called(mod)
    assert names[0] == names[1] != names[2]
    np.testing.assert_allclose(run(mod, x)[0], np.maximum(np.tanh(x), 0), rtol=1e-5, atol=1e-6)


def test_equal_groups_are_emitted_once_and_called_with_their_own_operands():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((6, 8), "float32"), y: R.Tensor((6, 8), "float32")):
            with R.dataflow():
                a = R.nn.softmax(R.add(R.tanh(x), y))
                b = R.add(R.tanh(a), x)
                R.output(b)
            return b

    class Pairs(Toy):
        def propose(self, graph, device):
            by_title = [op for op in graph.operators if op.title in self.titles]
            yield tuple(by_title[:2])
            yield tuple(by_title[2:])

    x, y = random(*MATRIX), random(*MATRIX)[::-1].copy()
    toy = Pairs("tanh+add", through_workspace)
    _, mod = compiled(Mod, toy)
    assert toy.emitted == 1
    names = called(mod)
    assert names.count(names[0]) == names.count(names[-1]) == 2
    total = np.exp(np.tanh(x.astype(np.float64)) + y)
    expected = np.tanh(total / total.sum(-1, keepdims=True)) + x
    np.testing.assert_allclose(run(mod, x, y)[0], expected, rtol=1e-5, atol=1e-6)


# Symbolic dimensions -----------------------------------------------------------------------------


def symbolic(group):
    (n,) = group.scalars
    shape = (n * 2, 4)
    x, w = buffer("x", shape), buffer("w", shape)
    v, o = buffer("v", shape), buffer("o", shape)
    first = func([x, n, w], each(w, lambda *at: tirx.tanh(tirx.BufferLoad(x, at))))
    zero = tirx.FloatImm("float32", 0)
    second = func([v, n, o], each(o, lambda *at: tirx.max(tirx.BufferLoad(v, at), zero)))
    kernels = (kernel(first, "i0 s0", "w0"), kernel(second, "w0 s0", "o0"))
    return Emission(kernels, workspaces=(relax.TensorType(shape, "float32"),))


def test_scalars_and_a_symbolic_workspace():
    _, mod = compiled(Doubled, Toy("tanh+relu", symbolic))
    x, z = random(6, 4), random(3)
    got = run(mod, x, z)
    np.testing.assert_allclose(got[0], np.maximum(np.tanh(x), 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], np.exp(z), rtol=1e-5)


@I.ir_module
class TwoSymbols:
    @R.function
    def main(
        z: R.Tensor(("n", "m"), "float32"), x: R.Tensor(("m * 3", "n * 2"), "float32")
    ) -> R.Tensor(("m * 3", "n * 2"), "float32"):
        n = T.int64()  # noqa: F841
        m = T.int64()  # noqa: F841
        with R.dataflow():
            a = R.tanh(x)
            b = R.nn.relu(a)
            R.output(b)
        return b


def test_several_scalars_keep_their_order():
    def emission(group):
        first, second = group.scalars
        shape = group.inputs[0].shape
        x, o = buffer("x", shape), buffer("o", shape)
        zero = tirx.FloatImm("float32", 0)
        body = each(o, lambda *at: tirx.max(tirx.tanh(tirx.BufferLoad(x, at)), zero))
        return Emission((kernel(func([x, first, second, o], body), "i0 s0 s1", "o0"),))

    _, mod = compiled(TwoSymbols, Toy("tanh+relu", emission))
    x = random(15, 4)
    (got,) = run(mod, random(2, 5), x)
    np.testing.assert_allclose(got, np.maximum(np.tanh(x), 0), rtol=1e-5, atol=1e-6)


@I.ir_module
class SymbolicRows:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("n", 8), "float32")):
        with R.dataflow():
            a = R.tanh(x)
            b = R.add(a, y)
            R.output(b)
        return b


def test_a_workspace_over_a_bare_symbolic_dimension():
    def emission(group):
        n = group.inputs[0].shape[0]
        assert not group.scalars
        shape = (n, 8)
        x, w, v, y, o = (buffer(name, shape) for name in ("x", "w", "v", "y", "o"))
        load = tirx.BufferLoad
        first = func([x, w], each(w, lambda *at: tirx.tanh(load(x, at))))
        second = func([v, y, o], each(o, lambda *at: load(v, at) + load(y, at)))
        kernels = (kernel(first, "i0", "w0"), kernel(second, "w0 i1", "o0"))
        return Emission(kernels, workspaces=(relax.TensorType(shape, "float32"),))

    _, mod = compiled(SymbolicRows, Toy("tanh+add", emission))
    for rows in (1, 5):
        x, y = random(rows, 8), random(rows, 8) + 1
        (got,) = run(mod, x, y)
        np.testing.assert_allclose(got, np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_a_symbolic_input_is_packed():
    def emission(group):
        n = group.inputs[0].shape[0]
        m = tirx.Var("m", "int64")
        source, turned = buffer("source", (m, 8)), buffer("turned", (8, m))
        load = tirx.BufferLoad
        packing = func([source, turned], each(turned, lambda i, j: load(source, [j, i])))
        x, y, o = buffer("x", (n, 8)), buffer("y", (8, n)), buffer("o", (n, 8))
        body = each(o, lambda i, j: tirx.tanh(load(x, [i, j])) + load(y, [j, i]))
        return Emission((kernel(func([x, y, o], body), "i0 i1", "o0"),), packing={1: packing})

    _, mod = compiled(SymbolicRows, Toy("tanh+add", emission))
    x, y = random(5, 8), random(5, 8) + 1
    np.testing.assert_allclose(run(mod, x, y)[0], np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_templates_of_the_package_get_scalars():
    with TARGET:
        fused = transform.FuseOperators()(transform.Legalize()(Doubled))
        mod = transform.ScheduleKernels()(fused)
    (passed,) = [len(f.params) for f in fused.functions.values() if is_group(f) and f.params[1:]]
    assert passed == 2
    x, z = random(6, 4), random(3)
    got = run(mod, x, z)
    np.testing.assert_allclose(got[0], np.maximum(np.tanh(x), 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], np.exp(z), rtol=1e-5)


# Packing -----------------------------------------------------------------------------------------

WEIGHT = np.arange(48, dtype="float32").reshape(MATRIX)


@I.ir_module
class Weighted:
    @R.function
    def main(x: R.Tensor((6, 8), "float32"), w: R.Tensor((6, 8), "float32")):
        with R.dataflow():
            a = R.tanh(x)
            b = R.add(a, w)
            R.output(b)
        return b


@T.prim_func(s_tir=True)
def transposed(
    source: T.Buffer((T.int64(6), T.int64(8)), "float32"),
    turned: T.Buffer((T.int64(8), T.int64(6)), "float32"),
):
    for i, j in T.grid(T.int64(8), T.int64(6)):
        with T.sblock("turned"):
            vi, vj = T.axis.remap("SS", [i, j])
            turned[vi, vj] = source[vj, vi]


def packed(group):
    """One kernel that reads the second input transposed."""
    x, w, o = buffer("x"), buffer("w", MATRIX[::-1]), buffer("o")
    load = tirx.BufferLoad
    body = each(o, lambda i, j: tirx.tanh(load(x, [i, j])) + load(w, [j, i]))
    position = next(i for i, v in enumerate(group.inputs) if v.name not in ("x", "a"))
    return Emission(
        (kernel(func([x, w, o], body), f"i{1 - position} i{position}", "o0"),),
        packing={position: transposed},
    )


def bound(mod, **constants):
    return relax.transform.BindParams("main", constants)(mod)


def test_packing_of_a_constant_is_done_at_compile_time():
    _, mod = compiled(bound(Weighted, w=WEIGHT), Toy("tanh+add", packed))
    assert len(called(mod)) == 1
    assert not any("pack" in gvar.name_hint for gvar in mod.functions)
    x = random(*MATRIX)
    (got,) = run(mod, x)
    np.testing.assert_allclose(got, np.tanh(x) + WEIGHT, rtol=1e-5, atol=1e-6)


def test_packing_of_an_input_is_called():
    _, mod = compiled(Weighted, Toy("tanh+add", packed))
    names = called(mod)
    assert len(names) == 2
    assert "pack" in names[0]
    x = random(*MATRIX)
    (got,) = run(mod, x, WEIGHT)
    np.testing.assert_allclose(got, np.tanh(x) + WEIGHT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_packing_of_an_input_is_scheduled_for_the_target(target):
    target = parse(target).tvm_target()
    with target, registered(Toy("tanh+add", packed)):
        planned = transform.FuseOperators()(transform.Legalize()(Weighted))
        mod = transform.ScheduleKernels()(planned)
    funcs = {g.name_hint: f for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    assert len(funcs) == 2
    assert all(is_scheduled(f) for f in funcs.values())
    assert not any("global_symbol" in f.attrs for f in funcs.values())
    (packing,) = [f for name, f in funcs.items() if "pack" in name]
    assert ("threadIdx.x" in packing.script()) == (target.kind.name == "cuda")


def test_nothing_to_install_changes_nothing():
    with TARGET:
        mod = transform.Legalize()(Chain)
    tvm.ir.assert_structural_equal(install(mod, {}), mod)


@pytest.mark.parametrize("emission", [through_workspace, packed])
def test_module_that_came_in_is_left_alone(emission):
    with TARGET, registered(Toy("tanh+add", emission)):
        planned = transform.FuseOperators()(transform.Legalize()(Weighted))
        before = planned.script()
        transform.ScheduleKernels()(planned)
    assert planned.script() == before
