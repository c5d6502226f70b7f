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
