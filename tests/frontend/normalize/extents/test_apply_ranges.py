import numpy as np
import pytest
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.frontend.normalize import ApplyRanges

TABLE = np.random.default_rng(2).standard_normal((16, 3)).astype("float32")


def module(most=None):
    """Add the first rows of a table, as many as there are of ``x``: positions of a model."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 3), "float32"))
    attrs = {"tir_var_upper_bound": {"n": most}} if most else {}
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs=attrs):
        with builder.dataflow():
            rows = builder.emit(relax.op.strided_slice(relax.const(TABLE), [0], [0], [n]))
            shape = [tirx.Min(n, tirx.IntImm("int64", 16)), 3]
            y = builder.emit_output(relax.op.add(x, relax.op.reshape(rows, shape)))
        builder.emit_func_output(y)
    return builder.get()


def test_rows_within_the_table(tmp_path):
    program = tvm_fusion.load(tvm_fusion.compile(module(16), "cpu").export(tmp_path / "a"))
    for rows in (1, 5, 16):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype("float32")
        (result,) = program.run({"x": x}).values()
        np.testing.assert_allclose(result, x + TABLE[:rows], rtol=1e-6)


@pytest.mark.parametrize(("most", "is_known"), [(16, True), (17, False), (None, False)])
def test_only_what_ranges_prove(most, is_known):
    func = ApplyRanges()(module(most))["main"]
    slices = [b.value for block in func.body.blocks for b in block.bindings]
    (slice_,) = [v for v in slices if v.op.name == "relax.strided_slice"]
    assert bool(slice_.attrs.assume_inbound) == is_known
    assert isinstance(func.ret_ty.shape, relax.ShapeExpr) or not is_known
