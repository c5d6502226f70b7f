"""Norms of groups of channels, channels last in memory: pixels by channels rather than rows.

Rows of a group norm are groups of neighbouring channels of an image. Channels last, such a row is
a few bytes of every pixel; all groups together are whole pixels:

    rows    ..., g;  elements  h, w, k      x[.., h, w, g * size + k]
    here    ...;     pixels    h, w;  channels  c = g * size + k, in vectors
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import DataType, ir, tirx

from ....core.tir.expressions import call_name, loads, map_loads, substitute, variables
from ....core.tir.loops import constant, coordinates, find, index
from ....program.domain import Domain
from ....program.stage import Axis
from ...gpu.launch import VECTOR_BYTES, VECTOR_TYPES
from ...index.address import offset
from ..gpu.reductions.split_form import sums_then_maps
from ..program.passes import vector_axes
from ..program.row_program import RowProgram, RowStage, stride


@dataclass(frozen=True)
class Store:
    """What a map writes: ``target[indices] = value`` for every pixel and channel."""

    target: ir.Var
    indices: tuple[ir.Expr, ...]
    value: ir.Expr


@dataclass(frozen=True, eq=False)
class ChannelGroups:
    """A norm of groups of channels."""

    rows: tuple[Axis, ...]  # the axes of rows but that of groups
    pixels: tuple[Axis, ...]  # what a statistic is over, besides the channels of its group
    channel: Axis
    size: int
    width: int  # channels of a vector, 16 bytes of the widest type
    term: ir.Expr  # what is summed, over those axes
    # Stand in the maps for the sum of a group and for that of its squared deviations.
    total: ir.Var
    squares: ir.Var
    stores: tuple[Store, ...]  # the maps

    @property
    def channels(self) -> int:
        """Count the channels."""
        return int(self.channel.extent)

    @property
    def groups(self) -> int:
        """Count the groups."""
        return self.channels // self.size

    @property
    def row_count(self) -> int:
        """Count the rows but for groups: images."""
        return math.prod(axis.size or 1 for axis in self.rows)

    @property
    def pixel_count(self) -> int:
        """Count the pixels of a row."""
        return math.prod(axis.size or 1 for axis in self.pixels)

    def is_streamed(self, found: ir.TensorLoad) -> bool:
        """Whether a load is of another element for every pixel."""
        return bool({a.var for a in self.pixels} & {v for i in found.indices for v in variables(i)})

    def place(
        self, rows: Sequence[ir.Expr], pixel: ir.Expr, channel: ir.Expr
    ) -> dict[ir.Var, ir.Expr]:
        """Return the axes of an element in terms of its pixel's number in the row."""
        at = coordinates(pixel, [axis.extent for axis in self.pixels])
        axes = (*self.rows, *self.pixels, self.channel)
        return dict(zip((a.var for a in axes), (*rows, *at, channel), strict=True))


def channel_groups(program: RowProgram) -> ChannelGroups | None:
    """View a program as the norm of groups of channels; ``None`` where it is none.

    Parameters
    ----------
    program
        A sum over rows and one of squared deviations from its mean, then maps of the elements. Of
        all that is read and written for every pixel, channels are contiguous.
    """
    found = sums_then_maps(program)
    if found is None or len(found[1]) != 2 or not program.rows:
        return None
    program, about = found
    squares = next((stage for stage in about if about[stage] is not None), None)
    total = about[squares] if squares is not None else None
    if squares is None or total is None:
        return None
    order, _ = vector_axes([total], [total.reduce])
    if len(order) < 2 or order[-1] != len(order) - 1:
        return None
    view = _View(program, total, squares)
    maps = [stage for stage in program.stages if stage.is_map]
    stores = [store for stage in maps for store in view.stores(stage)]
    return view.made(stores)


class _View:
    """Writes stages over pixels and channels."""

    def __init__(self, program: RowProgram, total: RowStage, squares: RowStage) -> None:
        self._program, self._total, self._squares = program, total, squares
        *rows, group = total.rows
        *pixels, last = total.reduce
        self._rows, self._pixels = tuple(rows), tuple(pixels)
        self._size, groups = last.size or 1, group.size or 1
        extent = index(self._size * groups)
        self._channel = Axis(tirx.Var("channel", "int64"), extent)
        self._domain = Domain((*self._rows, *self._pixels, self._channel))
        self._sum, self._deviations = (tirx.Var(n, "float32") for n in ("total", "squares"))

    def made(self, stores: Sequence[Store | None]) -> ChannelGroups | None:
        """Check all accesses."""
        term = self._written(self._total, self._total.values[0])
        if term is None or None in stores:
            return None
        written = tuple(store for store in stores if store is not None)
        view = ChannelGroups(
            self._rows,
            self._pixels,
            self._channel,
            self._size,
            1,
            term,
            self._sum,
            self._deviations,
            written,
        )
        streamed = [
            (load.source, tuple(load.indices))
            for value in (term, *(store.value for store in written))
            for load in loads(value)
            if view.is_streamed(load)
        ]
        accesses = [*streamed, *((store.target, store.indices) for store in written)]
        types = {str(buffer.dtype) for buffer, _ in accesses}
        if not streamed or not types <= VECTOR_TYPES:
            return None
        width = VECTOR_BYTES // max(DataType(t).itemsize for t in types)
        is_aligned = all(self._is_vector(buffer, where, width) for buffer, where in accesses)
        return replace(view, width=width) if is_aligned else None

    def stores(self, stage: RowStage) -> list[Store | None]:
        """Write a map."""
        found: list[Store | None] = []
        for target, where, value in zip(stage.targets, stage.indices, stage.values, strict=True):
            new = self._written(stage, value)
            places = self._places(stage)
            indices = tuple(self._domain.simplify(substitute(i, places)) for i in where)
            found.append(None if new is None else Store(target, indices, new))
        return found

    def _written(self, stage: RowStage, value: ir.Expr) -> ir.Expr | None:
        """Write a value over pixels and channels; ``None`` where it reads sums of other rows."""
        own = {self._total.targets[0]: self._sum, self._squares.targets[0]: self._deviations}
        is_own = True

        def swap(load: ir.TensorLoad) -> ir.Expr:
            nonlocal is_own
            sum_ = own.get(load.source)
            if sum_ is None:
                return load
            rows = [axis.var for axis in stage.rows]
            is_own = is_own and all(map(tvm_ffi.structural_equal, load.indices, rows))
            return sum_

        if any(call_name(call) == "if_then_else" for call in find(value, ir.Call)):
            return None  # nothing is loaded before its condition is known
        value = substitute(map_loads(value, swap), self._places(stage))
        return self._domain.simplify(value) if is_own else None

    def _places(self, stage: RowStage) -> dict[ir.Var, ir.Expr]:
        *rows, group = stage.rows
        *pixels, last = stage.loop_axes
        channel, size = self._channel.var, index(self._size)
        places: dict[ir.Var, ir.Expr] = {
            group.var: tirx.floordiv(channel, size),
            last.var: tirx.floormod(channel, size),
        }
        both = zip((*rows, *pixels), (*self._rows, *self._pixels), strict=True)
        return places | {old.var: new.var for old, new in both}

    def _is_vector(self, buffer: ir.Var, where: Sequence[ir.Expr], width: int) -> bool:
        """Whether channels of an access are contiguous, and vectors of them aligned."""
        axes = (*self._rows, *self._pixels, self._channel)
        channel = self._channel
        if any(channel.var in variables(i) for i in where[:-1]):
            return False
        place = offset(buffer, where)
        steps = stride(place, axes)
        if steps is None or constant(steps[-1]) != 1 or int(channel.extent) % width:
            return False
        start = self._domain.simplify(substitute(place, {a.var: index(0) for a in axes}))
        return all((constant(s) or 0) % width == 0 for s in (*steps[:-1], start)) and all(
            constant(s) is not None for s in (*steps, start)
        )
