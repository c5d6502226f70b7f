"""Comparisons with exact sums.

Terms of either sign may cancel: the error of a sum is one of its terms, not of the result, and a
relative tolerance alone fails by chance on random numbers.
"""

import ml_dtypes
import numpy as np


def assert_sums_close(found, exact, size, terms, dtype="float32"):
    """Compare sums with those of float64; they may be added in any order.

    The bound is the usual one, ``n * u / (1 - n * u) * sum(|terms|)``. No sum exceeds it by chance,
    and a term that is missing or added twice does.

    Parameters
    ----------
    found, exact : array_like
        What was computed, and the same in float64.
    size : array_like
        Sums of the absolute values of the terms, one for each of the sums.
    terms : int
        Roundings on the way to a result: additions, and one for a product in each term.
    dtype : str
        In which the sums were computed.
    """
    found, exact = np.asarray(found).astype("float64"), np.asarray(exact)
    assert found.shape == exact.shape
    roundings = (terms + 1) * float(ml_dtypes.finfo(dtype).eps) / 2  # and the result
    assert roundings < 0.1
    bound = roundings / (1 - roundings) * np.broadcast_to(size, exact.shape)
    wrong = ~(np.abs(found - exact) <= bound)  # NaN as well
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} sums are wrong: {found[place]} at {place};"
            f" expected {exact[place]} +- {bound[place]}"
        )


def assert_products_close(found, a, b):
    """Compare a matrix product with that of float64."""
    a, b = (x.astype("float64") for x in (a, b))
    assert_sums_close(found, a @ b, np.abs(a) @ np.abs(b), a.shape[-1], "float32")
