"""What is told about changes is what happened."""

import re

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion import UserError, transform
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.rewrite import rules
from tvm_fusion.rewrite.egraph.changes import note, note_uses, noting
from tvm_fusion.rewrite.egraph.head import Heads
from tvm_fusion.rewrite.egraph.law import Law
from tvm_fusion.rewrite.egraph.pattern import function, tensors
from tvm_fusion.rewrite.egraph.regions import regions
from tvm_fusion.rewrite.egraph.terms import Numbering, expression, subterms
from tvm_fusion.rewrite.search.attribution import readable

a, b, c = tensors("a b c")
exp = function("relax.exp")
LAYER = "(a * b + c * b) * 1"


def two_layers():
    """Build two layers that are alike, a softmax between them, and a tail of another kind."""
    size = relax.TensorType((64, 128), "float32")
    x, z = (relax.Var(name, size) for name in "xz")
    y = relax.Var("y", relax.TensorType((128,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y, z]):
        with builder.dataflow():
            h = x
            for i in range(2):
                left = builder.emit(relax.op.multiply(relax.op.nn.softmax(h, 0), z))
                right = builder.emit(relax.op.multiply(relax.op.nn.softmax(h, 1), z))
                total = builder.emit(relax.op.add(left, right))
                h = builder.emit(relax.op.multiply(total, relax.const(1.0)), f"layer{i}")
            h = builder.emit(relax.op.nn.softmax(h))
            out = builder.emit_output(relax.op.add(h, relax.op.multiply(h, y)), "tail")
        builder.emit_func_output(out)
    return builder.get()


def rewritten(mod, laws, make=transform.SearchEquivalents):
    with parse("cpu").tvm_target(), noting() as noted:
        return make(laws)(mod), noted


def named(*names):
    found = {law.name: law for law in rules.laws(["reassociate"])}
    return [found[name] for name in names]


LAYERS = ("factor_multiply", "neutral_multiply")


def test_a_rewritten_region_is_recorded():
    with recording() as decisions:
        rewritten(two_layers(), named("factor_multiply"))
    assert [(d.code, d.verdict) for d in decisions] == [("rewritten", "accepted")] * 2
    for decision in decisions:
        assert re.fullmatch(
            r"Rewritten by factor_multiply: [\d.]+ to [\d.]+ us\.", decision.sentence
        )


def test_changes_of_two_layers():
    _, noted = rewritten(two_layers(), named(*LAYERS, "factor_one", "associate_add"))
    first, second = noted.changes
    assert (first.function, first.variable, second.variable) == ("main", "layer0", "layer1")
    assert first.rules == second.rules == LAYERS
    assert (first.before, first.after) == (LAYER, "(a + c) * b")
    assert first.is_replayed
    assert first.gain.flops == 64 * 128  # of the sum; a factor of one is no operation
    assert noted.uses["factor_multiply"].chosen == noted.uses["neutral_multiply"].chosen == 2
    assert noted.uses["factor_multiply"].gain_us == pytest.approx(first.gain.us)
    assert all(noted.uses[name].chosen == 0 for name in set(noted.uses) - set(LAYERS))


def test_changes_of_the_published_search():
    laws = named(*LAYERS, "factor_one", "associate_add")
    _, noted = rewritten(two_layers(), laws, transform.GreedyEquivalents)
    *layers, tail = noted.changes
    assert [(c.rules, c.before, c.after) for c in layers] == 2 * [(LAYERS, LAYER, "(a + c) * b")]
    assert (tail.variable, tail.rules) == ("tail", ("factor_one",))
    assert (tail.before, tail.after) == ("a + a * b", "a * (b + 1)")
    assert {name: use.chosen for name, use in noted.uses.items()} == {
        "factor_multiply": 2,
        "neutral_multiply": 2,
        "factor_one": 1,
    }


def test_the_rules_that_are_named_suffice_and_none_can_be_spared():
    laws = rules.laws(["reassociate"])
    mod, noted = rewritten(two_layers(), laws)
    used = {name for change in noted.changes for name in change.rules}
    alone, _ = rewritten(two_layers(), [law for law in laws if law.name in used])
    tvm.ir.assert_structural_equal(alone, mod)
    for name in used:
        fewer, _ = rewritten(two_layers(), [law for law in laws if law.name in used - {name}])
        with pytest.raises(ValueError, match="StructuralEqual"):
            tvm.ir.assert_structural_equal(fewer, mod)


class Twice(Law):
    """a + a = a * 2."""

    name = "twice"
    before = a + a
    after = a * 2


class Even(Law):
    """a * 2 = a + a."""

    name = "even"
    before = a * 2
    after = a + a


class ExpOfSum(Law):
    """exp(a) * exp(b) = exp(a + b)."""

    name = "exp_of_sum"
    before = exp(a) * exp(b)
    after = exp(a + b)

    def check(self, match):
        if match.value("a") is None:
            return None
        return Refusal("constant", "The first one is a small constant.")


@I.ir_module
class Exponentials:
    @R.function
    def main(x: R.Tensor((64, 128), "float32"), y: R.Tensor((64, 128), "float32")) -> R.Tensor(
        (64, 128), "float32"
    ):
        with R.dataflow():
            p = R.multiply(R.exp(x), R.exp(y))
            q = R.tanh(p)
            R.output(q)
        return q


def test_laws_that_only_looked_are_not_named():
    _, noted = rewritten(Exponentials, [Twice(), Even(), ExpOfSum()])
    (change,) = noted.changes
    assert change.rules == ("exp_of_sum",)
    assert (change.before, change.after) == ("exp(a) * exp(b)", "exp(a + b)")
    assert change.variable == Exponentials["main"].body.blocks[0].bindings[2].var.name


def test_an_operator_that_is_read_twice_is_written_once():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((64, 128), "float32")) -> R.Tensor((64, 128), "float32"):
            with R.dataflow():
                e = R.exp(x)
                s = R.sum(e, axis=[1], keepdims=True)
                f = R.divide(e, s)
                g = R.add(f, R.const(2.5))
                R.output(g)
            return g

    heads = Heads()
    ((region,),) = [list(regions(block)) for block in Mod["main"].body.blocks]
    (term,) = region.terms(heads)
    (leaf,) = [t for t in subterms([term]) if t.head.key[0] == "input"]
    numbering = Numbering(expression)
    classes = {numbering(t): numbering(t) for t in subterms([term])}
    before, after = readable(term, leaf, heads, numbering, classes)
    assert before == "b / sum(b, axis=[1], keepdims=True) + 2.5 with b = exp(a)"
    assert after == "a"


def test_a_form_that_is_equal_by_no_law():
    """``a * b`` and ``b * a`` are computed once; nothing else changes."""

    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((64, 128), "float32"), y: R.Tensor((64, 128), "float32")):
            with R.dataflow():
                p = R.exp(R.multiply(x, y))
                q = R.exp(R.multiply(y, x))
                both = R.add(p, q)
                R.output(both)
            return both

    _, noted = rewritten(Mod, rules.laws())
    (change,) = noted.changes
    assert change.rules == ()
    assert (change.before, change.after) == ("a + exp(b * c)", "a + a")


def test_a_change_below_another_is_told_once():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((64, 128), "float32"), y: R.Tensor((64, 128), "float32")):
            with R.dataflow():
                p = R.multiply(R.exp(x), R.exp(y))
                q = R.multiply(R.add(p, p), R.const(1.0))
                both = R.add(q, p)
                R.output(p, both)
            return (p, both)

    _, noted = rewritten(Mod, [ExpOfSum(), *named("neutral_multiply")])
    (change,) = noted.changes
    assert change.before == "exp(a) * exp(b); (a + a) * 1"
    assert change.after == "exp(a + b); a + a"
    assert change.rules == ("exp_of_sum", "neutral_multiply")


def test_refusals_are_counted_with_their_reason():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((1, 4), "float32")) -> R.Tensor((1, 4), "float32"):
            with R.dataflow():
                p = R.multiply(R.exp(R.const([[1.0, 2.0, 3.0, 4.0]])), R.exp(x))
                R.output(p)
            return p

    _, noted = rewritten(Mod, [ExpOfSum()])
    use = noted.uses["exp_of_sum"]
    assert use.refused == {"The first one is a small constant.": 1} or not use.tried


def test_nobody_listens():
    note(None)
    note_uses({})
    with noting() as outer, noting() as inner:
        rewritten(Exponentials, [ExpOfSum()])
    assert outer.changes == inner.changes == []


class SortLast(Law):
    """sign(sort(a, order)) = sort(sign(a), order)."""

    name = "sort_last"
    before = function("relax.sign")(function("relax.sort", "order")(a))
    after = function("relax.sort", "order")(function("relax.sign")(a))


@I.ir_module
class Sorted:
    @R.function
    def main(x: R.Tensor((64, 128), "int32")) -> R.Tensor((64, 128), "int32"):
        with R.dataflow():
            s = R.sort(R.abs(x))
            y = R.sign(s)
            R.output(y)
        return y


def test_operators_that_only_these_laws_know():
    _, noted = rewritten(Sorted, [ExpOfSum()])
    assert noted.changes == []
    _, noted = rewritten(Sorted, [SortLast()])
    assert [change.rules for change in noted.changes] == [("sort_last",)]
    assert noted.changes[0].gain.kernels == 1


def test_laws_of_ones_own():
    law = SortLast()
    with parse("cpu").tvm_target():
        before = transform.Rewrite()(Sorted)
        with rules.registered(law):
            assert "sort_last" in rules.names()
            after = transform.Rewrite()(Sorted)["main"].script()
            off = transform.Rewrite(without=["sort_last"])(Sorted)
    assert after.index("R.sign(") < after.index("R.sort(")
    tvm.ir.assert_structural_equal(off, before)
    assert "sort_last" not in rules.names()


class Nameless(Law):
    """a = a."""


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (ExpOfSum, "type cannot be registered; expected an instance of a subclass of Law"),
        (Nameless(), "cannot be registered"),
        (named("factor_one")[0], "there is a rule 'factor_one' already"),
    ],
)
def test_laws_that_cannot_be_registered(law, words):
    with pytest.raises(UserError, match=words), rules.registered(law):
        pass


def test_why_rules_are_not_tried():
    unused = rules.unused(without=["factor_one", "join_matmuls"])
    assert unused["factor_one"] == unused["join_matmuls"] == "switched off"
    with rules.registered(Fast()):
        assert rules.unused()["fast"] == "takes --allow approximate"
        assert "fast" not in rules.unused(["approximate"])


class Fast(Law):
    """exp(a) = exp(a)."""

    name = "fast"
    before = after = exp(a)
    needs = "approximate"
