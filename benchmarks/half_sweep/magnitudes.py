"""Inputs near the limits of a half type: those of a case, scaled to other magnitudes."""

from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

#: Half types and what numpy has in their place.
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def magnitudes(dtype: str) -> dict[str, float]:
    """Name the sizes of the largest element: the type's limits and two between them.

    The smallest normal number is taken twice, so that smaller elements are subnormal, the smallest
    subnormal one eight times, so that they differ.
    """
    info = ml_dtypes.finfo(HALVES[dtype])
    return {
        "largest": float(info.max),
        "1e4": 1e4,
        "1": 1.0,
        "1e-4": 1e-4,
        "normal": 2 * float(info.tiny),
        "subnormal": 8 * float(info.smallest_subnormal),
    }


def scaled(
    inputs: Sequence[np.ndarray], dtype: str, is_scaled: Sequence[bool]
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield inputs by name of their magnitude: the first that is scaled alone, then all.

    Parameters
    ----------
    inputs
        As a case has them.
    dtype
        A key of :data:`HALVES`, which scaled inputs get.
    is_scaled
        For each input, whether it is of the half type.
    """
    places = [i for i, is_half in enumerate(is_scaled) if is_half]
    plain = [x.astype(HALVES[dtype]) if h else x for x, h in zip(inputs, is_scaled, strict=True)]
    yield "as drawn", plain
    for name, size in magnitudes(dtype).items():
        for which in (places[:1], places) if len(places) > 1 else (places,):
            label = name if len(which) == len(places) else f"{name}, first"
            yield label, [_to(x, size, dtype) if i in which else x for i, x in enumerate(plain)]


def _to(x: np.ndarray, size: float, dtype: str) -> np.ndarray:
    """Scale to a largest element of a size."""
    wide = x.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    largest = finite.max() if finite.size else 0.0
    return (wide * (size / largest) if largest else wide).astype(HALVES[dtype])
