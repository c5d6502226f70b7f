"""Choices by a boolean tensor: what they compute, and that the condition is not made a number."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.device import parse

MASKS = 8  # of one another; TOPI's form takes minutes from seven on


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def module(shapes, dtypes, body):
    params = [
        relax.Var(f"x{i}", relax.TensorType(s, d))
        for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    return main_module(params, body)


@pytest.mark.parametrize(
    "shapes", [((5, 1), (7,), (1, 7)), ((), (3, 5), (3, 1)), ((4, 1, 3), (4, 5, 1), ())]
)
def test_computes_what_numpy_does(target, shapes):
    mod = module(shapes, ("bool", "float32", "float32"), lambda _, *x: relax.op.where(*x))
    rng = np.random.default_rng()
    condition = rng.random(shapes[0]) < 0.5
    a, b = (rng.normal(size=s).astype("float32") for s in shapes[1:])
    with target:
        executable = tvm.compile(
            mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
        )
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(x) for x in (np.asarray(condition), a, b)))
    np.testing.assert_array_equal(result.numpy(), np.where(condition, a, b))


@pytest.mark.slow
def test_masks_of_masks_are_lowered(target):
    def body(emit, x, y):
        for _ in range(MASKS):
            mask = emit(relax.op.less(x, y))
            x = emit(relax.op.where(mask, y, x))
        return x

    with target:
        mod = transform.Legalize()(module([(3,), (3,)], ["int64", "int64"], body))
        assert "Cast" not in mod.script()
        scheduled = transform.ScheduleKernels()(transform.FuseOperators()(mod))
        tvm.tirx.transform.StmtSimplify()(scheduled)


@pytest.mark.parametrize(
    ("number", "is_input"), [(2.5, False), (float("nan"), True), (float("inf"), True)]
)
def test_finite_numbers_are_no_inputs(target, number, is_input):
    def body(_, flag, x):
        return relax.op.where(flag, relax.const(number, "float32"), x)

    mod = module([(3,), (3,)], ["bool", "float32"], body)
    with target:
        after = transform.Legalize()(mod)
        executable = tvm.compile(
            mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
        )
    (call,) = [b.value for b in after["main"].body.blocks[0].bindings if len(b.value.args) > 1][:1]
    assert len(call.args[1].fields) == 2 + is_input
    flag, x = np.array([True, False, True]), np.array([1, 2, 3], "float32")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(flag), tvm.runtime.tensor(x))
    np.testing.assert_array_equal(result.numpy(), np.where(flag, np.float32(number), x))


def test_stock_compares_numbers(target):
    types = ("bool", "float32", "float32")
    mod = module([(3,)] * 3, types, lambda _, *x: relax.op.where(*x))
    with target:
        assert 'T.Cast("int64"' in relax.transform.LegalizeOps()(mod).script()
