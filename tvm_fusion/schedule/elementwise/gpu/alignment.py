"""Alignment of vectors in memory."""

from tvm import ir, sym, tirx

from ....core.tir.loops import constant, find, index, product, substitute
from ....program.stage import Axis
from ...gpu.launch import VECTOR_BYTES
from ...index.address import offset, stride
from ..guarded_loads import GuardedLoad, bytes_of
from ..iteration_space import IterationSpace

# Granularity of stores to memory: a part of a sector is read before it is written, or waits.
SECTOR_BYTES = 32
WORD = 4  # bytes of a bank of shared memory
MIN_SHIFTED_ROW = 256  # results; for shorter rows, one more tile costs too much


def step_of(space: IterationSpace, place: ir.Expr, axis: Axis) -> int | None:
    """Return the stride along an axis, if it is constant."""
    found = stride(place, axis.var, space.variables)
    return None if found is None else constant(found)


def aligned_width(space: IterationSpace, place: ir.Expr, axis: Axis, size: int) -> int:
    """Return the width of the longest aligned vectors along an axis that divides its rows.

    Parameters
    ----------
    place
        Position of an element, in elements; contiguous along the axis.
    size
        Bytes of an element.
    """
    steps = [step_of(space, place, a) for a in space.axes if a is not axis]
    start = constant(_at_zero(space, place))
    width = VECTOR_BYTES // size
    for number in (constant(axis.extent), start, *steps):
        while width > 1 and (number is None or number % width):
            width //= 2
    return width


def _at_zero(space: IterationSpace, place: ir.Expr) -> ir.Expr:
    if find(place, ir.TensorLoad):
        return place
    return product([substitute(place, {v: index(0) for v in space.variables})])


def have_same_alignment(one: ir.Expr, other: ir.Expr, width: int) -> bool:
    """Whether two positions always have the same offset in a vector."""
    difference = sym.Analyzer().simplify(tirx.floormod(one - other, index(width)))
    return constant(difference) == 0


def shift_of(space: IterationSpace) -> int:
    """Choose by how many results tiles may begin earlier, so that their rows are sector-aligned.

    Returns
    -------
    int
        The elements of a sector; 0 where all rows are aligned anyway, where outputs would need
        unequal shifts, and where a row is hardly longer than a tile.
    """
    last, outputs = space.axes[-1], space.outputs
    length = constant(last.extent)
    if length is not None and length < MIN_SHIFTED_ROW:
        return 0
    places = [offset(s.buffer, s.indices) for s in outputs]
    sector = SECTOR_BYTES // min(bytes_of(s.buffer) for s in outputs)
    steps = [step_of(space, p, a) for p in places for a in space.axes[:-1]]
    starts = [constant(_at_zero(space, p)) for p in places]
    if all(number is not None and number % sector == 0 for number in (*steps, *starts)):
        return 0
    is_known = not any(find(p, ir.TensorLoad) for p in places)
    alike = is_known and all(have_same_alignment(places[0], p, sector) for p in places)
    return sector if alike else 0


def overlap_of(space: IterationSpace, read: GuardedLoad, axis: Axis) -> int:
    """Choose by how many elements vectors of a load may begin before those that are needed.

    Returns
    -------
    int
        The elements of a vector; 0 where lines along the axis are whole words, or where the source
        is not contiguous across the ends of a line.
    """
    found = read.element
    place = offset(found.source, found.indices)
    size = bytes_of(found)
    if read.condition is not None or find(place, ir.TensorLoad):
        return 0
    if aligned_width(space, place, axis, size) * size >= WORD:
        return 0
    *outer, inner = found.indices
    before = sym.Analyzer().simplify(index(inner) - axis.var)
    has_vector_type = not any(axis.var in tirx.analysis.undefined_vars(i) for i in (*outer, before))
    return VECTOR_BYTES // size if has_vector_type else 0
