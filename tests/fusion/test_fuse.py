"""Grouping: what shares a PrimFunc, and what a group looks like afterwards."""

import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.device import parse


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def fuse(mod, target):
    with target:
        return transform.FuseOperators()(transform.Legalize()(mod))


def kernels(mod):
    return sorted(g.name_hint for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc))


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


def test_an_epilogue_joins_its_contraction(target):
    mod = fuse(Chain, target)
    assert kernels(mod) == ["fused_matmul_relu_tir_exp"]
    relax.analysis.well_formed(mod)


def test_groups_carry_no_operator_pattern(target):
    mod = fuse(Chain, target)
    assert "op_pattern" not in mod["fused_matmul_relu_tir_exp"].attrs


def test_applied_again_it_changes_nothing(target):
    once = fuse(Chain, target)
    tvm.ir.assert_structural_equal(transform.FuseOperators()(once), once)


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
    assert len(kernels(stock)) == 2  # stock leaves them alone without a word
    assert kernels(fuse(Plain, target)) == ["fused_tir_exp_relu"]
