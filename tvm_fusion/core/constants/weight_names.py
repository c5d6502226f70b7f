"""Which constant of a module is which weight of the model."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


def weight_key(array: np.ndarray) -> str:
    """Return the SHA-256, in hexadecimal, of an array's dtype, shape and bytes.

    Parameters
    ----------
    array
        Any shape; a numpy or ml_dtypes dtype.

    Returns
    -------
    str
        Equal for arrays that hold the same bits in the same shape.
    """
    digest = hashlib.sha256(f"{array.dtype.name}{list(array.shape)}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def constants(mod: Any) -> Iterator[Any]:
    """Yield every tensor constant of a module's Relax functions, each object once."""
    from tvm import ir, relax

    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, ir.GenericConst):
            found.append(expr)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    seen: set[int] = set()
    for const in found:
        if hash(const) not in seen:
            seen.add(hash(const))
            yield const


@dataclass(frozen=True)
class Packing:
    """How a weight became what kernels read."""

    # Name of the function in the library that packs: from the weight to the packed form.
    function: str
    shape: tuple[int, ...]  # of the weight itself


class WeightNames:
    """The model's names of constants, handed on while passes derive new constants from them.

    Parameters
    ----------
    named : iterable of (str, tvm.ir.GenericConst)
        The constants that the model names; the first name of an object counts.
    """

    def __init__(self, named: Iterable[tuple[str, Any]] = ()):
        self._names: dict[int, tuple[str, Any]] = {}
        self._packings: dict[int, Packing] = {}
        for name, const in named:
            self._names.setdefault(hash(const), (name, const))

    def knows(self, const: Any) -> bool:
        """Tell whether the model names a constant, or what it was derived from."""
        return hash(const) in self._names

    def name(self, const: Any, name: str) -> None:
        """Name a constant that a pass made."""
        self._names.setdefault(hash(const), (name, const))

    def derive(self, new: Any, how: str, sources: Iterable[Any]) -> None:
        """Name ``new`` after its largest named source: ``permute_dims(fc.weight)``."""
        known = [self._names[hash(s)] for s in sources if hash(s) in self._names]
        if known:
            name, _ = max(known, key=lambda item: int(np.prod(item[1].value.shape)))
            self._names.setdefault(hash(new), (f"{how}({name})", new))

    def pack(self, new: Any, packing: Packing, source: Any) -> None:
        """Record that ``new`` is ``source`` packed, under the same name."""
        if hash(source) in self._names:
            self._names.setdefault(hash(new), (self._names[hash(source)][0], new))
            self._packings[hash(new)] = packing

    def packings(self, mod: Any) -> dict[Any, Packing]:
        """Map each packed constant that a module holds, and the model names, to its packing."""
        found = [(const, self._packings.get(hash(const))) for const in constants(mod)]
        return {const: packing for const, packing in found if packing}

    def of(self, mod: Any) -> dict[Any, str]:
        """Map each named constant object that a module holds to its name."""
        found = [(const, self._names.get(hash(const))) for const in constants(mod)]
        return {const: name[0] for const, name in found if name}


_names: contextvars.ContextVar[WeightNames | None] = contextvars.ContextVar("names", default=None)


@contextlib.contextmanager
def tracking(names: WeightNames) -> Iterator[None]:
    """Let the passes run inside the ``with`` block record in ``names`` what they derive."""
    token = _names.set(names)
    try:
        yield
    finally:
        _names.reset(token)


def tracked() -> WeightNames | None:
    """Return the names that passes are to record in, inside of :func:`tracking`."""
    return _names.get()


def is_weight(const: Any) -> bool:
    """Tell whether other elements may take a constant's place after the build.

    Those of the model's named tensors, which another artifact's may replace; not single numbers.
    """
    names = _names.get()
    return names is not None and names.knows(const) and int(np.prod(const.value.shape)) > 1


def derived(new: Any, how: str, sources: Iterable[Any]) -> Any:
    """Record that a pass computed the constant ``new`` from ``sources``; returns ``new``."""
    names = _names.get()
    if names is not None:
        names.derive(new, how, sources)
    return new
