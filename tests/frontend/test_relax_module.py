import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion.config import FusionConfig
from tvm_fusion.core.decisions import recording
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange, TensorSpec


@I.ir_module
class Several:
    @T.prim_func(private=True, s_tir=True)
    def twice(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(4, i)
                b[v] = a[v] * T.float32(2)

    @R.function
    def step(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        y = R.exp(x)
        z = R.add(y, y)
        return z

    @R.function
    def main(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n*8",), "float32"):
        n = T.int64()
        y = R.add(x, x)
        z = R.exp(y)
        w = R.reshape(z, R.shape([n * 8]))
        return w

    @R.function(private=True)
    def grouped(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        R.func_attr({"Primitive": True})
        y = R.add(x, x)
        z = R.exp(y)
        return z

    @R.function
    def sizes(s: R.Shape(["n"])) -> R.Shape(["n"]):
        n = T.int64()
        return R.shape([n])


def test_several_functions():
    with recording() as log:
        imported = import_model(Several, FusionConfig(dims={"n": DimRange(1, 8)}))
    assert list(imported.signatures) == ["main", "step"]
    assert imported.signatures["main"].outputs == (TensorSpec("output_0", ("n*8",), "float32"),)
    assert imported.source == "IRModule"
    assert [(d.producer, d.code) for d in log] == [("sizes", "no_signature")]
    for name in ("main", "step"):
        func = imported.mod[name]
        assert all(isinstance(block, relax.DataflowBlock) for block in func.body.blocks)
        assert dict(func.attrs["tir_var_upper_bound"]) == {"n": 8}


def test_what_is_not_ours_passes_untouched():
    imported = import_model(Several, FusionConfig(dims={"n": 4}))
    for name in ("twice", "grouped"):
        assert imported.mod[name].same_as(Several[name])


def test_binding_changes_every_function(rng, run):
    imported = import_model(Several, FusionConfig(dims={"n": 3}))
    assert imported.dims == {}
    assert imported.signatures["step"].inputs[0].shape == (3, 8)
    x = rng.standard_normal((3, 8), dtype="float32")
    np.testing.assert_allclose(run(imported.mod, x, name="step"), 2 * np.exp(x), rtol=1e-6)


def test_unbound():
    with pytest.raises(UserError) as error:
        import_model(Several)
    assert str(error.value) == (
        "the IRModule has unbound dimensions n of input x[0]; give --dim n=VALUE or n=LOW..HIGH, "
        "in Python dims={...}."
    )


def test_bounds_in_the_module_count():
    @I.ir_module
    class Bounded:
        @R.function
        def main(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
            R.func_attr({"tir_var_upper_bound": {"n": 16}})
            y = R.exp(x)
            return y

    assert import_model(Bounded).dims == {"n": DimRange(1, 16)}
    with pytest.raises(UserError, match=r"extents within 1\.\.16"):
        import_model(Bounded, FusionConfig(dims={"n": 17}))


def test_module_without_public_functions():
    with pytest.raises(UserError, match="without a public Relax function"):
        import_model(tvm.IRModule({}))


def test_functions_without_a_dataflow_block_fuse_after_import():
    def kernels(mod):
        for each in (
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ):
            mod = each(mod)
        calls = []
        relax.analysis.post_order_visit(
            mod["step"],
            lambda e: (
                calls.append(e)
                if isinstance(e, relax.Call) and e.op == tvm.ir.Op.get("relax.call_tir")
                else None
            ),
        )
        return len(calls)

    bound = relax.transform.BindSymbolicVars({"n": 4})(Several)
    with tvm.target.Target("llvm"):
        assert kernels(bound) == 2
        assert kernels(import_model(Several, FusionConfig(dims={"n": 4})).mod) == 1
