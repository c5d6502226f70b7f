"""Operators that make values of nothing or of a shape alone."""

from typing import Any

import numpy as np
from tvm import relax

from .operator import Operator

R = relax.op


def _create(name: str, build: Any, reference: Any) -> Operator:
    return Operator(name, build, reference, exact=True)


def _full_build(shape: Any, fill: float, dtype: str) -> Any:
    return R.full(shape, relax.const(fill, dtype), dtype)


OPERATORS = [
    _create("full", _full_build, lambda shape, fill, dtype: np.full(shape, fill)),
    _create(
        "zeros",
        lambda shape, dtype: R.zeros(shape, dtype),
        lambda shape, dtype: np.zeros(shape),
    ),
    _create(
        "ones",
        lambda shape, dtype: R.ones(shape, dtype),
        lambda shape, dtype: np.ones(shape),
    ),
    _create(
        "full_like",
        lambda x, fill: R.full_like(x, relax.const(fill, x.ty.dtype.dtype)),
        lambda x, fill: np.full_like(x, fill),
    ),
    _create("zeros_like", R.zeros_like, np.zeros_like),
    _create("ones_like", R.ones_like, np.ones_like),
    _create(
        "arange",
        lambda start, end, step, dtype: R.arange(start, end, step, dtype),
        lambda start, end, step, dtype: np.arange(start, end, step).astype(dtype),
    ),
    _create(
        "eye",
        lambda n, m, k, dtype: R.eye(n, m, k, dtype),
        lambda n, m, k, dtype: np.eye(n, m, k),
    ),
]
