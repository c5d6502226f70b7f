"""Pieces of loops that the row schedules are built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from .stages import Axis

Body = Callable[[ir.Expr], tirx.Stmt]
Pairs = list[tuple[ir.Var, ir.Expr]]


def loop(
    name: str, extent: ir.Expr | int, body: Body, kind: int = tirx.ForKind.SERIAL
) -> tirx.Stmt:
    """Emit one loop from zero; a constant extent of one leaves only the body."""
    bound = integer(extent)
    if isinstance(bound, tirx.IntImm) and int(bound) == 1:
        return body(integer(0))
    var = tirx.Var(name, "int64")
    return tirx.For(var, integer(0), bound, kind, body(var))


def threads_of(name: str, extent: ir.Expr | int, axis: str, body: Body) -> tirx.Stmt:
    """Bind a loop to a thread axis, whatever its extent."""
    var = tirx.Var(name, "int64")
    thread = tirx.IterVar(None, tirx.Var(axis, "int64"), tirx.IterVar.ThreadIndex, axis)
    kind = tirx.ForKind.THREAD_BINDING
    return tirx.For(var, integer(0), integer(extent), kind, body(var), thread_binding=thread)


def nest(axes: Sequence[Axis], body: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
    """Emit serial loops over some axes, the first outermost."""

    def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
        if depth == len(axes):
            return body(done)
        axis = axes[depth]
        return loop(axis.var.name, axis.extent, lambda i: level(depth + 1, [*done, i]))

    return level(0, [])


def sequence(stmts: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement after the other."""
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))


def opaque(name: str, body: tirx.Stmt, buffers: Sequence[ir.Var] = ()) -> tirx.Stmt:
    """Wrap a statement into a block without iterators that owns some buffers."""
    block = s_tir.SBlock([], [], [], name, body, alloc_buffers=list(buffers))
    return s_tir.SBlockRealize([], tirx.IntImm("bool", 1), block)


def unflatten(flat: ir.Expr, axes: Sequence[Axis]) -> list[ir.Expr]:
    """Row-major coordinates of a flat position."""
    indices: list[ir.Expr] = []
    for axis in reversed(axes[1:]):
        extent = integer(axis.extent)
        indices.append(tirx.floormod(flat, extent))
        flat = tirx.floordiv(flat, extent)
    return [*([flat] if axes else []), *reversed(indices)]


def flatten(indices: Sequence[ir.Expr], extents: Sequence[ir.Expr]) -> ir.Expr:
    """Row-major position of coordinates; those of a flat position give that back."""
    parts: list[tuple[ir.Expr, ir.Expr]] = []
    for index, extent in zip(indices, map(integer, extents), strict=True):
        if parts and isinstance(index, tirx.FloorMod):
            outer, size = parts[-1]
            together = tvm_ffi.structural_equal(index.b, extent) and tvm_ffi.structural_equal(
                tirx.floordiv(index.a, extent), outer
            )
            if together:
                parts[-1] = index.a, size * extent
                continue
        parts.append((index, extent))
    flat = parts[0][0] if parts else integer(0)
    for index, extent in parts[1:]:
        flat = flat * extent + index
    return flat


def volume(axes: Sequence[Axis]) -> ir.Expr:
    """Product of the extents of axes."""
    return product([axis.extent for axis in axes])


def product(extents: Sequence[ir.Expr | int]) -> ir.Expr:
    """Product of extents."""
    total = integer(1)
    for extent in extents:
        total = total * integer(extent)
    return sym.Analyzer().simplify(total)


def static_volume(axes: Sequence[Axis], symbolic: int) -> int:
    """Product of the extents, a symbolic one taken for so many."""
    product = 1
    for axis in axes:
        product *= axis.size if axis.size is not None else symbolic
    return product


def integer(value: ir.Expr | int) -> ir.Expr:
    """Give an index expression the type of all loops here."""
    if isinstance(value, int):
        return tirx.IntImm("int64", value)
    if isinstance(value, tirx.IntImm):
        return tirx.IntImm("int64", int(value))
    return value if str(value.ty.dtype) == "int64" else tirx.Cast("int64", value)


def replace(
    expr: ir.Expr,
    pairs: Sequence[tuple[ir.Var, ir.Expr]],
    load: Callable[[ir.TensorLoad], ir.Expr],
) -> ir.Expr:
    """Substitute axes and redirect loads, the indices of which are substituted already."""

    def swap(var: ir.Var) -> ir.Expr:
        for old, new in pairs:
            if var.same_as(old):
                return _as_type(new, str(old.ty.dtype))
        return var

    callbacks = [(ir.TensorLoad, load), (ir.Var, swap)]
    return tvm_ffi.structural_map(expr, callbacks, order="post")


def _as_type(value: ir.Expr, dtype: str) -> ir.Expr:
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tirx.IntImm):
        return tirx.IntImm(dtype, int(value))
    return tirx.Cast(dtype, value)


def bind(axes: Sequence[Axis], values: Sequence[ir.Expr]) -> Pairs:
    """Pair axes with their values."""
    return [(axis.var, value) for axis, value in zip(axes, values, strict=True)]


def element(buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.TensorLoad:
    """Read an element."""
    return tirx.BufferLoad(buffer, list(indices))


def store_all(
    targets: Sequence[ir.Var], indices: Sequence[ir.Expr], values: Sequence[ir.Expr]
) -> tirx.Stmt:
    """Store values that read none of the targets."""
    return sequence(
        [tirx.BufferStore(t, v, list(indices)) for t, v in zip(targets, values, strict=True)]
    )


def assign(
    targets: Sequence[ir.Var], indices: Sequence[ir.Expr], values: Sequence[ir.Expr]
) -> tirx.Stmt:
    """Store values that may read all targets: several are computed before one is stored."""
    if len(targets) == 1:
        return store_all(targets, indices, values)
    names = [tirx.Var(f"new{i}", str(value.ty.dtype)) for i, value in enumerate(values)]
    binds = [tirx.Bind(name, value) for name, value in zip(names, values, strict=True)]
    return sequence([*binds, store_all(targets, indices, names)])
