"""Pooling in the epilogue of a convolution: windows of pixels that do not overlap.

    pooled[n, k, y, x] = max over (i, j) of f(sum[n, k, 2 * y + i, 2 * x + j])

A tile of pixels has whole windows, so that pooling needs no sum of another tile.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from ....core.contract.template import Refusal
from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, find, index, substitute
from ....ecg.graph import Graph, Operator
from ....ecg.mapping_types.table import MappingType
from ....program.contractions import is_contraction
from ....program.images import convolved_rank
from ....program.stage import Axis, Stage
from ...index.address import conditional_loads
from ...index.index_ranges import Ranges
from ...index.proposals import leaves, reductions
from .results import Result, result_of


@dataclass(frozen=True)
class Window:
    """Windows along an axis of pixels."""

    pixel: Axis  # what is left of it
    place: Axis  # within a window

    @property
    def size(self) -> int:
        """Pixels of a window."""
        return constant(self.place.extent) or 1


@dataclass(frozen=True)
class Pool:
    """A reduction over windows of the sums of a convolution."""

    windows: dict[ir.Var, Window]  # by the convolution's axis
    axes: dict[ir.Var, ir.Var]  # the convolution's other axes, by those of the pooling
    initial: ir.Expr  # the first value of ``running``
    # The next one, over the axes of windows and the convolution's others, ``running`` and
    # ``total``.
    update: ir.Expr
    # Stand for what is reduced so far, and for a sum.
    running: ir.Var
    total: ir.Var

    def reduced(self, value: ir.Expr, total: ir.Expr, at: Mapping[ir.Var, int]) -> ir.Expr:
        """Reduce one more sum, at a place in the window by the convolution's axes."""
        places: dict[ir.Var, ir.Expr] = {
            window.place.var: index(at[own]) for own, window in self.windows.items()
        }
        return substitute(self.update, {**places, self.running: value, self.total: total})

    def size(self, axis: ir.Var) -> int:
        """Count the pixels of a window along an axis of the convolution."""
        return self.windows[axis].size if axis in self.windows else 1


def pool_of(
    stages: Sequence[Stage], conv: Stage, stage: Stage, outputs: Sequence[ir.Var]
) -> tuple[Pool, Stage, ir.Var, tuple[Result, ...]] | Refusal:
    """Read a reduction of a convolution's sums as pooling over windows that do not overlap.

    Parameters
    ----------
    stages
        The program's, without internal maps.
    conv, stage
        The convolution, and the reduction among them.

    Returns
    -------
    conv : Stage
        The convolution, its pixels not in windows.
    pooled : Var
        Stands for its value in the results.
    results : tuple of Result
        Maps of it, over the axes of windows and the convolution's others.
    """
    target, sums = stage.targets[0], conv.targets[0]
    update = stage.values[0]
    reads = [x for x in loads(update) if x.source.same_as(sums)]
    outside = [x for s in stages if s.is_map for v in s.values for x in loads(v)]
    padded = [x for x in conditional_loads(update) if x.source.same_as(sums)]
    read_too = sums in outputs or any(x.source.same_as(sums) for x in outside)
    for is_other, why in (
        (bool(padded), "windows are padded"),
        (read_too, f"{conv.title} is read elsewhere, too"),
        (len(stage.targets) != 1, f"{stage.title} has several results"),
        (not _are_alike(reads), f"{stage.title} reads {conv.title} at several places"),
    ):
        if is_other:
            return _refusal(why)
    found = _windows(conv, stage, reads[0])
    if isinstance(found, str):
        return _refusal(found)
    conv, windows, places = found
    dtype = str(target.ty.dtype)
    running, pooled = (tirx.Var(n, dtype) for n in ("running", "pooled"))
    total = tirx.Var("total", str(sums.ty.dtype))

    def swap(node: ir.TensorLoad) -> ir.Expr:
        if node.source.same_as(target):
            return running
        return total if node.source.same_as(sums) else node

    results = []
    for part in stages:
        if part.is_map:
            result = result_of(part, stage, pooled)
            if isinstance(result, Refusal):
                return result
            results.append(result)
    if target in outputs:
        results.append(Result(target, stage.indices[0], pooled, None))
    moved = tuple(
        replace(
            r,
            indices=tuple(substitute(i, places) for i in r.indices),
            value=substitute(r.value, places),
            condition=None if r.condition is None else substitute(r.condition, places),
        )
        for r in results
    )
    initial = stage.init[0] if stage.init else tirx.const(0, dtype)
    update = substitute(substitute(update, {}, swap), places)
    return Pool(windows, places, initial, update, running, total), conv, pooled, moved


def _are_alike(reads: Sequence[ir.TensorLoad]) -> bool:
    """Whether there are loads, all of one element."""
    places = [list(x.indices) for x in reads]
    return bool(places) and all(tvm_ffi.structural_equal(places[0], p) for p in places)


def _refusal(why: str) -> Refusal:
    sentence = f"The pooling is not over tiles of rows and columns: {why}."
    return Refusal("pooling_windows", sentence)


def _windows(
    conv: Stage, stage: Stage, read: ir.TensorLoad
) -> tuple[Stage, dict[ir.Var, Window], dict[ir.Var, ir.Var]] | str:
    """Find windows by the convolution's axis, and its other axes by those of the pooling.

    Returns a sentence's part where windows are not side by side.
    """
    ranges = Ranges()
    for axis in (*stage.axes, *stage.reduce):
        ranges.bind(axis.var, axis.extent)
    windows: dict[ir.Var, Window] = {}
    places: dict[ir.Var, ir.Var] = {}
    within: list[tuple[ir.Var, Axis]] = []
    sizes = {a.var: constant(a.extent) for a in conv.axes}
    for own, place in zip(conv.indices[0], read.indices, strict=True):
        if not isinstance(own, ir.Var):
            continue
        if any(a.var.same_as(place) for a in stage.axes):
            places[place] = own
            continue
        inner = next((a for a in stage.reduce if a.var.same_as(place)), None)
        if inner is not None:
            within.append((own, inner))
            continue
        window = _window(stage, place, ranges)
        size, count = sizes.get(own), constant(window.pixel.extent) if window else None
        if window is None:
            return "windows overlap, or have gaps"
        if size is None or count is None:
            return "extents are symbolic"
        if count * window.size > size:
            return "windows end beyond the image"
        windows[own] = window
    for own, inner in within:
        joined = _joined(conv, stage, places, own, inner)
        if joined is None:
            return f"{stage.title} reduces whole axes"
        conv, axis, window = joined
        windows[axis] = window
        del places[window.pixel.var]
    known = {v for w in windows.values() for v in (w.pixel.var, w.place.var)} | set(places)
    wide = {a.var for a in (*stage.axes, *stage.reduce) if constant(a.extent) != 1}
    return (conv, windows, places) if windows and wide <= known else "other axes are reduced"


def _window(stage: Stage, place: ir.Expr, ranges: Ranges) -> Window | None:
    """Read a place as a pixel times the size of a window, and a place within it."""
    if str(place.ty.dtype) != "int64":  # computed from data, or by floats as in resizing
        return None
    for inner in stage.reduce:
        for pixel in stage.axes:
            at = pixel.var * inner.extent + inner.var
            if ranges.holds(tirx.EQ(place, at)):
                return Window(pixel, inner)
    return None


def _joined(
    conv: Stage, stage: Stage, places: dict[ir.Var, ir.Var], own: ir.Var, inner: Axis
) -> tuple[Stage, ir.Var, Window] | None:
    """Join an axis of places within windows to that of the windows: both are one of pixels.

    So a program has them where whole windows divide the pixels.
    """
    extents = {a.var: a.extent for a in conv.axes}
    pixels = {a.var: a for a in stage.axes}
    size = constant(inner.extent) or 1
    for pixel, other in places.items():
        count = constant(extents[other])
        if count is None or constant(extents[own]) != size:
            continue
        axis = Axis(tirx.Var(other.name, "int64"), index(count * size))
        ranges = Ranges()
        for one in (*conv.axes, *conv.reduce, axis):
            ranges.bind(one.var, one.extent)
        windowed = {
            other: tirx.floordiv(axis.var, index(size)),
            own: tirx.floormod(axis.var, index(size)),
        }
        values = tuple(ranges.all_indices(substitute(v, windowed)) for v in conv.values)
        operands = (x for v in values for x in loads(v) if x.source not in conv.targets)
        divided = [d for x in operands for i in x.indices for d in find(i, tirx.FloorDiv)]
        if any(axis.var in variables(d) for d in divided):
            continue
        axes = [axis if a.var.same_as(other) else a for a in conv.axes]
        new = replace(
            conv,
            axes=tuple(a for a in axes if not a.var.same_as(own)),
            indices=tuple(tuple(substitute(i, windowed) for i in x) for x in conv.indices),
            values=values,
        )
        return new, axis.var, Window(pixels[pixel], inner)
    return None


# Proposals: convolutions with the pooling of their results.
MOST_BETWEEN = 4  # operators between the two


def pooling_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name convolutions, the one-to-one operators after them, and the pooling that alone reads it.

    Yields
    ------
    tuple of Operator
        In order.
    """
    for op in graph.operators:
        found = [op]
        while convolved_rank(op) and len(found) <= MOST_BETWEEN + 1:
            readers = graph.successors(found[-1])
            if len(readers) != 1 or leaves(found[-1]):
                break
            (reader,) = readers
            found.append(reader)
            if reader.type is MappingType.MANY_TO_MANY:
                stages = reductions(reader)
                if len(stages) == 1 and not is_contraction(stages[0]):
                    yield tuple(found)
                break
            if reader.type is not MappingType.ONE_TO_ONE:
                break
