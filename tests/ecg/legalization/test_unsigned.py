"""Negation and signs of unsigned integers, whose constants TVM refuses."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion

DTYPES = ["uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrap_around(dtype, tmp_path):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([7], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [builder.emit(f(x)) for f in (relax.op.negative, relax.op.sign)]
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    exe = tvm_fusion.load(tvm_fusion.compile(builder.get()).export(tmp_path / "model"))
    most = np.iinfo(dtype).max
    data = np.array([0, 1, 2, 127, 128, most - 1, most], dtype)
    negated, signs = exe.run({"x": data}).values()
    np.testing.assert_array_equal(negated, (0 - data.astype(object)) % (most + 1))
    np.testing.assert_array_equal(signs, data > 0)


def test_tvm_still_refuses():
    """Fails when TVM negates unsigned integers: then these legalizations can go."""

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((7,), "uint8")):
            return R.negative(x)

    with pytest.raises(Exception, match="negative value"):
        relax.transform.LegalizeOps()(tvm.IRModule(Module.functions))
