"""The bound of sums' errors holds in any order, and sees one wrong term."""

import numpy as np
import pytest
from rounding import assert_products_close, assert_sums_close


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_in_any_order_are_close_and_others_are_not(dtype):
    rng = np.random.default_rng()
    x = rng.standard_normal((301, 37)).astype(dtype)
    wide = x.astype("float64")
    exact, size = wide.sum(1), np.abs(wide).sum(1)
    for order in (x, x[:, ::-1], np.sort(x, 1)):
        found = np.zeros(len(x), dtype)
        for column in order.T:
            found += column
        assert_sums_close(found, exact, size, 37, dtype)
    term = np.abs(wide).argmax(1)[:, None]
    missing = exact - np.take_along_axis(wide, term, 1)[:, 0]
    for wrong in (missing, exact + np.nan):
        one = exact.copy()
        one[117] = wrong[117]
        with pytest.raises(AssertionError, match=r"1 of 301 sums are wrong: .* at \(117,\)"):
            assert_sums_close(one, exact, size, 37, dtype)
    with pytest.raises(AssertionError):
        assert_sums_close(exact[:1], exact, size, 37, dtype)


def test_products():
    rng = np.random.default_rng()
    a, b = (rng.standard_normal(s).astype("float32") for s in ((7, 67), (67, 5)))
    assert_products_close(a @ b, a, b)
    with pytest.raises(AssertionError, match="sums are wrong"):
        assert_products_close(a[:, :-1] @ b[:-1], a, b)
