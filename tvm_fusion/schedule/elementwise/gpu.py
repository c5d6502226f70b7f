"""Maps on a GPU: one launch, neighbouring threads on neighbouring elements, 16 bytes each."""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import DataType, ir, tirx

from ...fusion.expressions import load
from ...fusion.program import Program
from ..address import offset, stride
from ..inline import inlined
from ..loops import (
    Body,
    add,
    block,
    ceildiv,
    choose,
    constant,
    coordinates,
    index,
    kernel,
    local,
    loop,
    product,
    sequence,
    substitute,
    threads,
    when,
)
from .domain import Domain, Store, domains, in_registers

THREADS = 256
VECTOR_BYTES = 16
FILL = 1 << 16  # points below which wide accesses would leave multiprocessors idle
TILE = 32  # rows and columns of a transposed tile, which the nearest cache holds
VECTOR_TYPES = frozenset({"float32", "float16", "bfloat16", "int32"})


def elementwise_gpu(program: Program) -> tirx.PrimFunc:
    """Make the kernel: every domain has its own range of blocks in one grid."""
    kept = in_registers(program)
    spaces = domains(inlined(program, kept), kept)
    pieces = [_blocks(domain) for domain in spaces]

    def body_of(block_index: ir.Expr) -> tirx.Stmt:
        return threads(
            "threadIdx.x",
            THREADS,
            lambda thread: choose(
                block_index, [(count, _bind(body, thread)) for count, body in pieces]
            ),
        )

    total = add(count for count, _ in pieces)
    return kernel(program, threads("blockIdx.x", total, body_of))


def _bind(body, thread: ir.Expr) -> Body:
    return lambda number: body(number, thread)


def _blocks(domain: Domain):
    """Count a domain's blocks, and say what one thread of a block does."""
    tiled = domain.transposed_axis()
    if tiled is not None:
        return _tiles(domain, tiled)
    width = vector_width(domain)
    extents = [a.extent for a in domain.axes]
    if extents:
        extents[-1] = index(extents[-1]) if width == 1 else ceildiv(extents[-1], width)
    points = product(extents)

    def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        flat = number * THREADS + thread
        place = coordinates(flat, extents)
        if width == 1:
            return when_inside(flat, points, domain.point(place))
        place[-1] = place[-1] * width
        return when_inside(flat, points, vector(domain, place, width))

    return ceildiv(points, THREADS), body


def when_inside(flat: ir.Expr, points: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Leave the last block's surplus threads idle."""
    size = constant(points)
    return body if size is not None and size % THREADS == 0 else when(flat < points, body)


def vector_width(domain: Domain) -> int:
    """Elements per thread: 16 bytes of the widest type, where rows are whole vectors."""
    if not domain.axes or domain.has_conditional_loads:
        return 1
    dtypes = {str(s.buffer.ty.dtype) for s in domain.stores}
    dtypes |= {str(x.ty.dtype) for x in domain.loads}
    size = constant(domain.axes[-1].extent)
    points = constant(domain.points)
    if not dtypes <= VECTOR_TYPES or size is None or (points is not None and points < FILL):
        return 1
    width = VECTOR_BYTES // max((DataType(d).bits + 7) // 8 for d in dtypes)
    stores = domain.steps(domain.variables[-1])[: len(domain.outputs)]
    if size % width or any(constant(s if s is not None else 0) != 1 for s in stores):
        return 1
    return width


def vector(domain: Domain, place: list[ir.Expr], width: int) -> tirx.Stmt:
    """Read vectors into registers, compute element by element, write vectors.

    Only copies are vector statements, so it does not matter which operators CUDA has on vectors.
    """
    last = domain.variables[-1]
    start = dict(zip(domain.variables, place, strict=True))
    staged: list[tuple[ir.TensorLoad, ir.Var]] = []
    stmts: list[tirx.Stmt] = []

    def lanes(body: Body, kind: int) -> tirx.Stmt:
        return loop("lane", width, body, kind)

    def lane_place(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return {**start, last: start[last] + lane}

    for found in domain.loads:
        if any(_same(found, known) for known, _ in staged):
            continue
        step = stride(offset(found.source, found.indices), last, domain.variables)
        if step is None or constant(step) != 1:
            continue
        register = local(f"{found.source.name}_vector", [width], str(found.ty.dtype))
        staged.append((found, register))

        def read(
            lane: ir.Expr, found: ir.TensorLoad = found, register: ir.Var = register
        ) -> tirx.Stmt:
            return tirx.BufferStore(register, substitute(found, lane_place(lane)), [lane])

        stmts.append(lanes(read, tirx.ForKind.VECTORIZED))

    def from_registers(lane: ir.Expr) -> Callable[[ir.TensorLoad], ir.Expr]:
        def swap(found: ir.TensorLoad) -> ir.Expr:
            register = next((r for known, r in staged if _same(found, known)), None)
            return found if register is None else load(register, [lane])

        return swap

    kept = domain.files(width)
    results = {
        s.buffer: local(f"{s.buffer.name}_vector", [width], str(s.buffer.ty.dtype))
        for s in domain.outputs
    }
    for store in domain.stores:

        def compute(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
            value = substitute(store.value, {}, from_registers(lane))
            one = Store(store.buffer, store.indices, value)
            return one.at(lane_place(lane), {**kept, **results}, lane)

        stmts.append(lanes(compute, tirx.ForKind.UNROLLED))
    for store in domain.outputs:

        def write(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
            where = [substitute(i, lane_place(lane)) for i in store.indices]
            return tirx.BufferStore(store.buffer, load(results[store.buffer], [lane]), where)

        stmts.append(lanes(write, tirx.ForKind.VECTORIZED))
    buffers = [*(r for _, r in staged), *kept.values(), *results.values()]
    return block("vectors", sequence(stmts), buffers)


def _tiles(domain: Domain, tiled: int):
    """Cut a transposed read into blocks, a square each, so that both sides use whole cache lines.

    The strided side comes round again from the nearest cache within the block.
    """
    across, last = domain.axes[tiled], domain.axes[-1]
    rest = [a for n, a in enumerate(domain.axes[:-1]) if n != tiled]
    extents = [
        *(a.extent for a in rest),
        ceildiv(across.extent, TILE),
        ceildiv(last.extent, TILE),
    ]
    rows = THREADS // TILE

    def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        *place, band, column_tile = coordinates(number, extents)
        column = column_tile * TILE + tirx.floormod(thread, index(TILE))

        def step(count: ir.Expr) -> tirx.Stmt:
            row = band * TILE + count * rows + tirx.floordiv(thread, index(TILE))
            where = [*place[:tiled], row, *place[tiled:], column]
            inside = tirx.And(row < index(across.extent), column < index(last.extent))
            return when(inside, domain.point(where))

        return loop("step", TILE // rows, step, tirx.ForKind.UNROLLED)

    return product(extents), body


def _same(a: ir.TensorLoad, b: ir.TensorLoad) -> bool:
    return a.source.same_as(b.source) and all(
        tvm_ffi.structural_equal(x, y) for x, y in zip(a.indices, b.indices, strict=True)
    )
