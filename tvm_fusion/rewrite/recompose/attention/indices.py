"""Einsum indices of a tensor's axes, followed through transposes, reshapes and broadcasts."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from tvm import relax, sym, tirx

from ..matching.extents import extent, known_shape, same_extent
from ..matching.view import op_name
from ..pattern import Writer

#: Indices that run along one axis, the slowest first; none along an axis of extent 1.
Axis: TypeAlias = tuple[int, ...]

_RESHAPES = ("reshape", "flatten", "expand_dims", "squeeze")
MOVES = (*_RESHAPES, "permute_dims", "broadcast_to", "repeat", "tile")


class Indices:
    """Indices with their extents; split where a reshape asks for it, joined by a product."""

    def __init__(self) -> None:
        self._extents: list[Any] = []
        self._parts: list[Axis | None] = []
        self._analyzer = sym.Analyzer()

    def axis(self, size: Any) -> Axis:
        """Make an axis with an index of its own."""
        if extent(size) == 1:
            return ()
        self._extents.append(size)
        self._parts.append(None)
        return (len(self._extents) - 1,)

    def resolve(self, axis: Axis) -> Axis:
        """Return the indices that run along an axis now."""
        found: list[int] = []
        for index in axis:
            parts = self._parts[index]
            found.extend((index,) if parts is None else self.resolve(parts))
        return tuple(found)

    def size(self, axis: Axis) -> Any:
        """Return the extent of an axis."""
        product = self._product(axis)
        return tirx.IntImm("int64", product) if isinstance(product, int) else product

    def _product(self, axis: Axis) -> Any:
        product: Any = 1
        for index in self.resolve(axis):
            size = self._extents[index]
            known = extent(size)
            product = product * (size if known is None else known)
        return product

    def join(self, first: Axis, second: Axis) -> bool:
        """Let the same indices run along two axes; False where their extents differ."""
        while True:
            one, other = self.resolve(first), self.resolve(second)
            while one and other and one[-1] == other[-1]:
                one, other = one[:-1], other[:-1]
            if not one or not other:
                return one == other
            a, b = one[-1], other[-1]
            if same_extent(self._extents[a], self._extents[b]):
                self._parts[b] = (a,)
                continue
            larger, smaller = extent(self._extents[a]), extent(self._extents[b])
            if larger is None or smaller is None:
                if self._spread(a, other) or self._spread(b, one):
                    continue
                return False
            if larger < smaller:
                a, larger, smaller = b, smaller, larger
            if larger % smaller:
                return False
            self._split(a, smaller)

    def reshape(self, axes: Sequence[Axis], shape: Sequence[Any]) -> list[Axis] | None:
        """Distribute indices over the axes of another shape; None where they do not fit."""
        left = [index for axis in axes for index in self.resolve(axis)]
        found: list[Axis] = []
        for size in reversed(shape):
            taken = self._take(left, size)
            if taken is None:
                return None
            found.append(taken)
        return None if left else found[::-1]

    def _take(self, left: list[int], size: Any) -> Axis | None:
        """Take indices from the end, as many as an extent has room for."""
        taken: list[int] = []
        while not self._equal(self._product(tuple(taken)), size):
            if not left:
                return None
            index = left.pop()
            room, own = extent(size), extent(self._extents[index])
            done = self._product(tuple(taken))
            if room is not None and own is not None and isinstance(done, int):
                need = room // done
                if own > need:
                    if own % need:
                        return None
                    outer, index = self._split(index, need)
                    left.append(outer)
                elif need % own:
                    return None
            taken.insert(0, index)
        return tuple(taken)

    def _spread(self, index: int, axis: Axis) -> bool:
        """Let the last indices of an axis be the parts of an index with as large an extent."""
        for count in range(2, len(axis) + 1):
            if self._equal(self._product(axis[-count:]), self._extents[index]):
                self._parts[index] = axis[-count:]
                return True
        return False

    def _split(self, index: int, inner: int) -> tuple[int, int]:
        size = extent(self._extents[index]) or inner
        parts = self.axis(tirx.IntImm("int64", size // inner)) + self.axis(
            tirx.IntImm("int64", inner)
        )
        self._parts[index] = parts
        return parts[0], parts[1]

    def _equal(self, a: Any, b: Any) -> bool:
        if isinstance(a, int) and extent(b) is not None:
            return a == extent(b)
        if isinstance(a, int):
            a = tirx.IntImm("int64", a)
        return same_extent(a, b) or self._analyzer.can_prove_equal(a, b)


def move(call: relax.Call, axes: Sequence[Axis], indices: Indices) -> list[Axis] | None:
    """Follow indices through a movement; None where they do not run along its result's axes."""
    name, shape = op_name(call), known_shape(call)
    if shape is None:
        return None
    if name in _RESHAPES:
        return indices.reshape(axes, shape)
    if name == "permute_dims":
        order = call.attrs.axes
        order = range(len(axes))[::-1] if order is None else [int(a) for a in order]
        return [axes[a] for a in order]
    if name == "broadcast_to":
        added: list[Axis] = [()] * (len(shape) - len(axes))
        together = zip([*added, *axes], shape, strict=True)
        return [axis or indices.axis(size) for axis, size in together]
    if name == "repeat" and call.attrs.axis is not None:
        at = int(call.attrs.axis) % len(axes)
        repeated = indices.axis(tirx.IntImm("int64", int(call.attrs.repeats)))
        return [a + repeated if i == at else a for i, a in enumerate(axes)]
    if name == "tile":
        times = [int(t) for t in call.attrs.repeats]
        times = [1] * (len(shape) - len(times)) + times
        added = [()] * (len(shape) - len(axes))
        together = zip([*added, *axes], times, strict=True)
        return [indices.axis(tirx.IntImm("int64", t)) + a for a, t in together]
    return None


def place(
    write: Writer, expr: Any, own: Sequence[Axis], layout: Sequence[Axis], indices: Indices
) -> Any:
    """Move a tensor so that given indices run along its axes.

    An axis that none of the tensor's indices runs along has extent 1; one that only some of them
    run along is repeated over the others.
    """
    have = [index for axis in own for index in indices.resolve(axis)]
    wanted = [index for axis in layout for index in axis]
    order = [index for index in wanted if index in have]

    def sizes(axis: Sequence[int]) -> list[Any]:
        return [indices.size((index,)) for index in axis]

    if order != have:
        expr = write.reshape(expr, sizes(have))
        expr = write.emit(relax.op.permute_dims(expr, [have.index(index) for index in order]))
    used = [axis for axis in layout if any(index in have for index in axis)]
    if any(index not in have for axis in used for index in axis):
        spread = [index for axis in used for index in axis]
        own_sizes = [indices.size((i,) if i in have else ()) for i in spread]
        expr = write.reshape(expr, own_sizes)
        expr = write.broadcast(expr, sizes(spread))
    return write.reshape(expr, [indices.size(axis if axis in used else ()) for axis in layout])
