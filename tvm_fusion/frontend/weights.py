"""Which constant of a module is which weight of the model."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


def weight_key(array: np.ndarray) -> str:
    """Return the SHA-256, in hexadecimal, of an array's dtype, shape and bytes.

    Parameters
    ----------
    array : numpy.ndarray
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


class WeightNames:
    """The model's names of constants, handed on while passes derive new constants from them.

    Parameters
    ----------
    named : iterable of (str, tvm.ir.GenericConst)
        The constants that the model names; the first name of an object counts.
    """

    def __init__(self, named: Iterable[tuple[str, Any]] = ()):
        self._names: dict[int, tuple[str, Any]] = {}
        for name, const in named:
            self._names.setdefault(hash(const), (name, const))

    def derive(self, new: Any, how: str, sources: Iterable[Any]) -> None:
        """Name ``new`` after its largest named source: ``permute_dims(fc.weight)``."""
        known = [self._names[hash(s)] for s in sources if hash(s) in self._names]
        if known:
            name, _ = max(known, key=lambda item: int(np.prod(item[1].value.shape)))
            self._names.setdefault(hash(new), (f"{how}({name})", new))

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


def derived(new: Any, how: str, sources: Iterable[Any]) -> Any:
    """Record that a pass computed the constant ``new`` from ``sources``; returns ``new``."""
    names = _names.get()
    if names is not None:
        names.derive(new, how, sources)
    return new
