"""Attention is found in every spelling, written in one, and computes the same."""

from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tests.rewrite.recompose import attention_variants as variants
from tests.rewrite.recompose.attention_variants import VARIANTS, Variant, build, inputs, reference
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.fusion.estimate import RegionCost
from tvm_fusion.rewrite.recompose.attention.attention import Attention
from tvm_fusion.rewrite.recompose.price import Pricer
from tvm_fusion.rewrite.recompose.recompose import recompose

CPU = parse("cpu")
#: Variants that differ in nothing but their spelling end in one form.
SAME = [
    ("scale_on_q", "scale_on_k"),
    ("scale_on_q", "scores_divided"),
    ("scale_on_q", "scale_commuted"),
    ("scale_on_q", "keys_repeated"),
    ("scale_on_q", "zeros"),
    ("causal_where", "causal_positions_added"),
    ("causal_where", "causal_tril"),
    ("causal_positions", "causal_constants"),
    ("causal_where", "causal_triu"),
]


class Free:
    """Answers as the planner where everything is taken and costs nothing."""

    def estimate(self, func, constants):
        return RegionCost(0.0, 0, 0, 0, 0)

    def claims(self, func, constants):
        return [SimpleNamespace(template=SimpleNamespace(name="attention", is_fallback=False))], 0

    def cost(self, claims, operators):
        return RegionCost(0.0, 0, 0, 0, 0)


class Unpriced(Pricer):
    """Takes everything, without asking the planner."""

    def __init__(self, target):
        super().__init__(target)
        self._estimator = Free()


def recomposed(mod):
    """The module with attention written in one way, and what was recorded about it."""
    with recording() as log:
        before = mod["main"]
        func = recompose(mod, before, Attention(), Unpriced(CPU.tvm_target()))
    after = mod if func is before else tvm.IRModule({"main": func})
    relax.analysis.well_formed(after)  # raises
    return after, log


def names(mod):
    return [b.value.op.name.removeprefix("relax.") for b in mod["main"].body.blocks[0].bindings
            if isinstance(b.value, relax.Call)]  # fmt: skip


@pytest.fixture(scope="module")
def forms():
    """All variants, recomposed, with what was recorded."""
    return {name: recomposed(build(v)) for name, v in VARIANTS.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_is_found(forms, name):
    after, (decision,) = forms[name]
    variant = VARIANTS[name]
    assert decision.verdict == "accepted"
    assert "q x0, k x1, v x2" in decision.sentence
    assert f"scale {1 if variant.scale == 'none' else variants.SCALE:g}," in decision.sentence
    assert ("not causal" in decision.sentence) == ("causal" not in variant.mask)
    assert "2 heads to one of keys" in decision.sentence
    assert ("0 in dead rows" in decision.sentence) == bool(variant.guard)
    assert ("and for NaN" in decision.sentence) == (variant.guard in ("isnan", "unequal"))
    ops = names(after)
    assert ops.count("matmul") == 2
    assert ops.count("nn.softmax") == 1
    assert not {"max", "tile", "repeat", "tril", "triu"} & set(ops)
    assert sum(name in ("multiply", "divide") for name in ops) == (variant.scale != "none")


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_is_left_to_do(forms, name):
    after, _ = forms[name]
    again, (decision,) = recomposed(after)
    assert again.same_as(after)
    assert decision.code == "recognised"


@pytest.mark.parametrize(("one", "other"), SAME)
def test_spellings_become_one(forms, one, other):
    tvm.ir.assert_structural_equal(forms[one][0], forms[other][0])


NEAR_MISSES = {
    "axis": (Variant(layout="five"), "axis"),
    "scaled": (Variant(), "scaled"),
    "bent": (Variant(), "bent"),
    "transposed": (Variant(is_symbolic=True), "transposed"),
    "other_scores": (Variant(guard="torch"), "other_scores"),
    "guard_axis": (Variant(guard="torch", is_symbolic=True), "guard_axis"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name):
    variant, change = NEAR_MISSES[name]
    try:
        mod = build(variant, change)
    except ValueError:  # shapes that never fit are no graphs
        pytest.fail(f"{name} is no graph")
    after, log = recomposed(mod)
    assert after.same_as(mod)
    assert all(d.verdict == "refused" for d in log)


def test_mask_that_widens_the_scores_stays():
    """Scores of one batch, and a mask of three: the mask's batch is none of the product's."""
    q, k, v = (relax.Var(n, relax.TensorType((1, 4, 5), "float32")) for n in "qkv")
    m = relax.Var("m", relax.TensorType((3, 4, 4), "float32"))

    def result(emit, *_):
        turned = emit(relax.op.permute_dims(k, [0, 2, 1]))
        scores = emit(relax.op.add(emit(relax.op.matmul(q, turned)), m))
        weights = emit(relax.op.nn.softmax(scores, -1))
        return relax.op.matmul(weights, v)

    mod = main_module([q, k, v, m], result)
    assert recomposed(mod)[0].same_as(mod)


@pytest.fixture(scope="module")
def machine(forms):
    """All forms as functions of one module, compiled by stock passes."""
    funcs = {n: f["main"].with_attr("global_symbol", n) for n, (f, _) in forms.items()}
    return relax.VirtualMachine(tvm.compile(tvm.IRModule(funcs), "llvm"), tvm.cpu())


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_computes_the_same(machine, name):
    variant = VARIANTS[name]
    arrays = inputs(variant, np.random.default_rng(3))
    found = machine[name](*(tvm.runtime.tensor(a) for a in arrays)).numpy()
    expected = reference(variant, *arrays)
    tolerance = 5e-3 if variant.dtype == "float16" else 2e-6
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    if variant.guard and variant.mask.startswith("boolean"):
        assert not expected[:, -1].any()  # the row that is hidden completely


def beside_sink(place="last", guarded=False):
    """Attention of grouped heads over a score more than keys, as GPT-OSS writes it."""
    shapes = {"q": (2, 6, 9, 5), "k": (2, 3, 11, 5), "v": (2, 3, 11, 7), "mask": (1, 1, 9, 11),
              "sink": (6,)}  # fmt: skip
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    op = relax.op

    def result(emit, q, k, v, mask, sink):
        def spread(x):
            sizes = list(x.ty.shape)[2:]
            wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (2, 3, 2, *sizes)))
            return emit(op.reshape(wide, (2, 6, *sizes)))

        scores = emit(op.matmul(q, emit(op.permute_dims(spread(k), [0, 1, 3, 2]))))
        scores = emit(op.add(emit(op.multiply(scores, relax.const(0.25))), mask))
        column = emit(op.broadcast_to(emit(op.reshape(sink, (1, 6, 1, 1))), (2, 6, 9, 1)))
        pair = [column, scores] if place == "first" else [scores, column]
        weights = emit(op.nn.softmax(emit(op.concat(pair, -1)), -1))
        first = 0 if place == "last" else 1
        weights = emit(op.strided_slice(weights, [3], [first], [first + 11]))
        if guarded:
            weights = emit(op.where(emit(op.isnan(weights)), relax.const(0.0), weights))
        return op.matmul(weights, spread(v))

    return main_module(params, result), shapes


def test_scores_beside_a_sink():
    mod, shapes = beside_sink()
    after, (decision,) = recomposed(mod)
    assert decision.verdict == "accepted"
    assert "2 heads to one of keys, with an attention sink" in decision.sentence
    ops = names(after)
    assert [ops.count(x) for x in ("matmul", "concat", "strided_slice")] == [2, 1, 1]
    again, (decision,) = recomposed(after)
    assert again.same_as(after)
    assert decision.code == "recognised"
    rng = np.random.default_rng()
    arrays = [tvm.runtime.tensor(rng.standard_normal(s).astype("float32")) for s in shapes.values()]
    found, expected = (
        relax.VirtualMachine(tvm.compile(m, "llvm"), tvm.cpu())["main"](*arrays).numpy()
        for m in (after, mod)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", [{"place": "first"}, {"place": "cut"}, {"guarded": True}])
def test_what_is_no_sink_stays(change):
    mod, _ = beside_sink(**change)
    assert recomposed(mod)[0].same_as(mod)
