"""Special functions against torch's own in float64, over their ranges and at their poles."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.frontend.torch_functions import Functions  # noqa: E402
from tvm_fusion.frontend import import_model  # noqa: E402

special = torch.special
pytestmark = pytest.mark.torch

OF_UNIT = {"erfinv": torch.erfinv, "ndtri": lambda x: special.ndtri((x + 1) / 2)}


def compare(run, functions, x, rtol, atol):
    module = Functions(*functions.values())
    results = run(import_model(torch.export.export(module, (x,))).mod, x.numpy())
    results = results if isinstance(results, list) else [results]
    for name, result, expected in zip(functions, results, module(x.double()), strict=True):
        with np.errstate(over="ignore"):
            expected = expected.numpy().astype(result.dtype)
        np.testing.assert_allclose(result, expected, rtol, atol, err_msg=name)


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-11)])
def test_inverses_of_the_error_function(run, rng, dtype, rtol):
    values = np.concatenate([rng.uniform(-1, 1, 201), [-1, 1, 0, 1e-12, 0.9999, -0.999999]])
    compare(run, OF_UNIT, torch.from_numpy(values.astype(dtype)), rtol, 0)


def test_tails_keep_their_digits(run):
    x = torch.tensor([1e-30, 1e-200, 1e-300, 5.0, 20.0], dtype=torch.float64)
    functions = {"ndtri": special.ndtri, "erfc": torch.erfc, "k0": special.modified_bessel_k0}
    compare(run, {k: functions[k] for k in ("erfc", "k0")}, x, 1e-11, 0)
    compare(run, {"ndtri": special.ndtri}, x[:3], 1e-11, 0)


def test_polygamma_at_poles_and_at_minus_infinity(run):
    x = torch.tensor([-np.inf, 0.0, -2.5, 0.3, 12.0], dtype=torch.float64)
    functions = {f"order {n}": lambda x, n=n: torch.polygamma(n, x) for n in (1, 2, 3)}
    # PyTorch's trigamma function is wrong from the tenth digit on: 12.2453645461077 at 0.3.
    compare(run, functions, x, 1e-9, 0)
