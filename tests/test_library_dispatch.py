"""What library dispatch took before is compiled as it is, or refused by name; never fused again."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from tvm_fusion.device import parse

PATTERN = is_op("relax.nn.relu")(is_op("relax.matmul")(wildcard(), wildcard()))


@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((3, 7), "float32"), w: R.Tensor((7, 5), "float32")) -> R.Tensor(
        (3, 5), "float32"
    ):
        with R.dataflow():
            a = R.exp(x)
            b = R.matmul(a, w)
            c = R.nn.relu(b)
            d = R.tanh(R.add(c, c))
            R.output(d)
        return d


def dispatched(annotate):
    patterns = [("lib.matmul_relu", PATTERN)]
    return relax.transform.FuseOpsByPattern(patterns, annotate_codegen=annotate)(Model)


def test_composite_functions_become_one_kernel():
    target = parse("cpu").tvm_target()
    options = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    mod = relax.get_pipeline("tvm_fusion", target=target)(dispatched(False))
    kernels = [g.name_hint for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    assert len([name for name in kernels if "relax_matmul_relax_nn_relu" in name]) == 1
    assert len(kernels) == 3  # before it, itself, behind it
    built = tvm.compile(dispatched(False), target, **options)
    rng = np.random.default_rng(8)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((3, 7), (7, 5)))
    y = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, (x, w)))
    wanted = np.tanh(2 * np.maximum(np.exp(x.astype("float64")) @ w, 0))
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_functions_for_a_code_generator_that_did_not_run_are_named():
    mod = dispatched(True)
    with pytest.raises(
        tvm_fusion.UserError, match=r"_lib is for the external .* lib; .*RunCodegen"
    ):
        tvm_fusion.compile(mod, "cpu")


def test_pipelines_of_ones_own_may_run_it_later():
    target = parse("cpu").tvm_target()
    before = dispatched(True)
    after = relax.get_pipeline("tvm_fusion", target=target, lower=False)(before)
    (name,) = [g.name_hint for g in before.functions if g.name_hint != "main"]
    tvm.ir.assert_structural_equal(after[name], before[name])
