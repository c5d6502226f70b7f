import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

import tvm_fusion


def compiled(tmp_path, x, exponent):
    given = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    params = [given]
    if isinstance(exponent, np.ndarray):
        params.append(relax.Var("e", relax.TensorType(exponent.shape, str(exponent.dtype))))

    def result(emit, *_):
        right = params[1] if len(params) > 1 else relax.const(exponent, str(x.dtype))
        return relax.op.power(given, right)

    program = tvm_fusion.load(
        tvm_fusion.compile(main_module(params, result), "cpu").export(tmp_path / "a")
    )
    inputs = {"x": x, "e": exponent} if len(params) > 1 else {"x": x}
    (result,) = program.run(inputs).values()
    return result


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_constant_exponents(tmp_path, dtype):
    x = np.array([[0, 1, 2, 3, 4]], dtype)
    for exponent in (0, 1, 3):
        result = compiled(tmp_path / str(exponent), x, exponent)
        np.testing.assert_array_equal(result, x**exponent)


def test_computed_exponents(tmp_path):
    x = np.array([[2], [-1], [1], [0], [3], [-2]])
    e = np.array([0, 1, 5, 39, 63, 101, -3])
    expected = np.array(
        [
            [b**k if k >= 0 else {1: 1, -1: (-1) ** k}.get(b, 0) for k in e.tolist()]
            for b in x.ravel().tolist()
        ],
        object,
    )
    # What fits into 64 bits is exact; of what does not, the powers of two wrap around to 0.
    wrapped = np.vectorize(lambda n: (int(n) + 2**63) % 2**64 - 2**63, otypes=["int64"])(expected)
    fits = np.abs(expected) < 2**100
    result = compiled(tmp_path, x, e)
    np.testing.assert_array_equal(result[fits.astype(bool)], wrapped[fits.astype(bool)])
