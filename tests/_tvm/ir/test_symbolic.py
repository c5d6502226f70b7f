"""Symbolic variables of a function that hands a PrimFunc to the runtime."""

import pytest
import tvm
from tvm import relax, te, tirx

from tvm_fusion._tvm.ir.symbolic import bind_symbolic_vars


def copy():
    x = te.placeholder((tirx.Var("rows", "int64") + 1,), "float32", "x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i], "copy")])


@pytest.fixture
def handing():
    builder = relax.BlockBuilder()
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    params = [relax.Var(name, relax.ShapeType([v])) for name, v in (("size", n), ("other", m))]
    with builder.function("main", params):
        handed = relax.Tuple([builder.add_func(copy(), "copy")])
        shape = relax.ShapeExpr([n, m])
        made = relax.call_pure_packed("make", shape, handed, ty_args=relax.AnyType())
        builder.emit_func_output(builder.emit(made))
    return builder.get()


def test_only_what_is_named_is_bound(handing):
    bound = bind_symbolic_vars(handing["main"], {"n": 3, "rows": 5})
    size, other = bound.params
    assert [int(extent) for extent in size.ty.values] == [3]
    assert [extent.name for extent in other.ty.values] == ["m"]
    call = bound.body.blocks[0].bindings[0].value
    assert "R.shape([3, m])" in str(call)
    (handed,) = relax.analysis.all_global_vars(bound)
    assert handed.same_as(handing.get_global_var("copy"))


def test_functions_without_such_names_stay(handing):
    assert bind_symbolic_vars(handing["main"], {"k": 3}).same_as(handing["main"])


def test_tvm_still_cannot_bind_them(handing):
    """Fails when TVM can: then the second way can go."""
    with pytest.raises(tvm.error.InternalError, match="should not have any undefined symbolic"):
        handing["main"].bind_symbolic_vars({"n": 3})
