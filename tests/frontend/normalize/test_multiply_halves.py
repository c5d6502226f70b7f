"""Products read half types behind casts; all else keeps its casts."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion.frontend.normalize import MultiplyHalves

F16, F32 = "float16", "float32"
op = relax.op


def operands(mod):
    """List the dtypes that the only product reads."""
    calls = []

    def visit(expr):
        if isinstance(expr, relax.Call) and str(expr.op.name) in (
            "relax.matmul",
            "relax.nn.conv2d",
        ):
            calls.append(expr)

    relax.analysis.post_order_visit(mod["main"].body, visit)
    (call,) = calls
    assert str(call.ty.dtype.dtype) == F32
    return [str(arg.ty.dtype.dtype) for arg in call.args]


def variable(name, shape, dtype=F16):
    return relax.Var(name, relax.TensorType(shape, dtype))


def test_casts_go_and_views_stay():
    a, b = variable("a", (5, 7)), variable("b", (3, 7))

    def result(emit, a, b):
        turned = emit(op.permute_dims(emit(op.astype(b, F32))))
        return emit(op.matmul(emit(op.astype(a, F32)), turned))

    mod = MultiplyHalves()(main_module([a, b], result))
    assert operands(mod) == [F16, F16]
    assert "astype" not in mod["main"].script()
    tvm.ir.assert_structural_equal(MultiplyHalves()(mod), mod)


def test_convolutions_too():
    x, w = variable("x", (1, 3, 8, 8)), variable("w", (4, 3, 3, 3))

    def result(emit, x, w):
        return emit(op.nn.conv2d(emit(op.astype(x, F32)), emit(op.astype(w, F32))))

    assert operands(MultiplyHalves()(main_module([x, w], result))) == [F16, F16]


@pytest.mark.parametrize(("value", "dtype"), [(0.5, F16), (0.1, F32)])
def test_a_constant_becomes_half_if_it_loses_nothing(value, dtype):
    def result(emit, a):
        return emit(op.matmul(emit(op.astype(a, F32)), relax.const(np.full((7, 2), value), F32)))

    mod = MultiplyHalves()(main_module([variable("a", (5, 7))], result))
    assert operands(mod) == ([F16, F16] if dtype == F16 else [F32, F32])


def test_two_half_types_and_computed_operands_stay():
    def mixed(emit, a, b):
        return emit(op.matmul(emit(op.astype(a, F32)), emit(op.astype(b, F32))))

    def computed(emit, a, b):
        double = emit(op.multiply(emit(op.astype(a, F32)), relax.const(2, F32)))
        return emit(op.matmul(double, emit(op.astype(b, F32))))

    a = variable("a", (5, 7))
    for other, result in (("bfloat16", mixed), (F16, computed)):
        mod = main_module([a, variable("b", (7, 2), other)], result)
        assert MultiplyHalves()(mod).same_as(mod)
