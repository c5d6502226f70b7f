"""Vectors of a map's elements: 16 bytes an access, all reads before the first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ...core.expressions import load
from ...core.loops import (
    block,
    constant,
    coordinates,
    index,
    local,
    loop,
    product,
    sequence,
    substitute,
    unrolled,
    when,
)
from ...lower.flatten import contiguous
from ..address import offset, same, stride
from ..gpu.launch import VECTOR_BYTES
from .domain import Domain, Store
from .reads import Read, bytes_of, is_plain, reads

FILL = 1 << 16  # points below which wide accesses would leave multiprocessors idle
# Bytes that a thread asks for at once: 2,048 threads of a multiprocessor then have 64 KiB on their
# way, and 50 take to reach an H200's bandwidth. A second vector is worth it from so many points on.
IN_FLIGHT = 32
MANY = 1 << 22
MOST = 4


@dataclass(frozen=True)
class Vectors:
    """How a domain is cut into vectors.

    Attributes
    ----------
    domain : Domain
        What is computed.
    width : int
        Elements of a vector: as many as 16 bytes hold of the widest type. More would leave gaps
        between what neighbouring threads access at a time.
    is_flat : bool
        Vectors run on from one row into the next, for rows that are not whole vectors; a few
        elements may be left over at the very end.
    reads : tuple of Read
        Those of whole vectors; other elements are read one by one.
    """

    domain: Domain
    width: int
    is_flat: bool
    reads: tuple[Read, ...]

    @property
    def extents(self) -> list[ir.Expr]:
        """Points along each axis."""
        return [index(axis.extent) for axis in self.domain.axes]

    @property
    def whole(self) -> ir.Expr:
        """Number of vectors."""
        return sym.Analyzer().simplify(tirx.floordiv(product(self.extents), index(self.width)))

    @property
    def left(self) -> ir.Expr:
        """Elements left over after the last vector."""
        rest = self.domain.points - self.whole * self.width
        return sym.Analyzer().simplify(rest) if self.is_flat else index(0)

    @property
    def per_thread(self) -> int:
        """Vectors that a thread reads at once."""
        points = constant(self.domain.points)
        if points is None or points < MANY:
            return 1
        size = sum(bytes_of(r.element) for r in self.reads) * self.width
        return max(1, min(MOST, IN_FLIGHT // max(1, size)))

    def point(self, vector: ir.Expr, lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Say where an element is, with one division for a whole vector."""
        if not self.is_flat or len(self.domain.axes) != 2:
            return self.place(vector, lane)
        last = constant(self.domain.axes[-1].extent)
        if last is None or last < self.width:
            return self.place(vector, lane)
        row, column = self.place(vector, index(0)).values()
        is_next = column + lane >= last
        found = (
            tirx.Select(is_next, row + 1, row),
            column + lane - tirx.Select(is_next, index(last), index(0)),
        )
        return dict(zip(self.domain.variables, found, strict=True))

    def place(self, vector: ir.Expr, lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Say where an element is, so that TVM sees which ones are neighbours."""
        if self.is_flat:
            found = coordinates(vector * self.width + lane, self.extents)
        else:
            *outer, last = self.extents
            found = coordinates(vector, [*outer, tirx.floordiv(last, index(self.width))])
            found[-1] = found[-1] * self.width + lane
        return dict(zip(self.domain.variables, found, strict=True))


def vectors(domain: Domain) -> Vectors | None:
    """Cut a domain into vectors; ``None`` where some output is not written in whole ones."""
    if not domain.axes:
        return None
    points = constant(domain.points)
    if not all(is_plain(s.buffer) for s in domain.stores):
        return None
    if points is not None and points < FILL:
        return None
    moved = [*(s.buffer for s in domain.outputs), *filter(is_plain, domain.loads)]
    width = VECTOR_BYTES // max(map(bytes_of, moved))
    last = constant(domain.axes[-1].extent)
    is_flat = last is None or last % width != 0
    if is_flat and any(constant(a.extent) is None for a in domain.axes[1:]):
        return None  # a division by a symbolic number for every element
    found = Vectors(domain, width, is_flat, ())
    if not all(_lies_along(found, offset(s.buffer, s.indices)) for s in domain.outputs):
        return None
    return Vectors(domain, width, is_flat, tuple(_reads(found)))


def _lies_along(cut: Vectors, place: ir.Expr) -> bool:
    """Whether the elements of every vector are neighbours in memory."""
    axes = cut.domain.axes if cut.is_flat else cut.domain.axes[-1:]
    step, analyzer = index(1), sym.Analyzer()
    for axis in reversed(axes):
        found = stride(contiguous(place), axis.var, cut.domain.variables)
        if found is None or not analyzer.can_prove_equal(found, step):
            return False
        step = step * index(axis.extent)
    return True


def _reads(cut: Vectors) -> list[Read]:
    """List the different loads of whole vectors."""
    return [
        read
        for read in reads(cut.domain)
        if _lies_along(cut, offset(read.element.source, read.element.indices))
        and (read.condition is None or (not cut.is_flat and _is_shared(cut, read.condition)))
    ]


def _is_shared(cut: Vectors, condition: ir.Expr) -> bool:
    """Whether a condition holds in all lanes of a vector or in none."""
    if isinstance(condition, tirx.And | tirx.Or):
        return _is_shared(cut, condition.a) and _is_shared(cut, condition.b)
    if isinstance(condition, tirx.Not):
        return _is_shared(cut, condition.a)
    lane, vector = tirx.Var("lane", "int64"), tirx.Var("vector", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(cut.width)))
    last = cut.domain.variables[-1]
    found = substitute(condition, {last: vector * cut.width + lane})
    return any(
        lane not in tirx.analysis.undefined_vars(analyzer.simplify(form)) for form in _forms(found)
    )


def _forms(condition: ir.Expr) -> list[ir.Expr]:
    """Spell a comparison of whole numbers, or its contrary, so that TVM can simplify it."""
    one = index(1)
    if isinstance(condition, tirx.LT):
        return [condition, condition.b < condition.a + one]
    if isinstance(condition, tirx.LE):
        return [condition.a < condition.b + one, condition.b < condition.a]
    if isinstance(condition, tirx.GT):
        return [condition.b < condition.a, condition.a < condition.b + one]
    if isinstance(condition, tirx.GE):
        return [condition.b < condition.a + one, condition.a < condition.b]
    return [condition]


def compute(cut: Vectors, start: Callable[[ir.Expr], ir.Expr], count: ir.Expr | None) -> tirx.Stmt:
    """Read some vectors into registers, compute element by element, write them.

    Only copies are vector statements, so it does not matter which operators CUDA has on vectors.

    Parameters
    ----------
    cut : Vectors
        How the domain is cut.
    start : callable
        From the first, second, ... of a thread's vectors to its number.
    count : PrimExpr, optional
        How many there are; omitted where no thread's lies beyond.
    """
    domain, width, each = cut.domain, cut.width, cut.per_thread
    staged = [
        local(f"{r.element.source.name}_vector", [each * width], str(r.element.ty.dtype))
        for r in cut.reads
    ]
    kept = domain.files(width)
    results = {
        s.buffer: local(f"{s.buffer.name}_vector", [width], str(s.buffer.ty.dtype))
        for s in domain.outputs
    }

    def read(number: ir.Expr) -> tirx.Stmt:
        stmts = []
        for one, register in zip(cut.reads, staged, strict=True):

            def copy(lane: ir.Expr, one: Read = one, register: ir.Var = register) -> tirx.Stmt:
                value = substitute(one.element, cut.place(start(number), lane))
                return tirx.BufferStore(register, value, [number * width + lane])

            stmt = loop("lane", width, copy, tirx.ForKind.VECTORIZED)
            if one.condition is not None:
                first = cut.place(start(number), index(0))
                stmt = when(substitute(one.condition, first), stmt)
            stmts.append(stmt)
        return sequence(stmts)

    def finish(number: ir.Expr) -> tirx.Stmt:
        def from_registers(lane: ir.Expr) -> Callable[[ir.TensorLoad], ir.Expr]:
            def swap(found: ir.TensorLoad) -> ir.Expr:
                pairs = zip(cut.reads, staged, strict=True)
                register = next((r for one, r in pairs if same(found, one.element)), None)
                return found if register is None else load(register, [number * width + lane])

            return swap

        stmts = []
        for store in domain.stores:

            def one(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
                value = substitute(store.value, {}, from_registers(lane))
                changed = Store(store.buffer, store.indices, value)
                return changed.at(cut.point(start(number), lane), {**kept, **results}, lane)

            stmts.append(unrolled("lane", width, one))
        for store in domain.outputs:

            def write(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
                where = [substitute(i, cut.place(start(number), lane)) for i in store.indices]
                return tirx.BufferStore(store.buffer, load(results[store.buffer], [lane]), where)

            stmts.append(loop("lane", width, write, tirx.ForKind.VECTORIZED))
        return sequence(stmts)

    def each_vector(body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        def guarded(number: ir.Expr) -> tirx.Stmt:
            return body(number) if count is None else when(start(number) < count, body(number))

        # A loop, though unrolled: TVM simplifies indices before, when they have no constants yet.
        return unrolled("vector", each, guarded)

    stmts = [each_vector(read)] if cut.reads else []
    stmts.append(each_vector(finish))
    return block("vectors", sequence(stmts), [*staged, *kept.values(), *results.values()])
