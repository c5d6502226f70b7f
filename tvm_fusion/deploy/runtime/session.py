"""Functions of a model over one set of caches, which calls write where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ...signature import DimRange, TensorSpec
from ...words import counted
from . import arguments
from .tensors import aligned_empty, to_tensor, write_into

if TYPE_CHECKING:
    from .executable import Executable
    from .function import Function


class Session:
    """Caches, and the model's functions over them; made by :meth:`Executable.session`.

    ``session.prefill(ids)`` and ``session.decode(id)`` call the functions of these names with their
    inputs in order or by name; the caches are bound, and the position is counted. Tokens beyond
    what one call takes are given to several.

    Attributes
    ----------
    caches : mapping of str to array
        By input that the functions write to: numpy arrays, on a GPU ``tvm_ffi.Tensor``.
    length : int
        Tokens that the caches hold.
    """

    def __init__(self, executable: Executable, position: str) -> None:
        self._executable, self._position = executable, position
        self._device = executable.device
        specs = _caches_of(executable)
        self.caches: Mapping[str, Any] = MappingProxyType(
            {name: _zeros(spec, self._device) for name, spec in specs.items()}
        )
        signatures = executable.signatures
        # Where some functions have a position, others, such as an encoder, take no tokens of it.
        having = [n for n, s in signatures.items() if position in (spec.name for spec in s.inputs)]
        self._steps = {
            name: _Step(executable, name, self.caches, position, name in having or not having)
            for name in signatures
        }
        self.length = 0

    def __repr__(self) -> str:
        return f"<Session of {', '.join(self._steps)}, {counted(self.length, 'token')}>"

    def __getattr__(self, name: str) -> Any:
        """Return a function over the caches."""
        if name.startswith("_") or name not in self._steps:
            raise AttributeError(f"{type(self).__name__!r} has no attribute or function {name!r}")

        def call(*positional: Any, **inputs: Any) -> dict[str, Any]:
            return self.run(name, *positional, **inputs)

        return call

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self._steps])

    def reset(self) -> None:
        """Empty the caches, for another sequence."""
        for name, cache in self.caches.items():
            write_into(cache, np.zeros(tuple(cache.shape), str(cache.dtype)), f"cache {name!r}")
        self.length = 0

    def run(self, function: str, /, *positional: Any, **inputs: Any) -> dict[str, Any]:
        """Run a function over the caches.

        Parameters
        ----------
        function : str
            Its name.
        *positional : array
            Its inputs in order, without the caches and the position.
        **inputs : array
            Its inputs by name. A position that is given is where the tokens begin: those that the
            caches hold behind it are overwritten.

        Returns
        -------
        dict of str to array
            Its outputs, of the last part where tokens are too many for one call.

        Raises
        ------
        UserError
            For inputs that do not fit, more tokens than the caches have room for, and numbers on
            the host that are out of range, such as a token that the vocabulary does not have.
        """
        if function not in self._steps:
            known = ", ".join(map(repr, self._steps))
            raise UserError(f"the model has no function {function!r}", f"one of {known}")
        step = self._steps[function]
        given = step.by_name(positional, inputs)
        start = self.length
        if self._position in given:
            start = _place(given.pop(self._position), self._position)
        count = step.count(given)
        step.check(given, start, count)
        outputs: dict[str, Any] = {}
        done = 0
        for one, size in self._parts(step, count):
            part = given if size == count else step.cut(given, done, size)
            outputs = one.call(part, start + done, size)
            done += size
            self.length = start + done
        return outputs

    def _parts(self, step: _Step, count: int) -> list[tuple[_Step, int]]:
        """Split so many tokens into calls: as many as a function takes, the rest one by one."""
        if step.tokens is None:
            return [(step, count)]
        sizes, rest = step.tokens, count
        parts: list[tuple[_Step, int]] = []
        while rest >= sizes.low:
            size = min(rest - rest % sizes.step, sizes.high)
            parts.append((step, size))
            rest -= size
        if not rest:
            return parts
        alike = (s for s in self._steps.values() if s.names == step.names)
        single = next((s for s in alike if s.tokens is not None and 1 in s.tokens), None)
        if single is None:
            raise UserError(
                f"{counted(count, 'token')} for {step.name!r}",
                f"{sizes.sentence} in each call",
                "add a function of one token to the artifact",
            )
        return parts + [(single, 1)] * rest


class _Step:
    """A function over bound caches.

    Attributes
    ----------
    names : tuple of str
        Its inputs without the caches and the position.
    tokens : DimRange, optional
        How many tokens a call takes; ``None`` where nothing tells.
    """

    def __init__(
        self,
        executable: Executable,
        name: str,
        caches: Mapping[str, Any],
        position: str,
        counts: bool,
    ) -> None:
        entry = executable.manifest["functions"][name]
        signature = executable.signatures[name]
        own = {s.name: caches[s.name] for s in signature.inputs if s.name in caches}
        inputs = [s for s in signature.inputs if s.name not in own]
        self.name, self._position = name, position
        self._function: Function = executable.bind(own, function=name)
        self._limits = entry.get("limits", {})
        self._states = frozenset(entry.get("in_place", {}).values())
        self._where = next((s for s in inputs if s.name == position), None)
        self._specs = {s.name: s for s in inputs if s.name != position}
        self.names = tuple(self._specs)
        extent = self._extent() if counts else None
        self._axes = {s.name: a for s in inputs if (a := _axis(s, extent)) is not None}
        self.tokens = None
        if isinstance(extent, int):
            self.tokens = DimRange(extent, extent)
        elif extent is not None:
            self.tokens = executable.dims.get(extent)

    def _extent(self) -> int | str | None:
        """Tell the extent that counts tokens: of positions, or the last one of whole numbers."""
        if self._where is not None and self._where.shape not in ((), (1,)):
            return self._where.shape[0]
        if self._position in self._limits:
            count: int | str = self._limits[self._position]["count"]
            return count
        of_numbers = (s.shape[-1] for s in self._specs.values() if s.shape and _is_whole(s))
        return next(of_numbers, None)

    def by_name(self, positional: Sequence[Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Name inputs, and check that all are there; the position need not be."""
        given = arguments.by_name(self.names, positional, inputs)
        rest = {n: value for n, value in given.items() if n != self._position or not self._where}
        arguments.check_names(list(self._specs.values()), rest)
        return given

    def count(self, given: Mapping[str, Any]) -> int:
        """Count the tokens of inputs."""
        for name, axis in self._axes.items():
            if name in given:
                shape = np.shape(given[name]) if _is_plain(given[name]) else given[name].shape
                if len(shape) != len(self._specs[name].shape) or not shape[axis]:
                    wanted = ", ".join(map(str, self._specs[name].shape))
                    raise UserError(f"input {name!r} has shape {tuple(shape)}", f"({wanted})")
                return int(shape[axis])
        return 0 if self._where is None else 1

    def check(self, given: Mapping[str, Any], start: int, count: int) -> None:
        """Check what costs nothing to check: the room in the caches, and numbers on the host."""
        for name, limit in self._limits.items():
            below = limit["below"]
            if name == self._position:
                if start + count > below:
                    raise UserError(
                        f"{counted(count, 'token')} from position {start}",
                        f"at most {max(0, below - start)}, as there are {below} positions",
                        "begin a new session, or compile the model for longer sequences",
                    )
            elif name in given and limit["count"] == 1:
                _check_numbers(name, given[name], below)

    def cut(self, given: Mapping[str, Any], begin: int, size: int) -> dict[str, Any]:
        """Take some of the tokens of each input that has them."""

        def part(name: str, value: Any) -> Any:
            if name not in self._axes:
                return value
            if _is_plain(value):
                value = np.asarray(value, self._specs[name].dtype)
            return value[(slice(None),) * self._axes[name] + (slice(begin, begin + size),)]

        return {name: part(name, value) for name, value in given.items()}

    def call(self, given: Mapping[str, Any], start: int, count: int) -> dict[str, Any]:
        """Call the function."""
        if self._where is not None:
            given = {**given, self._position: self._numbers(start, count)}
        outputs = self._function.run(given)
        return {name: value for name, value in outputs.items() if name not in self._states}

    def _numbers(self, start: int, count: int) -> np.ndarray:
        """Make the position of the first token, or of each where the function takes them."""
        assert self._where is not None
        if self._where.shape in ((), (1,)):
            return np.full(self._where.shape, start, self._where.dtype)
        return np.arange(start, start + count, dtype=self._where.dtype)


def _caches_of(executable: Executable) -> dict[str, TensorSpec]:
    """List the inputs that some function writes to.

    Raises
    ------
    UserError
        Where there is none, one has no fixed shape, or several shapes.
    """
    found: dict[str, TensorSpec] = {}
    functions = executable.manifest["functions"].values()
    written = {name for entry in functions for name in entry.get("in_place", {})}
    for name, signature in executable.signatures.items():
        for spec in signature.inputs:
            if spec.name not in written:
                continue
            known = found.setdefault(spec.name, spec)
            if known != spec:
                raise UserError(
                    f"input {spec.name!r} has shape {known.shape} and dtype {known.dtype} in one "
                    f"function, {spec.shape} and {spec.dtype} in {name!r}",
                    "caches of one shape and dtype",
                )
            if not all(isinstance(extent, int) for extent in spec.shape):
                raise UserError(
                    f"input {spec.name!r} has shape {spec.shape}",
                    "caches of fixed shapes",
                    "compile with these dimensions bound",
                )
    if not found:
        raise UserError(
            "an artifact whose functions write to no inputs",
            "caches that are written in place",
            "compile with in_place=NAMES",
        )
    return found


def _zeros(spec: TensorSpec, device: Any) -> Any:
    """Make a cache of zeros where a model runs."""
    shape = tuple(int(extent) for extent in spec.shape)
    array = aligned_empty(shape, np.dtype(spec.dtype))
    array[...] = 0
    return array if device.type == "cpu" else to_tensor(array, device)


def _axis(spec: TensorSpec, extent: int | str | None) -> int | None:
    """Find the axis of an input that counts tokens: the last of whole numbers, else the first."""
    axes = [axis for axis, size in enumerate(spec.shape) if size == extent]
    return None if not axes else axes[-1] if _is_whole(spec) else axes[0]


def _is_whole(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("int", "uint"))


def _is_plain(value: Any) -> bool:
    """Whether an input is a number or a list, which has no shape of its own."""
    return not hasattr(value, "shape")


def _place(value: Any, name: str) -> int:
    """Read a position that is given."""
    try:
        numbers = np.asarray(value)
        if numbers.dtype.kind in "iu" and numbers.size == 1 and numbers.min() >= 0:
            return int(numbers.min())
    except (TypeError, ValueError, RuntimeError):  # on a device
        pass
    raise UserError(f"input {name!r} is {value!r}", "a number of at least 0 on the host")


def _check_numbers(name: str, value: Any, below: int) -> None:
    """Check whole numbers, if they lie on the host."""
    try:
        numbers = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # on a device
        return
    if numbers.dtype.kind not in "iu" or not numbers.size:
        return
    low, high = numbers.min(), numbers.max()
    if low < 0 or high >= below:
        raise UserError(
            f"input {name!r} holds {low if low < 0 else high}", f"numbers from 0 to {below - 1}"
        )
