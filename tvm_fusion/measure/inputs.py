"""Random inputs of a model; imports no TVM."""

from collections.abc import Iterable, Mapping

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from ..deploy.runtime.arguments import evaluate
from ..signature import TensorSpec


def drawn_inputs(
    specs: Iterable[TensorSpec], extents: Mapping[str, int], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw inputs: floats from a normal distribution, integers and booleans from {0, 1}.

    Parameters
    ----------
    extents
        Of symbolic dimensions; others are 1.

    Returns
    -------
    dict of str to numpy.ndarray
        By name.
    """
    return {spec.name: _drawn(spec, extents, generator) for spec in specs}


def _drawn(
    spec: TensorSpec, extents: Mapping[str, int], generator: np.random.Generator
) -> np.ndarray:
    kind, known = np.dtype(spec.dtype), (evaluate(extent, extents) for extent in spec.shape)
    shape = [1 if extent is None else extent for extent in known]
    if kind.kind in "iub":
        return generator.integers(0, 2, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)
