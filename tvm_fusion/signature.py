"""Names, shapes and dtypes of a model's functions, in plain Python.

Written by the frontend, kept in the artifact's manifest, checked at every call. Imports no TVM, so
that an artifact can be loaded and checked without the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes
    ----------
    name : str
        The name in the model file.
    shape : tuple of (int or str)
        Extents; a string is the name of a symbolic dimension or an expression over such names.
    dtype : str
        A numpy or ml_dtypes name: ``float32``, ``int64``, ``bfloat16``, ``bool``...
    storage : str
        The dtype in which the code takes or returns it, one element of each for one of the other;
        empty where that is ``dtype``.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    storage: str = ""


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one function, in call order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class DimRange:
    """The extents that a symbolic dimension may take.

    Attributes
    ----------
    low, high : int
        The least and the largest, both included.
    """

    low: int
    high: int
