"""Scattered updates on a CPU: tensors are copied and updated by columns.

TVM's own form launches its threads anew for every index. Here each task has some columns of all
rows, in the order of the indices, so that what is written twice is what is written last:

    parallel for each block of columns:
        copy the columns of all rows
        for each index:
            row = the index's offset
            for each column: y[row, column] = updates[index, column]

Where a row is short, one task updates all.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, te, tirx
from tvm.target import Target

from ...._tvm.ir.buffer import declare

NAME = "relax.scatter_nd"
WIDTHS = (256, 128, 64)  # columns of a task; narrower ones are not worth a task
FEW_TASKS = 4  # for which narrower blocks share the work out better
MOST_LANES = 16
_UPDATES: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}


def scatter_nd(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Update slices of a tensor whose places are data; what has no kernel goes TVM's way."""
    if not has_kernel(call):
        return ir.Op.get(NAME).get_attr("FLegalize")(bb, call)
    mode, made = str(call.attrs.reduction), call.args[0].ty

    def buffer(given: te.Tensor, name: str) -> ir.Var:
        return declare(given.shape, str(given.dtype), name)

    def compute(data: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        given = {"data": data, "indices": indices, "updates": updates}
        return te.extern(
            [data.shape],
            [*given.values()],
            lambda ins, outs: _body(ins[0], ins[1], ins[2], outs[0], _UPDATES[mode]),
            dtype=data.dtype,
            # Of the default buffers the offset is open, which FuseTIR does not merge.
            in_buffers=[buffer(x, name) for name, x in given.items()],
            out_buffers=[declare(made.shape.values, str(made.dtype), "scattered")],
            name="scatter_nd",
        )

    return bb.call_te(compute, *call.args, primfunc_name_hint="scatter_nd")


def has_kernel(call: relax.Call) -> bool:
    """Whether updates have known shapes, a known reduction and a CPU to run on.

    Of rows that are numbered along one axis, their number and that of the updates may be symbolic.
    """
    target = Target.current(allow_none=True)
    shapes = [arg.ty.shape for arg in call.args]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    indices = shapes[1].values
    is_by_row = len(indices) == 2 and isinstance(indices[1], tirx.IntImm) and int(indices[1]) == 1
    known = all(
        int(d) > 0 if isinstance(d, tirx.IntImm) else is_by_row and n == 0
        for shape in shapes
        for n, d in enumerate(shape.values)
    )
    is_cpu = target is not None and target.kind.name == "llvm"
    return is_cpu and known and str(call.attrs.reduction) in _UPDATES


def _body(
    data: ir.Var,
    indices: ir.Var,
    updates: ir.Var,
    made: ir.Var,
    update: Callable[[ir.Expr, ir.Expr], ir.Expr],
) -> tirx.Stmt:
    shape, places = _extents(data), _extents(indices)
    depth = places[-1]
    rows = shape[0] if depth == 1 else math.prod(shape[:depth])
    columns = math.prod(shape[depth:])
    count = places[0] if len(places) == 2 else math.prod(places[:-1])
    fitting = [w for w in WIDTHS if columns % w == 0]
    shared = [w for w in fitting if columns // w >= FEW_TASKS]
    width = (shared or fitting[-1:] or [columns])[0]
    lanes = next(n for n in (MOST_LANES, 8, 4, 2, 1) if width % n == 0)

    def task(start: ir.Expr) -> tirx.Stmt:
        def copied(row: ir.Expr) -> tirx.Stmt:
            def element(column: ir.Expr) -> tirx.Stmt:
                at = _place(row * columns + start + column, shape)
                return tirx.BufferStore(made, tirx.BufferLoad(data, at), at)

            return _vectors(width, lanes, element)

        def updated(number: ir.Expr) -> tirx.Stmt:
            where = _place(number, places[:-1])
            chosen = [
                tirx.Cast("int64", tirx.BufferLoad(indices, [*where, _int(d)]))
                for d in range(depth)
            ]

            def element(column: ir.Expr) -> tirx.Stmt:
                behind = _place(start + column, shape[depth:])
                new = tirx.BufferLoad(updates, [*where, *behind])
                at = [*chosen, *behind]
                return tirx.BufferStore(made, update(tirx.BufferLoad(made, at), new), at)

            return _vectors(width, lanes, element)

        return tirx.SeqStmt([_loop("row", rows, copied), _loop("number", count, updated)])

    blocks = columns // width
    if blocks > 1:
        return _loop("block", blocks, lambda b: task(b * width), tirx.ForKind.PARALLEL)
    return task(_int(0))


def _vectors(width: int, lanes: int, element: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    def vector(v: ir.Expr) -> tirx.Stmt:
        return _loop("lane", lanes, lambda i: element(v * lanes + i), tirx.ForKind.VECTORIZED)

    return _loop("vector", width // lanes, vector)


def _loop(
    name: str,
    extent: Any,
    body: Callable[[ir.Expr], tirx.Stmt],
    kind: int = tirx.ForKind.SERIAL,
) -> tirx.Stmt:
    if isinstance(extent, int) and extent == 1:
        return body(_int(0))
    var = tirx.Var(name, "int64")
    return tirx.For(var, _int(0), _int(extent), kind, body(var))


def _place(flat: ir.Expr, shape: Sequence[Any]) -> list[ir.Expr]:
    """Row-major coordinates of a flat position; only the first extent may be symbolic."""
    found: list[ir.Expr] = []
    for extent in reversed(shape[1:]):
        found.append(tirx.floormod(flat, _int(extent)))
        flat = tirx.floordiv(flat, _int(extent))
    return [*([flat] if shape else []), *reversed(found)]


def _extents(buffer: ir.Var) -> list[Any]:
    """List the extents: numbers, or expressions where they are symbolic."""
    return [int(d) if isinstance(d, tirx.IntImm) else d for d in buffer.shape]


def _int(value: Any) -> ir.Expr:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value
