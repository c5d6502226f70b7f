"""Resampling along axes: indices and weights (taps)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Taps(NamedTuple):
    """Indices and weights of shape [out, taps], and where nothing lies below an output element."""

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


@dataclass(frozen=True)
class Sampling:
    """How an axis is sampled, in ONNX's terms (operator Resize)."""

    mode: str  # ``nearest``, ``linear`` or ``cubic``
    coordinates: str  # ``coordinate_transformation_mode``
    rounding: str = "round_prefer_floor"  # ``nearest_mode``
    cubic_coefficient: float = -0.75  # ``cubic_coeff_a``
    # Attributes of these names.
    exclude_outside: bool = False
    antialias: bool = False

    def taps(
        self, extent: int, out: int, scale: float, region: tuple[float, float] = (0.0, 1.0)
    ) -> Taps:
        """Compute the taps of an axis.

        Parameters
        ----------
        scale
            As the model gives it; ``scale * extent`` need not be ``out``.
        region
            Start and end for ``tf_crop_and_resize``, 0 to 1.
        """
        # Which element is nearest depends on how coordinates round: in float32, as ONNX Runtime's.
        real = np.float32 if self.mode == "nearest" else np.float64
        x = np.arange(out, dtype=real)
        place = _coordinates(self.coordinates, extent, x, real(scale), region)
        outside = np.zeros(out, bool)
        if self.coordinates == "tf_crop_and_resize":
            outside = (place < 0) | (place > extent - 1)
        if self.mode == "nearest":
            index = np.clip(_ROUNDING[self.rounding](place), 0, extent - 1).astype("int64")
            return Taps(index[:, None], np.ones((out, 1)), outside)
        stretch = min(scale, 1.0) if self.antialias else 1.0
        radius = int(np.ceil((1 if self.mode == "linear" else 2) / stretch))
        base = np.floor(place).astype("int64")
        indices = base[:, None] + np.arange(1 - radius, radius + 1)[None, :]
        weights = self._kernel((indices - place[:, None]) * stretch)
        if self.antialias:
            weights = weights / weights.sum(1, keepdims=True)
        if self.exclude_outside:
            weights = np.where((indices < 0) | (indices >= extent), 0.0, weights)
            total = weights.sum(1, keepdims=True)
            weights = weights / np.where(total == 0, 1.0, total)
        return Taps(np.clip(indices, 0, extent - 1), weights, outside)

    def _kernel(self, x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        if self.mode == "linear":
            return np.clip(1 - x, 0, None)
        a = self.cubic_coefficient
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _coordinates(
    mode: str, extent: int, x: np.ndarray, scale: Any, region: tuple[float, float]
) -> np.ndarray:
    """Return where each output element lies in the input, in the type of their numbers ``x``."""
    out, length = len(x), scale * extent
    if mode == "align_corners":
        return np.zeros_like(x) if length == 1 else x * (extent - 1) / (length - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        start, end = region
        if length == 1:
            return np.full(out, (start + end) * (extent - 1) / 2)
        return start * (extent - 1) + x * (end - start) * (extent - 1) / (length - 1)
    if mode == "pytorch_half_pixel" and length == 1:
        return np.full(out, -0.5)
    place = (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        place += extent / 2 * (1 - out / length)
    return place


TIE = 1e-6  # so near a half ONNX Runtime takes a coordinate for one
_ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.floor(x) + (x - np.floor(x) - 0.5 > TIE),
    "round_prefer_ceil": lambda x: np.floor(x) + (x - np.floor(x) - 0.5 >= -TIE),
    "floor": np.floor,
    "ceil": np.ceil,
}
COORDINATES = (
    *("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    "tf_crop_and_resize",
)
ROUNDING = tuple(_ROUNDING)
