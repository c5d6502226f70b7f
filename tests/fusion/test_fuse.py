"""The fusion stage as a pass: alone, twice, among TVM's own passes."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def fuse(mod, target):
    with target:
        return transform.FuseOperators()(transform.Legalize()(mod))


def groups(mod):
    return {
        gvar.name_hint: str(func.attrs["tvm_fusion.template"])
        for gvar, func in mod.functions.items()
        if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs
    }


@I.ir_module
class Chain:
    @R.function
    def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        ("n", 8), "float32"
    ):
        n = T.int64()  # noqa: F841
        with R.dataflow():
            h = R.matmul(x, w)
            r = R.nn.relu(h)
            y = R.exp(r)
            R.output(y)
        return y


def test_a_group_carries_the_template_that_claimed_it(target):
    mod = fuse(Chain, target)
    assert groups(mod) == {"fused_matmul_relu_tir_exp": "contraction"}
    relax.analysis.well_formed(mod)


def test_applied_again_it_changes_nothing(target):
    once = fuse(Chain, target)
    with target:
        tvm.ir.assert_structural_equal(transform.FuseOperators()(once), once)


def test_it_does_not_change_its_argument(target):
    with target:
        legal = transform.Legalize()(Chain)
        text = legal.script()
        transform.FuseOperators()(legal)
    assert legal.script() == text


def test_fuse_tir_merges_the_groups_as_it_merges_those_of_fuse_ops(target):
    mod = relax.transform.FuseTIR()(fuse(Chain, target))
    assert [g.name_hint for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)] == [
        "fused_matmul_relu_tir_exp"
    ]


def test_bindings_outside_of_dataflow_blocks_join(target):
    @I.ir_module
    class Plain:
        @R.function
        def main(x: R.Tensor((5, 9), "float32")) -> R.Tensor((5, 9), "float32"):
            a = R.exp(x)
            b = R.nn.relu(a)
            return b

    with target:
        legal = transform.Legalize()(Plain)
        stock = relax.transform.FuseTIR()(relax.transform.FuseOps()(legal))
    kernels = [f for f in stock.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 2  # stock leaves them alone without a word
    assert groups(fuse(Plain, target)) == {"fused_tir_exp_relu": "elementwise"}


def test_every_edge_has_a_recorded_decision(target):
    @I.ir_module
    class Two:
        @R.function
        def main(x: R.Tensor((64, 64), "float32"), w: R.Tensor((64, 64), "float32")) -> R.Tensor(
            (64, 64), "float32"
        ):
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.nn.relu(a)
                c = R.matmul(b, w)
                R.output(c)
            return c

    with recording() as decisions:
        fuse(Two, target)
    assert [(d.producer, d.consumer, d.code) for d in decisions] == [
        ("a", "b", "fused"),
        ("b", "c", "mapping_red"),
    ]
    assert decisions[0].bytes_saved == 64 * 64 * 4
    assert decisions[0].classes == ("Many-to-Many", "One-to-One")
    assert decisions[1].classes == ("Many-to-Many", "Many-to-Many")  # relu is in a product's group


def test_a_broken_claim_is_recorded_and_its_region_planned_again(target, monkeypatch):
    from tvm_fusion.schedule.elementwise.template import Elementwise

    def breaks(self, claim, tgt):
        if len(claim.group) > 1:
            raise tvm.error.InternalError("not today")
        return emit(self, claim, tgt)

    emit = Elementwise.emit
    monkeypatch.setattr(Elementwise, "emit", breaks)

    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor(("n", 9), "float32")) -> R.Tensor(("n", 9), "float32"):
            n = T.int64()  # noqa: F841
            with R.dataflow():
                a = R.exp(x)
                b = R.tanh(a)
                c = R.negative(b)
                R.output(c)
            return c

    with recording() as decisions:
        mod = fuse(Mod, target)
        with target:
            mod = transform.LowerToVM()(transform.ScheduleKernels()(mod))
    broken = [d for d in decisions if d.code == "claim_broken"]
    # Three operators first, then two of them: the third has its kernel by then.
    assert [d.producer.count("tir_") for d in broken if "not today" in d.sentence] == [3, 2]
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len([f for f in kernels if "tirx.is_scheduled" in f.attrs]) == 3
    built = tvm.compile(
        mod, target, relax_pipeline=tvm.ir.transform.Sequential([]), tir_pipeline="tvm_fusion"
    )
    x = np.random.default_rng(0).normal(size=(7, 9)).astype("float32")
    y = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(y, -np.tanh(np.exp(x.astype("float64"))), rtol=1e-5)


def test_needs_a_target():
    """TVM's own error names no pass and says nothing of what to write."""
    lowered = transform.Legalize()(Chain)
    for name in ("FuseOperators", "ScheduleKernels", "SearchEquivalents", "Recompose"):
        with pytest.raises(UserError, match=r"there is no current target; .* write `with "):
            getattr(transform, name)()(lowered)


def test_says_that_nothing_is_legalised(target):
    with target, pytest.raises(UserError, match=r"relax\.matmul.*; apply Legalize\(\) before"):
        transform.FuseOperators()(Chain)
    with target:  # views and what is not known until it runs are none of it
        tvm.ir.assert_structural_equal(transform.FuseOperators()(Views), Views)


@I.ir_module
class Views:
    @R.function
    def main(x: R.Tensor((4, 6), "float32"), y: R.Tensor(ndim=2, dtype="float32")) -> R.Tuple(
        R.Tensor((24,), "float32"), R.Tensor(ndim=2, dtype="float32")
    ):
        with R.dataflow():
            a = R.reshape(x, R.shape([24]))
            b = R.nn.relu(y)
            result = (a, b)
            R.output(result)
        return result
