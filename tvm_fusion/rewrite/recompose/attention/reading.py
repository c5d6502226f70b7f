"""Operands of attention: tensors behind transposes, reshapes, scales, casts and broadcasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ....frontend.tensor_types import HALF, dtype_of
from ..matching.extents import known_shape
from ..matching.view import View, op_name
from ..pattern import Writer
from .indices import MOVES, Axis, Indices, move

_SCALES = ("multiply", "divide")
_LONGEST = 24  # operators in a row that are looked through


@dataclass(frozen=True)
class Reading:
    """A tensor, seen through what only moves it.

    Attributes
    ----------
    source : ir.Expr
        What is moved.
    own, axes
        Along the axes of the source, and of the tensor. What runs along these alone is repeated.
    factor
        The tensor is the source times that.
    rounded
        Half type that the source is rounded to first; empty where it is not.
    inner
        What the source is multiplied with before it is rounded.
    """

    source: Any
    own: tuple[Axis, ...]
    axes: tuple[Axis, ...]
    factor: float = 1.0
    rounded: str = ""
    inner: float = 1.0

    @property
    def dtype(self) -> str:
        """Type of what is moved."""
        return self.rounded or dtype_of(self.source)

    def start(self, write: Writer, current: Any) -> Any:
        """Write what is moved: the source, rounded where it lies."""
        if not self.rounded:
            return current
        return write.cast(write.scale(current, self.inner), self.rounded)


def read(
    view: View, expr: Any, indices: Indices, is_scaled: bool = False, is_rounded: bool = False
) -> Reading | None:
    """Read a tensor through its movements, and through casts to a wider type, which are exact.

    Parameters
    ----------
    indices
        Gets those of the source's axes.
    is_scaled
        Whether to read through factors. Those of a half tensor are rounded in its type; behind the
        product they are not.
    is_rounded
        Whether to read through a cast to a half type, which moves in front of the movements: there
        whatever computes the source stores half as much.
    """
    found = _Chain(expr)
    nearest = None  # a rounded tensor that nothing but its cast is in front of
    moves: list[relax.Call] = []
    for _ in range(_LONGEST):
        call = view.call(found.source, *MOVES)
        scaled = scale_of(view, found.source) if is_scaled and call is None else None
        if call is not None and known_shape(call.args[0]) is not None:
            moves.append(call)
            found, nearest = replace(found, source=call.args[0]), None
        elif scaled is not None:
            found = found.scaled(*scaled)
            nearest = nearest if found.inner == 1 else None
        else:
            inner = found.uncast(view, is_rounded) if view.is_cast(found.source) else None
            if inner is None:
                break
            nearest = found if inner.rounded and not found.rounded else nearest
            found = inner
    found = nearest or found
    shape = known_shape(found.source)
    if shape is None:
        return None
    own = tuple(indices.axis(size) for size in shape)
    axes: Sequence[Axis] = own
    for call in reversed(moves):
        moved = move(call, axes, indices)
        if moved is None:
            return None
        axes = moved
    return Reading(found.source, own, tuple(axes), found.factor, found.rounded, found.inner)


@dataclass(frozen=True)
class _Chain:
    """``factor * round(inner * source)``, movements aside; see :class:`Reading`."""

    source: Any
    factor: float = 1.0
    rounded: str = ""
    inner: float = 1.0

    def scaled(self, source: Any, factor: float) -> _Chain:
        """Read through a multiplication."""
        if self.rounded:
            return replace(self, source=source, inner=self.inner * factor)
        return replace(self, source=source, factor=self.factor * factor)

    def uncast(self, view: View, is_rounded: bool) -> _Chain | None:
        """Read through a cast; None where it has to stay."""
        source = view.value(self.source).args[0]
        before, after = dtype_of(source), dtype_of(self.source)
        if before in HALF and after not in HALF and self.rounded in ("", before):
            # Of a half tensor, factors are as good behind the product as before another rounding.
            return _Chain(source, self.factor * self.inner)
        if is_rounded and before == "float32" and after in HALF and not self.rounded:
            return replace(self, source=source, rounded=after)
        return None


def scale_of(view: View, expr: Any) -> tuple[Any, float] | None:
    """Find ``x`` and ``c`` in ``c * x`` or ``x / (1 / c)``, where ``c`` is a number."""
    call = view.call(expr, *_SCALES)
    if call is None:
        return None
    for x, number in (call.args, call.args[::-1]):
        value = view.number(number)
        rank = len(known_shape(x) or [])
        if value is None or len(known_shape(number) or []) > rank or view.number(x) is not None:
            continue
        if op_name(call) == "multiply":
            return x, value
        if number is call.args[1] or number.same_as(call.args[1]):
            return (x, 1.0 / value) if value else None
    return None
