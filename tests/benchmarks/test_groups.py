"""The benchmark of single groups: what it cuts out, that its variants agree, how it judges."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from benchmarks.groups import __main__ as command
from benchmarks.groups import measure, survey, variants
from benchmarks.groups.cases import cases
from benchmarks.groups.table import summary
from tvm_fusion import pipeline, transform
from tvm_fusion.core.contract.template import TEMPLATE
from tvm_fusion.core.untouched import on_rewritable
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.program.primitive import primitive_function

QUICK = measure.Settings(rounds=3, budget=1e-4)
WEIGHT = np.random.default_rng(1).standard_normal((33, 7)).astype("float32")


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


@tvm.transform.module_pass(opt_level=0, name="AloneByStock")
class AloneByStock:
    """One group per operator, whatever the project's planner would do."""

    def transform_module(self, mod, _ctx):
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, relax.Function):
                mod = by_hand(mod, gvar, lambda operators: [[op] for op in operators])
        return on_rewritable(relax.transform.Normalize())(mod)


@pytest.fixture(autouse=True)
def stock_kernels(monkeypatch):
    """Groups merged by FuseTIR: the benchmark is tested here, not what it measures."""
    stages = dict(pipeline.STAGES)
    chain = [("fusion", AloneByStock), ("merge", relax.transform.FuseTIR)]
    chain += [(name, stages[name]) for name in ("layout", "schedule")]
    monkeypatch.setattr(pipeline, "STAGES", tuple(chain))
    monkeypatch.setattr(transform, "FuseOperators", AloneByStock)


def by_hand(mod, gvar, plan):
    """Replace a function's kernels by calls of groups; ``plan`` gets the operators."""
    func = mod[gvar]
    if any(
        isinstance(b.value.op, tvm.ir.GlobalVar)
        for b in func.body.blocks[0].bindings
        if isinstance(b.value, relax.Call)
    ):
        return mod
    graph = Graph(mod, func, func.body.blocks[0])
    builder = relax.BlockBuilder(mod.clone())
    exprs = {}
    for var, value in graph.values.items():
        if not isinstance(value, tuple):
            exprs.setdefault(value, var)  # aliases come later
    exprs |= {v: v.constant for op in graph.operators for v in op.tensors if v.constant}
    bindings = []
    for members in plan(graph.operators):
        group = Group(members)
        attrs = {"Primitive": True, TEMPLATE: "by hand"}
        name = "fused_" + "_".join(op.gvar.name_hint for op in group.members)
        callee = builder.add_func(primitive_function(group, attrs), name)
        call = relax.Call(callee, [*(exprs[v] for v in group.inputs), *group.scalars])
        if len(group.outputs) == 1:
            bindings.append(relax.VarBinding(exprs[group.outputs[0]], call))
            continue
        types = [v.type for v in group.outputs]
        whole = relax.DataflowVar("whole", relax.TupleType(types))
        bindings.append(relax.VarBinding(whole, call))
        for i, value in enumerate(group.outputs):
            bindings.append(relax.VarBinding(exprs[value], relax.TupleGetItem(whole, i)))
    kept = [b for b in graph.block.bindings if not isinstance(b.value, relax.Call)]
    body = relax.SeqExpr([relax.DataflowBlock([*bindings, *kept])], func.body.body)
    new = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    result = builder.get()
    result.update_func(result.get_global_var(gvar.name_hint), new)
    return result


def model(target, rows=5, repeat=1):
    """``relu(x @ W + b)`` as one group, called ``repeat`` times, then one with two outputs."""
    rows = tirx.Var("n", "int64") if rows is None else rows
    x = relax.Var("x", relax.TensorType((rows, 33), "float32"))
    b = relax.Var("b", relax.TensorType((7,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, b], attrs={"num_input": 1}):
        with builder.dataflow():
            weight = relax.const(WEIGHT)
            dense = []
            for _ in range(repeat):
                y = builder.emit(relax.op.matmul(x, weight))
                y = builder.emit(relax.op.add(y, b))
                dense.append(builder.emit(relax.op.nn.relu(y)))
            e = builder.emit(relax.op.exp(dense[0]))
            outputs = [builder.emit(relax.op.add(e, dense[0])), builder.emit(relax.op.negative(e))]
            output = builder.emit_output(relax.Tuple([*outputs, *dense]))
        builder.emit_func_output(output)
    with target:
        mod = transform.Legalize()(builder.get())
    width = 3
    cut = width * repeat

    def plan(operators):
        chunks = [operators[i : i + width] for i in range(0, cut, width)]
        return [*chunks, operators[cut:]]

    return by_hand(mod, mod.get_global_var("main"), plan)


def dense(x, b):
    return np.maximum(x.astype("float64") @ WEIGHT + b, 0)


def test_groups_are_cut_out_once_each(target):
    found = list(cases(model(target, repeat=2)))
    assert [(len(case.group), case.calls) for case in found] == [(3, 2), (3, 1)]
    first = found[0]
    assert first.template == "by hand"
    assert {len(first.group.inputs[i].shape) for i in first.constants} == {2}
    assert [v.is_parameter for v in first.group.inputs] == [False, True, True]


@pytest.mark.parametrize("rows", [5, None], ids=["static", "symbolic"])
@pytest.mark.slow
def test_all_variants_compute_the_group(target, rows):
    first, second = cases(model(target, rows))
    for make in (variants.fused, variants.parts, variants.stock):
        machine = variants.load(make(first, target), target)
        x, b = arguments = measure.draw(first, seed=3)
        (found,) = measure.outputs(machine, arguments).values()
        np.testing.assert_allclose(found, dense(x.numpy(), b.numpy()), rtol=1e-4, atol=1e-5)
        machine = variants.load(make(second, target), target)
        (y,) = arguments = measure.draw(second, seed=4)
        total, negative = measure.outputs(machine, arguments).values()
        expected = np.exp(y.numpy().astype("float64"))
        np.testing.assert_allclose(total, expected + y.numpy(), rtol=1e-5)
        np.testing.assert_allclose(negative, -expected, rtol=1e-5)


def test_parts_are_a_kernel_each(target):
    case = next(cases(model(target)))

    def kernels(mod):
        return sum(isinstance(func, tirx.PrimFunc) for func in mod.functions.values())

    helpers = kernels(variants.stock(case, target)) - 3  # of the virtual machine
    assert kernels(variants.fused(case, target)) == 1 + helpers
    assert kernels(variants.parts(case, target)) == 3 + helpers


def test_a_right_group_is_timed(target):
    case = next(cases(model(target)))
    result = measure.measure(case, target, measure.Settings(3, 1e-4, stock=True))
    assert result["status"] == "right"
    assert set(result["us"]) == {"fused", "parts", "stock"}
    assert min(result["us"].values()) > 0
    json.dumps(result)


def test_a_wrong_group_is_found_and_not_timed(target, monkeypatch):
    case = next(cases(model(target)))

    original = measure.outputs
    calls = []

    def outputs(machine, arguments):
        calls.append(machine)
        found = original(machine, arguments)
        # The parts' run comes first; what is fused is off by a thousandth afterwards.
        return found if len(calls) == 1 else {k: v * 1.001 for k, v in found.items()}

    monkeypatch.setattr(measure, "outputs", outputs)
    result = measure.measure(case, target, QUICK)
    assert (result["status"], "us" in result) == ("wrong", False)
    assert result["reason"].startswith("fused: relative error 1.0e-03")


def test_a_failure_costs_one_group(target, monkeypatch):
    def broken(case, target):
        raise RuntimeError("long story\nno kernel")

    monkeypatch.setattr(variants, "fused", broken)
    result = measure.measure(next(cases(model(target))), target, QUICK)
    assert result == {"status": "failed", "reason": "RuntimeError: no kernel"}


def test_rounds_are_interleaved_and_quotients_taken_within_a_round():
    order = []
    drift = iter(range(1, 100))  # the machine gets slower all the time

    def timer(name, us):
        def run(count):
            order.append((name, count))
            return us * next(drift)

        return run

    settings = measure.Settings(rounds=4, budget=1e-3)
    timed = measure.interleaved(
        {"fused": timer("fused", 30), "parts": timer("parts", 10)}, settings
    )
    assert order[2:6] == [("fused", 33), ("parts", 50), ("parts", 50), ("fused", 33)]
    assert len(order) == 2 + 2 * 4
    assert timed["quotients"] == [pytest.approx(3 * a / b, rel=1e-3) for a, b in
                                  [(3, 4), (6, 5), (7, 8), (10, 9)]]  # fmt: skip


def test_a_loss_is_measured_longer(target, monkeypatch):
    rounds = []

    def interleaved(timers, settings, count=None):
        rounds.append(count)
        return {"ratio": 1.2 if count is None else 1.01}

    monkeypatch.setattr(measure, "interleaved", interleaved)
    result = measure.measure(next(cases(model(target))), target, QUICK)
    assert (rounds, result["ratio"]) == ([None, 9], 1.01)


@pytest.mark.slow
def test_a_survey_measures_equal_groups_once(target, monkeypatch):
    monkeypatch.setattr(survey, "planned", lambda name, seed, target: model(target, repeat=2))
    found = survey.Survey(target, QUICK, 0)
    found.model("one")
    found.model("two")
    result = found.result()
    assert [m["groups"] for m in result["models"]] == [2, 2]
    assert sorted(g["models"]["two"] for g in result["groups"]) == [1, 2]
    assert result["broken"] == 0
    json.dumps(result)
    assert "2 distinct groups of several operators in 2 models (4 groups in all)" in summary(result)


def test_the_summary_lists_losses_and_failures():
    def group(title, status="right", **more):
        return {"title": title, "template": "t", "status": status, "models": {"m": 2}} | more

    us = {"fused": 3.0, "parts": 2.0}
    record = {
        "models": [{"groups": 4}],
        "groups": [
            group("broken", "failed", reason="RuntimeError: no kernel"),
            group("slow", us=us, ratio=1.5),
            group("fast", us=us, ratio=0.5),
        ],
        "losses": 1,
        "broken": 1,
    }
    text = summary(record)
    assert "| slow | t | 3.0 | 2.0 | 1.5 | m x2 |" in text
    assert "| fast" not in text
    assert "failed: broken: RuntimeError: no kernel" in text


def test_an_unknown_model_is_one_sentence(tmp_path, capsys):
    code = command.main(["--models", "resnet_9000", "--json", str(tmp_path / "r.json")])
    assert code == 2
    assert "unknown model resnet_9000; expected one of " in capsys.readouterr().err
