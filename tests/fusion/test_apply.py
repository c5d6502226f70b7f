"""A plan in the IR: Primitive functions, their calls, and what they compute."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from random_modules import modules
from relax_modules import main_module
from toy_templates import SPEC, Anchored, legalized
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion.ecg.graph import Graph
from tvm_fusion.fusion.claims import ClaimBook
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.fuse import apply_plans, emission_order
from tvm_fusion.fusion.planning.plan import Plan, plan
from tvm_fusion.program.group import Group

pytestmark = pytest.mark.slow_beyond(3)


def applied(mod, *templates):
    """Legalise, plan and apply."""
    mod = legalized(mod)
    templates = templates or (Anchored(),)
    book = ClaimBook(templates, SPEC.device, CostModel(SPEC.device))
    plans = {}
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            for block in func.body.blocks:
                if isinstance(block, relax.DataflowBlock):
                    plans[block] = plan(Graph(mod, func, block), templates, book)
    return apply_plans(mod, plans)


def run(mod, *inputs):
    with SPEC.tvm_target():
        built = relax.build(mod, SPEC.tvm_target(), relax_pipeline="default_build")
    result = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    tensors = [result] if hasattr(result, "numpy") else list(result)
    return [t.numpy() for t in tensors]


def groups(mod):
    return {
        gvar.name_hint: func
        for gvar, func in mod.functions.items()
        if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs
    }


def test_a_group_is_a_primitive_function_in_its_members_place():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
            with R.dataflow():
                a = R.tanh(x)
                b = R.nn.relu(a)
                R.output(b)
            return b

    @I.ir_module
    class Expected:
        @T.prim_func(private=True, s_tir=True)
        def relu(
            a: T.Buffer((T.int64(6), T.int64(8))), compute: T.Buffer((T.int64(6), T.int64(8)))
        ):
            T.func_attr({"tir.noalias": True, "tvm_fusion.op": ""})

        @R.function(private=True)
        def fused(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
            R.func_attr({"Primitive": True, "tvm_fusion.template": "anchored"})
            with R.dataflow():
                a = R.tanh(x)
                b = R.nn.relu(a)
                R.output(b)
            return b

        @R.function
        def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
            cls = Expected
            with R.dataflow():
                b: R.Tensor((6, 8), "float32") = cls.fused(x)
                R.output(b)
            return b

    after = applied(Before)
    (name,) = groups(after)
    tvm.ir.assert_structural_equal(after["main"], _renamed(Expected["main"], Expected, after, name))
    with SPEC.tvm_target():
        from tvm_fusion import transform

        expected = transform.Legalize()(tvm.IRModule({"main": _public(Expected["fused"])}))
    got = _called(after, groups(after)[name])
    assert got == _called(expected, expected["main"]) == ["relax.tanh", "relax.nn.relu"]


def _renamed(func, old, new, name):
    """Let a function call what the other module calls so."""
    table = {old.get_global_var("fused"): new.get_global_var(name)}

    @relax.expr_functor.mutator
    class Rename(relax.PyExprMutator):
        def visit_global_var_(self, gvar):
            return table.get(gvar, gvar)

    return Rename().visit_expr(func)


def _public(func):
    return func.without_attr("Primitive").with_attr("global_symbol", "main")


def _called(mod, func):
    from tvm_fusion.ecg.record import record_of

    return [record_of(mod[b.value.args[0]]).name for b in func.body.blocks[0].bindings]


def test_equal_groups_are_one_function():
    x = relax.Var("x", relax.TensorType((6, 8), "float32"))

    def result(emit, *_):
        y = x
        for _ in range(4):
            y = emit(relax.op.nn.softmax(emit(relax.op.tanh(y))))
        return y

    mod = applied(main_module([x], result))
    assert len(mod["main"].body.blocks[0].bindings) == 4
    assert len(groups(mod)) <= 3


def test_symbols_that_no_input_shows_are_passed():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor(("n * 2", 4), "float32"), z: R.Tensor(("n",), "float32")) -> R.Tuple(
            R.Tensor(("n * 2", 4), "float32"), R.Tensor(("n",), "float32")
        ):
            n = T.int64()  # noqa: F841
            with R.dataflow():
                a = R.tanh(x)
                b = R.exp(a)
                c = R.tanh(z)
                R.output(b, c)
            return (b, c)

    mod = applied(Mod)
    values = [b.value for b in mod["main"].body.blocks[0].bindings]
    calls = [v for v in values if isinstance(v, relax.Call)]
    shapes = [c.args[0] for c in calls if isinstance(c.args[0], relax.ShapeExpr)]
    assert [isinstance(s.values[0], tirx.Var) for s in shapes] == [True]
    relax.analysis.well_formed(mod)
    x, z = np.random.default_rng(0).normal(size=(6, 4)), np.zeros(3)
    with SPEC.tvm_target():
        fused = relax.transform.FuseTIR()(mod)
    got = run(fused, x.astype("float32"), z.astype("float32"))
    np.testing.assert_allclose(got[0], np.exp(np.tanh(x)), rtol=1e-5)


def test_a_group_that_would_wait_for_itself_is_an_error():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
            with R.dataflow():
                a = R.tanh(x)
                b = R.nn.softmax(a)
                c = R.add(a, b)
                R.output(c)
            return c

    mod = legalized(Mod)
    graph = Graph(mod, mod["main"], mod["main"].body.blocks[0])
    first, _, last = graph.operators
    with pytest.raises(ValueError, match="not convex"):
        emission_order(graph, [Group((first, last))])


@pytest.mark.slow
@given(modules())
@settings(max_examples=15)
def test_any_plan_computes_what_the_graph_did(mod):
    after = applied(mod, Anchored(2))
    relax.analysis.well_formed(after)
    with SPEC.tvm_target():
        fused = relax.transform.FuseTIR()(after)
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(6, 8)).astype("float32") for _ in mod["main"].params]
    for got, expected in zip(run(fused, *inputs), run(legalized(mod), *inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_tuple_that_leaves_the_block_stays_one():
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))

    def result(emit, *_):
        return relax.op.split(emit(relax.op.tanh(x)), 2, 1)

    after = applied(main_module([x], result))
    relax.analysis.well_formed(after)
    array = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    for found, right in zip(run(after, array), np.split(np.tanh(array), 2, 1), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6)


@pytest.mark.parametrize("size", [2, 9])
@pytest.mark.parametrize("half", [False, True])
def test_extents_that_choose(half, size):
    n = tirx.Var("n", "int64")
    begin, end = (tirx.floordiv(n, 2), n) if half else (tirx.IntImm("int64", 1), n - 1)
    x = relax.Var("x", relax.TensorType((3, n), "float32"))

    def result(emit, *_):
        part = emit(relax.op.strided_slice(x, [1], [begin], [end]))
        return relax.op.tanh(emit(relax.op.add(part, part)))

    after = applied(main_module([x], result))
    assert len(groups(after)) == 1
    array = np.random.default_rng(0).normal(size=(3, size)).astype("float32")
    part = array[:, size // 2 :] if half else array[:, 1 : size - 1]
    np.testing.assert_allclose(run(after, array)[0], np.tanh(2 * part), rtol=1e-6)


def test_tvm_still_cannot_copy_functions_with_extents_that_choose():
    """Fails when it can: then ``relax.utils.copy_with_new_vars`` renames a group's symbols."""
    n = tirx.Var("n", "int64")
    extent = tirx.if_then_else(n < 5, n, n - 1)
    x = relax.Var("x", relax.TensorType((n, extent), "float32"))
    with pytest.raises(tvm.error.InternalError, match="FInferType"):
        relax.utils.copy_with_new_vars(relax.Function([x], x, x.ty))


def test_a_copy_outside_of_groups_reads_copies():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
            with R.dataflow():
                a = R.add(x, x)
                b = R.tanh(a)
                c = R.exp(b)
                d = R.multiply(b, c)
                R.output(d)
            return d

    mod = legalized(Mod)
    graph = Graph(mod, mod["main"], mod["main"].body.blocks[0])
    add, tanh, exp, _ = graph.operators
    graph.duplicate([add, tanh], {exp})
    after = apply_plans(mod, {graph.block: Plan(graph, (), (), ())})
    relax.analysis.well_formed(after)
    calls = [b.value for b in after["main"].body.blocks[0].bindings]
    readers = [call for call in calls if call.args[0].name_hint == tanh.gvar.name_hint]
    assert len({call.args[1].fields[0] for call in readers}) == 2
