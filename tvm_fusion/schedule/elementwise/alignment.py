"""Where vectors of a domain's elements may begin: alignment in memory."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, sym, tirx

from ...core.expressions import load
from ...core.loops import constant, find, index, local, product, substitute
from ...program.stage import Axis
from ..address import offset, stride
from ..gpu.launch import VECTOR_BYTES
from .domain import Domain
from .reads import Read, bytes_of

# What memory is written in. A part of one is read before it can be written, or waits for the rest.
SECTOR_BYTES = 32
WORD = 4  # bytes of a bank of shared memory
SHIFTED = 256  # results: of shorter rows, one more tile would be too many


@dataclass(frozen=True)
class Aligned:
    """An aligned vector of a buffer, wherever it begins in its line.

    Its number is kept in a register, in which TVM sees no remainder: of sums with some it makes no
    vectors.

    Attributes
    ----------
    buffer : Var
        Of any shape.
    width : int
        Elements of a vector.
    number : Var
        The register.
    """

    buffer: ir.Var
    width: int
    number: ir.Var

    @classmethod
    def of(cls, buffer: ir.Var, width: int) -> Aligned:
        """Declare the register."""
        return cls(buffer, width, local(f"{buffer.name}_number", [1], "int64"))

    def find(self, place: ir.Expr) -> tirx.Stmt:
        """Keep the number of the vector that holds an element."""
        return tirx.BufferStore(self.number, tirx.floordiv(place, index(self.width)), [index(0)])

    @property
    def first(self) -> ir.Expr:
        """Position of its first element."""
        return load(self.number, [index(0)]) * self.width

    def at(self, lane: ir.Expr) -> list[ir.Expr]:
        """Spell the indices of an element."""
        return [*[index(0)] * (len(self.buffer.ty.shape) - 1), self.first + lane]


def step_of(domain: Domain, place: ir.Expr, axis: Axis) -> int | None:
    """Distance between neighbours along an axis, if it is one number."""
    found = stride(place, axis.var, domain.variables)
    return None if found is None else constant(found)


def aligned_width(domain: Domain, place: ir.Expr, axis: Axis, size: int) -> int:
    """Elements of the longest aligned vectors along an axis, of which rows are whole multiples.

    Parameters
    ----------
    place : PrimExpr
        Position of an element, in elements; its neighbours along the axis are next to it.
    size : int
        Bytes of an element.
    """
    steps = [step_of(domain, place, a) for a in domain.axes if a is not axis]
    start = constant(_at_zero(domain, place))
    width = VECTOR_BYTES // size
    for number in (constant(axis.extent), start, *steps):
        while width > 1 and (number is None or number % width):
            width //= 2
    return width


def _at_zero(domain: Domain, place: ir.Expr) -> ir.Expr:
    if find(place, ir.TensorLoad):
        return place
    return product([substitute(place, {v: index(0) for v in domain.variables})])


def begins_alike(one: ir.Expr, other: ir.Expr, width: int) -> bool:
    """Whether two positions are whole vectors apart, wherever they are."""
    apart = sym.Analyzer().simplify(tirx.floormod(one - other, index(width)))
    return constant(apart) == 0


def shift_of(domain: Domain) -> int:
    """Choose by how many results tiles may begin earlier, so that their rows begin at sectors.

    Returns
    -------
    int
        The elements of a sector; 0 where all rows of results begin at one anyway, where outputs
        would need unequal shifts, and where a row is hardly longer than a tile.
    """
    last, outputs = domain.axes[-1], domain.outputs
    length = constant(last.extent)
    if length is not None and length < SHIFTED:
        return 0
    places = [offset(s.buffer, s.indices) for s in outputs]
    sector = SECTOR_BYTES // min(bytes_of(s.buffer) for s in outputs)
    steps = [step_of(domain, p, a) for p in places for a in domain.axes[:-1]]
    starts = [constant(_at_zero(domain, p)) for p in places]
    if all(number is not None and number % sector == 0 for number in (*steps, *starts)):
        return 0
    is_known = not any(find(p, ir.TensorLoad) for p in places)
    alike = is_known and all(begins_alike(places[0], p, sector) for p in places)
    return sector if alike else 0


def overlap_of(domain: Domain, read: Read, axis: Axis) -> int:
    """Choose by how many elements vectors of a read may begin before those that are wanted.

    Returns
    -------
    int
        The elements of a vector; 0 where lines along the axis are whole words, or where elements
        before a line's first and behind its last are no neighbours in the source.
    """
    found = read.element
    place = offset(found.source, found.indices)
    size = bytes_of(found)
    if read.condition is not None or find(place, ir.TensorLoad):
        return 0
    if aligned_width(domain, place, axis, size) * size >= WORD:
        return 0
    *outer, inner = found.indices
    before = sym.Analyzer().simplify(index(inner) - axis.var)
    is_plain = not any(axis.var in tirx.analysis.undefined_vars(i) for i in (*outer, before))
    return VECTOR_BYTES // size if is_plain else 0
