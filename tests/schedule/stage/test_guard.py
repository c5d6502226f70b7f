"""Guarded scheduling: one rule's failure costs no more than its turn."""

import pytest
import tvm
from relax_modules import main_module
from tvm import relax, s_tir, tirx
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.core.untouched import is_scheduled
from tvm_fusion.device import parse
from tvm_fusion.schedule import kernels
from tvm_fusion.schedule.stage.guard import Rule, schedule_function


@T.prim_func(s_tir=True)
def double(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    T.func_attr({"mark": 1})
    for i in range(64):
        with T.sblock("double"):
            v = T.axis.spatial(64, i)
            b[v] = a[v] * T.float32(2)


def vectorized(func, _target):
    sch = s_tir.Schedule(func)
    sch.vectorize(sch.get_loops(sch.get_sblock("double"))[0])
    return sch


def failing(func, _target):
    sch = s_tir.Schedule(func)
    sch.compute_inline(sch.get_sblock("double"))


GOOD, BAD = Rule("good", vectorized), Rule("bad", failing)
NEVER = Rule("never", lambda func, target: None)


def accept(_func, _target):
    return None


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def apply(rules, target, check=accept):
    with recording() as decisions:
        return schedule_function("double", double, target, rules, check), decisions


def test_first_rule_that_applies_wins(target):
    func, decisions = apply([NEVER, GOOD, BAD], target)
    assert is_scheduled(func)
    assert func.attrs["mark"] == 1
    assert [(d.code, d.verdict) for d in decisions] == [("scheduled", "accepted")]
    assert "good" in decisions[0].sentence


def test_a_failing_rule_falls_back_with_its_reason(target):
    func, decisions = apply([BAD, GOOD], target)
    assert is_scheduled(func)
    assert [d.code for d in decisions] == ["schedule_failed", "scheduled"]
    assert "output block" in decisions[0].sentence


def test_a_rejected_schedule_falls_back(target):
    answers = iter(["too many threads.", None])
    func, decisions = apply([GOOD, GOOD], target, lambda *_: next(answers))
    assert is_scheduled(func)
    assert [d.code for d in decisions] == ["schedule_rejected", "scheduled"]
    assert "too many threads" in decisions[0].sentence


def test_without_a_rule_plain_loops_stay_and_it_is_said(target):
    func, decisions = apply([NEVER, BAD], target)
    assert func.same_as(double)
    assert decisions[-1].code == "unscheduled"


def test_one_bad_kernel_leaves_the_others_scheduled(target, monkeypatch):
    def picky(func, tgt):
        if "softmax" in str(func.script()):
            raise tvm.error.InternalError("no softmax today")
        return vectorized_any(func)

    def vectorized_any(func):
        sch = s_tir.Schedule(func)
        block = sch.get_child_blocks(sch.get_sblock("root"))[-1]
        sch.parallel(sch.get_loops(block)[0])
        return sch

    monkeypatch.setattr(kernels, "rules", lambda _: ([Rule("picky", picky)], accept))
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))

    def result(emit, *_):
        h = emit(relax.op.nn.softmax(x))
        return relax.op.permute_dims(h)

    mod = main_module([x], result)
    with target, recording() as decisions:
        mod = transform.ScheduleKernels()(transform.Legalize()(mod))
    states = {
        gvar.name_hint: is_scheduled(f)
        for gvar, f in mod.functions.items()
        if isinstance(f, tirx.PrimFunc)
    }
    assert states["softmax"] is False
    assert any(states.values())
    assert any(d.producer == "softmax" and d.code == "schedule_failed" for d in decisions)
