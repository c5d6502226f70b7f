"""Hyperbolic functions against numpy's in float64, near 0 and up to where they overflow."""

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

import tvm_fusion

NEAR = np.concatenate([10.0 ** np.linspace(-7, -1, 31), np.linspace(0.1, 0.99, 40)])
RANGES = {
    "cosh": (np.cosh, [0.0, 1, 5, 20, 60, 89.2, 1e4, np.inf]),
    "sinh": (np.sinh, [0.0, 1, 5, 20, 60, 89.2, 1e4, np.inf]),
    "atanh": (np.arctanh, [0.0, 0.25, 0.5, 1]),
    "tan": (np.tan, [0.0, 1, 1.5, 20]),
    "atan": (np.arctan, [0.0, 1, 20, np.inf]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_accuracy(tmp_path, dtype):
    params, arrays = [], {}
    for name, (_, more) in RANGES.items():
        half = np.concatenate([NEAR, more])
        arrays[name] = np.concatenate([half, -half, [np.nan]]).astype(dtype)
        params.append(relax.Var(name, relax.TensorType(arrays[name].shape, dtype)))

    def result(emit, *_):
        results = [emit(getattr(relax.op, p.name)(p)) for p in params]
        return relax.Tuple(results)

    program = tvm_fusion.load(
        tvm_fusion.compile(main_module(params, result), "cpu").export(tmp_path / "a")
    )
    results = program.run(arrays).values()
    for (name, (function, _)), result in zip(RANGES.items(), results, strict=True):
        with np.errstate(all="ignore"):
            expected = function(arrays[name].astype("float64")).astype(dtype)
        # Four units in the last place; what is subnormal may be off by one.
        limits = np.finfo(dtype)
        np.testing.assert_allclose(
            *(result.astype("float64"), expected.astype("float64")),
            rtol=4 * limits.eps,
            atol=float(limits.smallest_subnormal),
            err_msg=name,
        )
        np.testing.assert_array_equal(np.signbit(result[:-1]), np.signbit(expected[:-1]), name)
