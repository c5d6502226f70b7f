"""The pass: what the planner is asked, what is recorded, what can be switched off."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.target import Target

from tests.rewrite.recompose.written import Agreeable, cleaned, const, module, op, tensor
from tvm_fusion import transform
from tvm_fusion.core.contract import templates
from tvm_fusion.core.decisions import recording
from tvm_fusion.fusion.estimate import RegionCost
from tvm_fusion.rewrite.recompose import price as pricing
from tvm_fusion.rewrite.recompose.patterns import PATTERNS, patterns
from tvm_fusion.rewrite.recompose.price import Price
from tvm_fusion.rewrite.recompose.recompose import recompose

CPU = Target("llvm")
X, V = tensor(5, 37), tensor(37)


def rms_norm(x, g):
    scale = op.rsqrt(op.add(op.mean(op.square(x), -1, keepdims=True), const(1e-6)))
    return op.multiply(op.multiply(x, scale), g)


def silu(x):
    return op.multiply(x, op.sigmoid(x))


def run(mod, **options):
    with CPU, recording() as log:
        after = transform.Recompose(**options)(mod)
    relax.analysis.well_formed(after)  # raises
    return after, log


def test_the_planner_finds_the_operator_no_more_expensive():
    after, log = run(cleaned(module(rms_norm, X, V)))
    (decision,) = log
    assert (decision.verdict, decision.code, decision.consumer) == (
        "accepted", "recomposed", "rms_norm",
    )  # fmt: skip
    assert decision.bytes_saved >= 0
    expected = module(lambda x, g: op.nn.rms_norm(x, g, [1], float(np.float32(1e-6))), X, V)
    assert_structural_equal(after["main"], expected["main"])


def test_without_a_template_that_claims_it_the_written_out_form_stays(monkeypatch):
    without_rows = tuple(t for t in templates._built_in["cpu"] if t.name != "rows")
    monkeypatch.setitem(templates._built_in, "cpu", without_rows)
    mod = cleaned(module(rms_norm, X, V))
    after, (decision,) = run(mod)
    assert_structural_equal(after, mod)
    assert (decision.verdict, decision.code) == ("refused", "no_template")
    assert decision.sentence.startswith(
        "The operators stay, although they form one rms_norm:"
        " no template of the target has kernels for it. elementwise: rms_norm is a reduction."
    )


def cost(us=1.0, kernels=1, size=100):
    return RegionCost(us, 0, kernels, size, 1)


@pytest.mark.parametrize(
    ("after", "is_more_expensive"),
    [
        (cost(), False),
        (cost(us=1.2), False),
        (cost(us=1.3), True),
        (cost(us=1.3, size=50), False),
        (cost(kernels=2), True),
        (cost(size=200), True),
        (cost(kernels=2, size=50, us=0.9), False),
        (cost(kernels=2, size=50, us=1.1), True),
    ],
)
def test_kernels_and_bytes_come_first(after, is_more_expensive):
    assert Price(cost(), after, True).is_more_expensive is is_more_expensive


def test_a_more_expensive_operator_is_refused():
    class Expensive(Agreeable):
        def price(self, pattern, view, root, found):
            return Price(cost(), cost(us=9.0, kernels=3), True)

    mod = cleaned(module(silu, X))
    (pattern,) = (k for k in PATTERNS if k.name == "silu")
    with recording() as log:
        assert recompose(mod, mod["main"], pattern, Expensive()).same_as(mod["main"])
    assert [(d.verdict, d.code) for d in log] == [("refused", "more_expensive")]
    assert "9.0 us in 3 kernels instead of 1.0 us in 1" in log[0].sentence


def test_equal_operators_are_priced_once(monkeypatch):
    asked = []
    claims = pricing.Estimator.claims
    monkeypatch.setattr(
        pricing.Estimator, "claims", lambda *args: asked.append(args) or claims(*args)
    )

    def body(x):
        for seed in range(3):
            weight = np.random.default_rng(seed).standard_normal(37).astype("float32")
            x = rms_norm(x, relax.const(weight))
        return x

    _, log = run(cleaned(module(body, X)))
    assert [d.code for d in log] == ["recomposed"] * 3
    assert len(asked) == 2  # written out, and as one operator


def test_names_are_unique_and_each_can_be_switched_off():
    names = [pattern.name for pattern in PATTERNS]
    assert len(set(names)) == len(names)
    assert all(name not in {k.name for k in patterns([name])} for name in names)
    mod = cleaned(module(silu, X))
    after, log = run(mod, without=["silu"])
    assert after.same_as(mod)
    assert not log


def test_every_pattern_has_its_equation():
    for pattern in PATTERNS:
        assert pattern.__doc__.startswith("``")
        assert "=" in pattern.__doc__.splitlines()[0]


def test_nothing_to_find_is_the_same_module():
    mod = module(lambda x: op.nn.relu(x), X)
    assert run(mod)[0].same_as(mod)


def test_foreign_functions_are_left_alone():
    mod = cleaned(module(silu, X))
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("Codegen", "other"))
    assert run(mod)[0].same_as(mod)


def test_outputs_of_a_computed_shape_are_no_obstacle():
    n = tvm.tirx.Var("n", "int64")
    after, log = run(cleaned(module(silu, tensor(n, n + 1))))
    assert [d.code for d in log] == ["recomposed"]
    assert "nn.silu" in after.script()
