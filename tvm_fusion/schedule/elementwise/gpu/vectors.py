"""Vectorized maps on a GPU: 16 bytes an access, all loads before the first use.

a thread has `per_thread` vectors of `width` points, each `start(n)` of the iteration space
    for n in per_thread:                                       unrolled
        for x in loads:  x_vector[n] = x[point(start(n))]      16 bytes; masked where it is guarded
    for n in per_thread:
        for lane in width:  result[lane] = f(x_vector[n][lane], ...)
        C[point(start(n))] = result                            16 bytes
`left` points that fill no vector are computed one by one by threads of the first block (gpu.py)
"""

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    constant,
    coordinates,
    index,
    local,
    product,
    sequence,
    substitute,
    unrolled,
    when,
)
from ....lower.flatten import contiguous
from ...gpu.launch import VECTOR_BYTES
from ...index.address import offset, stride
from ..guarded_loads import GuardedLoad, bytes_of, guarded_loads, has_vector_type
from ..iteration_space import IterationSpace
from .vector_access import VectorAccess, VectorStores

MIN_POINTS = 1 << 16  # below which wide accesses would leave multiprocessors idle
# Bytes in flight of a thread: 2,048 threads of a multiprocessor then have 64 KiB in flight, and an
# H200 needs 50 for its bandwidth. A second vector pays from MIN_POINTS_FOR_SEVERAL points on.
BYTES_IN_FLIGHT = 32
MIN_POINTS_FOR_SEVERAL = 1 << 22
MAX_VECTORS = 4


@dataclass(frozen=True)
class VectorConfig:
    """The vectors of an iteration space."""

    space: IterationSpace  # what is computed
    # Elements of a vector: as many as 16 bytes hold of the widest type. More would not coalesce.
    width: int
    # Whether vectors continue from one row into the next, for rows that are not whole vectors; a
    # few elements may remain at the very end.
    is_flat: bool
    loads: tuple[GuardedLoad, ...]  # loads of whole vectors; other elements are loaded one by one

    @property
    def extents(self) -> list[ir.Expr]:
        """Points along each axis."""
        return [index(axis.extent) for axis in self.space.axes]

    @property
    def whole(self) -> ir.Expr:
        """Number of vectors."""
        return sym.Analyzer().simplify(tirx.floordiv(product(self.extents), index(self.width)))

    @property
    def left(self) -> ir.Expr:
        """Elements after the last vector."""
        rest = self.space.points - self.whole * self.width
        return sym.Analyzer().simplify(rest) if self.is_flat else index(0)

    @property
    def per_thread(self) -> int:
        """Vectors that a thread loads before it uses the first."""
        points = constant(self.space.points)
        if points is None or points < MIN_POINTS_FOR_SEVERAL:
            return 1
        size = sum(bytes_of(r.element) for r in self.loads) * self.width
        return max(1, min(MAX_VECTORS, BYTES_IN_FLIGHT // max(1, size)))

    def point(self, vector: ir.Expr, lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the position of an element, with one division for a whole vector."""
        if not self.is_flat or len(self.space.axes) != 2:
            return self.place(vector, lane)
        last = constant(self.space.axes[-1].extent)
        if last is None or last < self.width:
            return self.place(vector, lane)
        row, column = self.place(vector, index(0)).values()
        is_next = column + lane >= last
        found = (
            tirx.Select(is_next, row + 1, row),
            column + lane - tirx.Select(is_next, index(last), index(0)),
        )
        return dict(zip(self.space.variables, found, strict=True))

    def place(self, vector: ir.Expr, lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the position of an element, in a form in which TVM proves contiguity."""
        if self.is_flat:
            found = coordinates(vector * self.width + lane, self.extents)
        else:
            *outer, last = self.extents
            found = coordinates(vector, [*outer, tirx.floordiv(last, index(self.width))])
            found[-1] = found[-1] * self.width + lane
        return dict(zip(self.space.variables, found, strict=True))


def vectors(space: IterationSpace, is_small: bool = False) -> VectorConfig | None:
    """Vectorize an iteration space; ``None`` where some output is not stored in whole vectors.

    Parameters
    ----------
    is_small
        Whether few points are vectorized, too: there are few threads.
    """
    if not space.axes:
        return None
    points = constant(space.points)
    if not all(has_vector_type(s.buffer) for s in space.stores):
        return None
    if points is not None and points < MIN_POINTS and not is_small:
        return None
    moved = [*(s.buffer for s in space.outputs), *filter(has_vector_type, space.loads)]
    width = VECTOR_BYTES // max(map(bytes_of, moved))
    last = constant(space.axes[-1].extent)
    is_flat = last is None or last % width != 0
    if is_flat and any(constant(a.extent) is None for a in space.axes[1:]):
        return None  # a division by a symbolic number for every element
    found = VectorConfig(space, width, is_flat, ())
    if not all(_lies_along(found, offset(s.buffer, s.indices)) for s in space.outputs):
        return None
    return VectorConfig(space, width, is_flat, tuple(_reads(found)))


def _lies_along(config: VectorConfig, place: ir.Expr) -> bool:
    """Whether the elements of every vector are contiguous in memory."""
    axes = config.space.axes if config.is_flat else config.space.axes[-1:]
    step, analyzer, place = index(1), sym.Analyzer(), contiguous(place)
    for axis in reversed(axes):
        found = stride(place, axis.var, config.space.variables)
        if found is None or not analyzer.can_prove_equal(found, step):
            return False
        step = step * index(axis.extent)
    return True


def _reads(config: VectorConfig) -> list[GuardedLoad]:
    """List the different loads of whole vectors."""
    known: dict[ir.Expr, bool] = {}  # a part of a concatenation has the conditions of those before

    def is_shared(condition: ir.Expr) -> bool:
        if condition not in known:
            known[condition] = _is_shared(config, condition, is_shared)
        return known[condition]

    return [
        read
        for read in guarded_loads(config.space)
        if _lies_along(config, offset(read.element.source, read.element.indices))
        and (read.condition is None or (not config.is_flat and is_shared(read.condition)))
    ]


def _is_shared(
    config: VectorConfig, condition: ir.Expr, of_part: Callable[[ir.Expr], bool]
) -> bool:
    """Whether a condition holds in all lanes of a vector or in none."""
    if isinstance(condition, tirx.And | tirx.Or):
        return of_part(condition.a) and of_part(condition.b)
    if isinstance(condition, tirx.Not):
        return of_part(condition.a)
    lane, vector = tirx.Var("lane", "int64"), tirx.Var("vector", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(config.width)))
    last = config.space.variables[-1]
    found = substitute(condition, {last: vector * config.width + lane})
    return any(
        lane not in tirx.analysis.undefined_vars(analyzer.simplify(form)) for form in _forms(found)
    )


def _forms(condition: ir.Expr) -> list[ir.Expr]:
    """Write an integer comparison, or its negation, in forms that TVM simplifies."""
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


def compute(
    config: VectorConfig, start: Callable[[ir.Expr], ir.Expr], count: ir.Expr | None
) -> tirx.Stmt:
    """Load some vectors into registers, compute element by element, store vectors.

    Parameters
    ----------
    config
        The vectors of the iteration space.
    start
        From the first, second, ... of a thread's vectors to its number in the grid.
    count
        Number of vectors; omitted where no thread has one behind the last.
    """
    width, each = config.width, config.per_thread
    staged = [
        local(f"{r.element.source.name}_vector", [each * width], str(r.element.ty.dtype))
        for r in config.loads
    ]
    accesses = [VectorAccess(r.element.source, r.element.indices, width) for r in config.loads]
    results = VectorStores(config.space, width)

    def read(number: ir.Expr) -> tirx.Stmt:
        def place(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
            return config.place(start(number), lane)

        stmts = []
        for one, access, register in zip(config.loads, accesses, staged, strict=True):
            stmt = access.load(register, number * width, place)
            if one.condition is not None:
                stmt = when(substitute(one.condition, place(index(0))), stmt)
            stmts.append(stmt)
        return sequence(stmts)

    def finish(number: ir.Expr) -> tirx.Stmt:
        def loaded(lane: ir.Expr) -> list[tuple[ir.TensorLoad, ir.Expr]]:
            slot = [number * width + lane]
            return [(r.element, load(x, slot)) for r, x in zip(config.loads, staged, strict=True)]

        return sequence(
            results.write(
                loaded,
                lambda lane: config.point(start(number), lane),
                lambda lane: config.place(start(number), lane),
            )
        )

    def each_vector(body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        def guarded(number: ir.Expr) -> tirx.Stmt:
            return body(number) if count is None else when(start(number) < count, body(number))

        # An unrolled loop, not constants: TVM simplifies indices before they are constant.
        return unrolled("vector", each, guarded)

    stmts = [each_vector(read)] if config.loads else []
    stmts.append(each_vector(finish))
    return block("vectors", sequence(stmts), [*staged, *results.registers])
