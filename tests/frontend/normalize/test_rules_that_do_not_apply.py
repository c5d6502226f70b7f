"""A function is only written again where a rule changes it."""

from relax_modules import main_module
from tvm import relax

from tvm_fusion.core.decisions import Decision, record, recording
from tvm_fusion.frontend.normalize import engine


def module():
    x = relax.Var("x", relax.TensorType((3, 5), "float32"))

    def result(emit, *_):
        return relax.op.tanh(emit(relax.op.exp(x)))

    return main_module([x], result)


def told(value) -> Decision:
    return Decision(engine.op_name(value), "", "refused", "told", "It is told.")


def test_a_rule_that_changes_nothing_sees_each_binding_once_and_is_heard(monkeypatch):
    def never(*_):
        raise AssertionError("a function is written")

    monkeypatch.setattr(engine, "_Rewriter", never)
    mod = module()
    with recording() as decisions:
        assert engine.rewrite(mod, lambda value, _: record(told(value))) is mod
    assert [d.producer for d in decisions] == ["relax.exp", "relax.tanh"]


def test_a_rule_that_emits_or_replaces_is_heard_once():
    def emits(value, scope):
        record(told(value))
        if engine.op_name(value) != "relax.tanh":
            return None
        return relax.op.negative(scope.emit(relax.op.abs(value.args[0])))

    def replaces(value, scope):
        record(told(value))
        is_last = engine.op_name(value) == "relax.tanh"
        return relax.op.sin(value.args[0]) if is_last else None

    for rule, names in ((emits, ["exp", "abs", "negative"]), (replaces, ["exp", "sin"])):
        with recording() as decisions:
            mod = engine.rewrite(module(), rule)
        assert [d.producer for d in decisions] == ["relax.exp", "relax.tanh"]
        found = [b.value.op.name for b in mod["main"].body.blocks[0].bindings]
        assert found == [f"relax.{name}" for name in names]
