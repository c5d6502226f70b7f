"""Operators become PrimFuncs that carry their stock pattern; kernels stay kernels."""

import pytest
from tvm import relax, tirx

from tvm_fusion import transform
from tvm_fusion.device import parse

ELEMENTWISE, REDUCTION_OUT, OPAQUE = 0, 4, 8


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def legalize(target, shape, *operators):
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for operator in operators:
                value = builder.emit(operator(value))
            y = builder.emit_output(value)
        builder.emit_func_output(y)
    with target:
        return transform.Legalize()(builder.get())


def patterns(mod):
    return {
        gvar.name_hint: int(func.attrs["op_pattern"])
        for gvar, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }


@pytest.mark.parametrize("rows", [5, tirx.Var("n", "int64")])
def test_patterns(target, rows):
    mod = legalize(target, (rows, 7), relax.op.exp, relax.op.nn.softmax)
    assert patterns(mod) == {"tir_exp": ELEMENTWISE, "softmax": REDUCTION_OUT}


def test_nothing_but_kernels_is_left(target):
    mod = legalize(target, (5, 7), relax.op.exp, lambda x: relax.op.topk(x, 2)[0])
    assert "R.exp" not in mod["main"].script()
    assert "R.topk" not in mod["main"].script()


def test_scheduled_functions_are_opaque(target):
    mod = legalize(target, (5, 7), relax.op.exp)
    with target:
        scheduled = transform.ScheduleKernels()(mod)
        assert patterns(transform.Legalize()(scheduled)) == {"tir_exp": OPAQUE}
