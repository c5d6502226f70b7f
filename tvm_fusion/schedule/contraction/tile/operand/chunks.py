"""How a thread reads chunks of an operand: 16 bytes along K, or along M or N.

aligned                  one vector of 16, 8 or 4 bytes, which cp.async copies
the same, zero around    cp.async under the condition of the vector
an image
halves at any address    words around them, shifted
computed, of vectors     vector loads
otherwise                loads of elements

The operand tells, whatever the shape of tiles.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tvm import ir, sym, tirx

from .....core.tir.expressions import loads, variables
from .....core.tir.loops import constant, index, product, substitute
from .....program.stage import Axis
from ....gpu.memory.cp_async import NARROW_BYTES
from ....gpu.memory.vector_loads import ElementLoads, VectorLoad, resolved
from ....index.address import conditional_loads, known_step
from ..config import is_plain, unguarded
from ..grid import axis_values
from ..problem import GemmProblem

HALF_BYTES = 2


class ChunkLayout(NamedTuple):
    """How chunks are read: along K or not, by vectors, shifted words, or elements."""

    cost: int  # loads of a chunk
    is_k: bool  # whether chunks are of K
    vector: ir.Var  # the number of a vector along the axes
    lanes: int  # elements of a vector
    values: list[ir.Expr] | None = None  # of a vector
    vectors: Sequence[VectorLoad] = ()  # what they are computed of
    is_shifted: bool = False  # whether chunks are contiguous, at any address
    guard: ir.Expr | None = None  # where a vector is not zero, over the axes and ``vector``
    is_unaligned: bool = False  # the same of AMD's, whose vectors may lie at any address


class OperandChunks:
    """Chunks of A or of B, in tiles of any shape.

    Parameters
    ----------
    is_a
        Whether the operand is A.

    Attributes
    ----------
    expr : Expr
        The operand; of a column split, with its columns in the order of a tile.
    axes : tuple of Axis
        Those of M, or of N.
    layout : ChunkLayout
        How a chunk is read.
    is_copied : bool
        Whether it is loaded as it is, by cp.async.
    is_gathered : bool
        Whether it is loaded by elements.
    is_planar : bool
        Whether these are of adjacent pixels of a plane for adjacent rows of a tile, and chunks have
        a pixel of several planes: channels of NCHW images.
    """

    def __init__(self, problem: GemmProblem, is_a: bool) -> None:
        view = problem if is_a else problem.interleaved()
        self.expr = view.a if is_a else view.b
        self.axes = view.m_axes if is_a else view.n_axes
        orders = [(True, problem.k_axes), (False, self.axes)]
        if problem.item_bytes == 1 or problem.is_amd:  # a tile has rows of K alone
            orders = orders[:1]
        layout = _chunk_layout(problem, self.expr, orders if is_a else orders[::-1])
        if problem.is_amd and not _is_in_vectors(layout) and is_plain(self.expr):
            other = _chunk_layout(problem, self.expr, [(False, self.axes)])
            layout = other if _is_in_vectors(other) else layout
        self.is_planar = _is_gathered(layout) and self._has_planes(problem)
        if self.is_planar:
            layout = _chunk_layout(problem, self.expr, [(True, problem.k_axes)])
        is_loaded = is_plain(self.expr) or layout.guard is not None
        self.layout = layout
        self.is_copied = layout.values is not None and len(layout.vectors) == 1 and is_loaded
        self.is_gathered = _is_gathered(layout)

    def _has_planes(self, problem: GemmProblem) -> bool:
        terms = problem.k_axes[-1]
        core, _ = unguarded(self.expr)
        is_whole = (constant(terms.extent) or 1) % problem.chunk == 0
        return is_whole and is_plain(core) and is_planar(core, terms.var, self.axes[-1].var)


def _is_gathered(layout: ChunkLayout) -> bool:
    return layout.values is None and not layout.is_shifted and not layout.is_unaligned


def is_planar(read: ir.TensorLoad, channel: ir.Var, pixel: ir.Var) -> bool:
    """Whether pixels are adjacent, or every other one, and channels have planes of their own."""
    planes = known_step(read.source, read.indices, channel, [channel, pixel])
    along = known_step(read.source, read.indices, pixel, [channel, pixel])
    return along in (1, 2) and planes is not None and planes > along


def _is_in_vectors(layout: ChunkLayout) -> bool:
    """Whether a plain operand is loaded in vectors along an order."""
    is_one = layout.values is not None and len(layout.vectors) == 1
    return is_one or layout.is_unaligned


def _chunk_layout(
    problem: GemmProblem, operand: ir.Expr, orders: Sequence[tuple[bool, Sequence[Axis]]]
) -> ChunkLayout:
    """Choose how chunks are read with the fewest loads.

    Parameters
    ----------
    orders
        Whether chunks are along K, and those axes or the ones of M or N; of equals the first.
    """
    found: list[ChunkLayout] = []
    bound = (*problem.contraction.stage.axes, *problem.k_axes)
    for is_k, axes in orders:
        along = _along(
            operand, tuple(axes), is_k, problem.chunk, problem.item_bytes, bound, problem.is_amd
        )
        found.append(along)
        if found[-1].cost == 1:
            break  # fewer there are not
    return min(found, key=lambda layout: layout.cost)


@lru_cache(maxsize=256)  # every tile that a product considers asks the same
def _along(
    operand: ir.Expr,
    axes: tuple[Axis, ...],
    is_k: bool,
    chunk: int,
    item_bytes: int,
    bound: tuple[Axis, ...],
    is_amd: bool,
) -> ChunkLayout:
    """Choose how chunks along some axes are read; ``bound`` are all axes of the product."""
    vector = tirx.Var("vector", "int64")
    extent = constant(product([a.extent for a in axes]))
    core, guard = unguarded(operand)
    if guard is not None and not is_plain(core):
        core, guard = operand, None  # computed images are gathered
    is_plain_load = is_plain(core)
    strides = [_stride(x, axes[-1]) for x in loads(operand)]
    other = ChunkLayout(chunk + sum(s != 1 for s in strides), is_k, vector, chunk)
    is_row = is_plain_load and guard is None and strides == [1] and len(axes) == 1
    if is_row and is_amd:  # which loads vectors from any address of an element
        other = ChunkLayout(2, is_k, vector, chunk, is_unaligned=True)
    elif is_row and item_bytes == HALF_BYTES:
        other = ChunkLayout(chunk // 2 + 1, is_k, vector, chunk, is_shifted=True)
    if is_plain_load and _is_strided(strides, axes[-1], chunk):
        return other
    for lanes in (chunk, *(size // item_bytes for size in NARROW_BYTES)):
        if extent is None or extent % lanes:
            continue
        if guard is not None and not _is_of_vectors(guard, axes[-1], lanes):
            continue
        analyzer = _analyzer(bound)
        analyzer.bind(vector, ir.Range.from_min_extent(index(0), index(extent // lanes)))
        elements = ElementLoads(analyzer, is_copied=is_plain_load)
        found = [
            resolved(substitute(core, axis_values(axes, vector * lanes + lane)), analyzer)
            for lane in range(lanes)
        ]
        if not all(map(_may_be_hoisted, found)):
            continue
        values = [elements.read(x) for x in found]
        vectors = elements.vectors()
        if is_plain_load and len(vectors[0].elements) == lanes:
            if guard is not None:
                guard = analyzer.simplify(substitute(guard, axis_values(axes, vector * lanes)))
            return ChunkLayout(chunk // lanes, is_k, vector, lanes, values, vectors, guard=guard)
        if guard is None and lanes == chunk and any(len(v.elements) > 1 for v in vectors):
            other = ChunkLayout(len(vectors), is_k, vector, lanes, values, vectors)
    return other


def _is_strided(strides: Sequence[int | None], axis: Axis, chunk: int) -> bool:
    """Whether no two elements of a chunk along an axis can be in one vector."""
    is_whole = (constant(axis.extent) or 0) >= chunk
    return is_whole and all(s is not None and s >= chunk for s in strides)


def _may_be_hoisted(operand: ir.Expr) -> bool:
    """Whether all loads may be issued whatever conditions hold."""
    return not conditional_loads(operand) and not any(
        loads(i) for x in loads(operand) for i in x.indices
    )


def _is_of_vectors(guard: ir.Expr, axis: Axis, lanes: int) -> bool:
    """Whether a condition is the same for all elements of an aligned vector along an axis."""
    return (constant(axis.extent) or 1) % lanes == 0 and axis.var not in variables(guard)


def _analyzer(axes: Sequence[Axis]) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    for axis in axes:
        extent = constant(axis.extent)
        if extent is not None:
            analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(extent)))
    return analyzer


def _stride(read: ir.TensorLoad, axis: Axis) -> int | None:
    return known_step(read.source, read.indices, axis.var, [axis.var])
