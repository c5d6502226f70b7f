"""Which constant of a module is which weight of the model."""

import contextlib
import contextvars
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


#: Makes a constant again, of others in the places of its sources.
Again = Callable[[Sequence[Any]], Any]


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
    keeps_origins
        Whether to keep how constants are made of others, and so all of these: for :meth:`twin`.
    """

    def __init__(self, named: Iterable[tuple[str, Any]] = (), keeps_origins: bool = False):
        self._keeps_origins = keeps_origins
        self._names: dict[int, tuple[str, Any]] = {}
        self._packings: dict[int, Packing] = {}
        self._origins: dict[int, tuple[Any, tuple[Any, ...], Again | None]] = {}
        for name, const in named:
            self._names.setdefault(hash(const), (name, const))

    def knows(self, const: Any) -> bool:
        """Tell whether the model names a constant, or what it was derived from."""
        return hash(const) in self._names

    def name(self, const: Any, name: str) -> None:
        """Name a constant that a pass made."""
        self._names.setdefault(hash(const), (name, const))

    def derive(
        self, new: Any, how: str, sources: Sequence[Any], again: Again | None = None
    ) -> None:
        """Name ``new`` after its largest named source: ``permute_dims(fc.weight)``.

        A matrix that is transposed twice is what it was.
        """
        self._keep(new, sources, again)
        known = [self._names[hash(s)] for s in sources if hash(s) in self._names]
        if known:
            name, _ = max(known, key=lambda item: int(np.prod(item[1].value.shape)))
            is_matrix = how == "permute_dims" and len(new.value.shape) == 2
            if is_matrix and name.startswith(f"{how}("):
                name = name[len(how) + 1 : -1]
            else:
                name = f"{how}({name})"
            self._names.setdefault(hash(new), (name, new))

    def pack(self, new: Any, packing: Packing, source: Any, again: Again) -> None:
        """Record that ``new`` is ``source`` packed, under the same name."""
        self._keep(new, [source], again)
        if hash(source) in self._names:
            self._names.setdefault(hash(new), (self._names[hash(source)][0], new))
            self._packings[hash(new)] = packing

    def _keep(self, new: Any, sources: Sequence[Any], again: Again | None) -> None:
        if self._keeps_origins:
            self._origins.setdefault(hash(new), (new, tuple(sources), again))

    def twin(self, const: Any, twins: Mapping[int, Any]) -> Any:
        """Return what a constant is where others are in the places of some.

        Parameters
        ----------
        twins : mapping of int to tvm.ir.GenericConst
            By hash of a constant, the one in its place: the same one where all workers have it.

        Returns
        -------
        tvm.ir.GenericConst or None
            ``None`` where nobody has told how the constant was made.
        """
        if hash(const) in twins:
            return twins[hash(const)]
        _, sources, again = self._origins.get(hash(const), (None, (), None))
        if again is None:
            return None
        others = [self.twin(source, twins) for source in sources]
        if any(other is None for other in others):
            return None
        is_same = all(a.same_as(b) for a, b in zip(sources, others, strict=True))
        return const if is_same else again(others)

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


def derived(new: Any, how: str, sources: Sequence[Any], again: Again | None = None) -> Any:
    """Record that a pass computed a constant from others.

    Parameters
    ----------
    again
        Computes it from other sources, such as another worker's parts of them. Where it is missing,
        a model for several workers is scheduled once for each.

    Returns
    -------
    tvm.ir.GenericConst
        ``new``.
    """
    names = _names.get()
    if names is not None:
        names.derive(new, how, sources, again)
    return new


def of_no_weight(const: Any) -> Any:
    """Record that a constant is made of no weight: it is the same for all workers; returns it."""
    return derived(const, "", (), lambda _: const)
