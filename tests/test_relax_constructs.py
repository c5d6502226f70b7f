"""Every construct of Relax goes through the registered pipeline and through a whole build."""

import numpy as np
import pytest
import tvm
from relax_constructs import CASES, X
from relax_modules import main_module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from tvm_fusion.device import parse
from tvm_fusion.errors import named

pytestmark = pytest.mark.slow_beyond(3)


@pytest.mark.parametrize("name", CASES)
def test_registered_pipeline(name):
    mod, inputs, expected = CASES[name]
    target = parse("cpu").tvm_target()
    pipeline = relax.get_pipeline("tvm_fusion", target=target)
    built = tvm.compile(mod, target, relax_pipeline=pipeline, tir_pipeline="tvm_fusion")
    machine = relax.VirtualMachine(built, tvm.cpu())
    check(arrays(machine["main"](*map(to_tvm, inputs))), expected)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", CASES)
def test_whole_build(name, tmp_path):
    mod, inputs, expected = CASES[name]
    if name == "impure_packed":  # TVM's assertion is a function of the compiler's process
        with pytest.raises(tvm_fusion.UserError, match=r"relax\.run\.assert_op"):
            tvm_fusion.compile(mod, "cpu")
        return
    program = tvm_fusion.load(tvm_fusion.compile(mod, "cpu").export(tmp_path / "artifact"))
    specs = program.signatures["main"].inputs
    given = dict(zip([spec.name for spec in specs], leaves(inputs), strict=True))
    check(list(program.run(given).values()), expected)


def check(results, expected):
    wanted = leaves(expected if isinstance(expected, tuple) else (expected,))
    assert len(results) == len(wanted)
    for result, want in zip(results, wanted, strict=True):
        assert result.shape == np.shape(want)
        np.testing.assert_allclose(result, want, rtol=2e-5, atol=1e-5)


def leaves(value):
    return [x for v in value for x in leaves(v)] if isinstance(value, tuple) else [value]


def to_tvm(value):
    if isinstance(value, tuple):
        return tvm.runtime.convert([to_tvm(v) for v in value])
    return tvm.runtime.tensor(value)


def arrays(result):
    return [result.numpy()] if hasattr(result, "numpy") else [a for r in result for a in arrays(r)]


@I.ir_module(check_well_formed=False)
class UnknownShape:
    @R.function
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor("float32", ndim=2):
        with R.dataflow():
            b = R.call_pure_packed("constructs.plus", x, ty_args=R.Tensor("float32", ndim=2))
            y = R.add(R.tanh(b), b)
            R.output(y)
        return y


@I.ir_module(check_well_formed=False)
class Capture:
    @R.function
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
        w = R.exp(x)

        @R.function
        def inner(a: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
            b = R.add(a, w)
            return b

        r = inner(x)
        return r


@pytest.mark.parametrize(
    ("mod", "sentence"),
    [
        (
            UnknownShape,
            "operators tanh, add on tensors whose shapes are not known before the model runs "
            r"cannot be lowered \(at lv1, y\); name the extents",
        ),
        (Capture, "a function inside another one uses w from outside of it; expected functions"),
    ],
)
def test_what_has_no_kernel_is_refused_before_it_is_planned(mod, sentence):
    with pytest.raises(tvm_fusion.UserError, match=sentence) as raised:
        tvm_fusion.compile(mod, "cpu")
    assert "ir.Op(" not in str(raised.value)


def test_operator_that_cannot_be_lowered_is_named():
    x = relax.Var("x", relax.TensorType(X.shape, "bool"))
    with pytest.raises(
        tvm_fusion.UserError, match=r"operator negative \(at \w+\) cannot be lowered"
    ):
        tvm_fusion.compile(main_module([x], relax.op.negative(x)), "cpu")


def test_operators_in_messages_of_tvm_are_named():
    found = f"unknown intrinsic {tvm.ir.Op.get('tirx.cosh')!s} of x"
    assert "span=None" in found
    assert named(found) == "unknown intrinsic tirx.cosh of x"
