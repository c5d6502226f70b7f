import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

import tvm_fusion
from tvm_fusion.frontend.normalize import BooleanArithmetic

op = relax.op
RNG = np.random.default_rng(3)
A, B = RNG.random((5, 7)) > 0.5, RNG.random((5, 7)) > 0.5
BYTES = RNG.integers(-9, 9, (5, 7)).astype("int8")


def module(build, *arrays):
    params = [
        relax.Var(f"x{k}", relax.TensorType(a.shape, str(a.dtype))) for k, a in enumerate(arrays)
    ]

    def result(emit, *_):
        results = [emit(r) for r in build(*params)]
        return relax.Tuple(results)

    return main_module(params, result)


def check(tmp_path, build, arrays, expected):
    program = tvm_fusion.load(
        tvm_fusion.compile(module(build, *arrays), "cpu").export(tmp_path / "a")
    )
    results = program.run({f"x{k}": a for k, a in enumerate(arrays)}).values()
    for result, want in zip(results, expected, strict=True):
        assert result.dtype == np.asarray(want).dtype
        np.testing.assert_array_equal(result, want)


def test_arithmetic_and_order(tmp_path):
    names = ("add", "multiply", "maximum", "minimum", "less", "less_equal", "greater_equal")
    check(
        tmp_path,
        lambda a, b: [getattr(op, name)(a, b) for name in (*names, "greater")],
        (A, B),
        [getattr(np, name)(A, B) for name in (*names, "greater")],
    )


@pytest.mark.slow
def test_reductions_and_sums(tmp_path):
    check(
        tmp_path,
        lambda a: [
            *(op.max(a, axis=1), op.min(a, axis=0), op.argmax(a, axis=1), op.argmin(a, axis=1)),
            *(op.cumsum(a, 1, "int64"), op.cumsum(a, 0, "float32"), op.cumsum(a, 1)),
        ],
        (A,),
        [
            *(A.max(1), A.min(0), A.argmax(1), A.argmin(1)),
            *(np.cumsum(A, 1), np.cumsum(A, 0, "float32"), np.logical_or.accumulate(A, 1)),
        ],
    )


@pytest.mark.parametrize("x", [A, BYTES], ids=["bool", "int8"])
def test_sorts_of_narrow_types(tmp_path, x):
    check(
        tmp_path,
        lambda a: [op.sort(a, 1), op.argsort(a, 1, dtype="int64")],
        (x,),
        [np.sort(x, 1), np.argsort(x, 1, kind="stable")],
    )


def test_numbers_stay():
    mod = module(lambda a: [op.max(a, axis=1), op.add(a, a)], BYTES.astype("float32"))
    assert BooleanArithmetic()(mod).same_as(mod)
