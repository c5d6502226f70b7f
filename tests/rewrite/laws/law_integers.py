"""Both sides of a law on integers near their type's limits, in numpy, which wraps around."""

from collections.abc import Callable, Mapping

import numpy as np

from tests.rewrite.laws.law_cases import Case, N
from tests.rewrite.laws.law_numerics import inputs, mixed
from tvm_fusion.rewrite.egraph.head import Head, Heads

INTEGERS = ("int8", "uint8", "int32", "int64")
_NEAR = 0.7  # the share of elements that are near a limit, or 0


def takes(case: Case, dtype: str) -> bool:
    """Whether a row's numbers are integers of a type."""
    info = np.iinfo(dtype)
    numbers = [np.asarray(v) for v in case.names.values() if not isinstance(v, str | Callable)]
    return all(
        (n.dtype == np.bool_) or ((n == np.round(n)) & (n >= info.min) & (n <= info.max)).all()
        for n in numbers
    )


def near_limits(
    specs: Mapping[Head, str], heads: Heads, dtype: str, seed: int
) -> dict[Head, np.ndarray]:
    """Draw what leaves are; those that have a range of their own keep to it."""
    drawn = inputs(specs, heads, dtype, N, True, seed)
    return mixed(drawn, specs, dtype, {"i": _limits, "u": _limits}, _NEAR, seed)


def _limits(kind: np.dtype) -> np.ndarray:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    special = [low, low + 1, low // 2, 0, 1, 2, 3, high // 2, high // 2 + 1, high - 1, high]
    special += [-1, -2] if low else []
    return np.asarray(special, kind)
