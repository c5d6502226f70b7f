"""The interface of a float32 PrimFunc, narrowed to half types.

Each load of a narrowed parameter widens, each store of a result rounds once; what lies between
stays float32.
"""

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..._tvm.ir.buffer import declare
from ...core.tir.loops import with_fields

HALF = ("float16", "bfloat16")
WIDE = "float32"


def narrow(func: tirx.PrimFunc, dtypes: Sequence[str | None]) -> tirx.PrimFunc:
    """Convert parameters of a float32 PrimFunc to a half type; what is between stays float32.

    Intermediate buffers that only move elements of narrowed inputs (padding, transposition) are
    narrowed too, which is exact. A result that is accumulated in place gets a float32 buffer and a
    block that rounds it at the end.

    Parameters
    ----------
    func
        Unscheduled, as legalization makes it, with one root block.
    dtypes
        New element type for each parameter; None leaves it.

    Returns
    -------
    tirx.PrimFunc
        The attributes are kept.
    """
    root = func.body.block
    written = {hash(s.buffer) for s in _find(root, tirx.BufferStore)}
    kept_wide = _accumulated(root)
    renamed: dict[int, ir.Var] = {}  # by the old buffer's hash
    rounded: list[tuple[ir.Var, ir.Var]] = []
    params = []
    for param, dtype in zip(func.params, dtypes, strict=True):
        if dtype is None:
            params.append(param)
            continue
        new = _retype(param, dtype)
        params.append(new)
        if hash(param) in written and hash(param) in kept_wide:
            wide = _retype(param, WIDE, f"{param.name}_wide")
            renamed[hash(param)] = wide
            rounded.append((wide, new))
        else:
            renamed[hash(param)] = new
    body = _rename(func.body, renamed)
    body = _narrow_moves(body)
    if rounded:
        body = _append_rounding(body, rounded)
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _accumulated(root: s_tir.SBlock) -> set[int]:
    """Buffers that are read inside the function: an accumulator, or the input of a later block."""
    return {hash(load.source) for load in _find(root, ir.TensorLoad)}


def _rename(stmt: Any, renamed: dict[int, ir.Var]) -> Any:
    """Exchange buffers; loads of narrowed ones widen, stores into them round."""

    def load(node: ir.TensorLoad) -> ir.Expr:
        new = renamed.get(hash(node.source))
        return node if new is None else _widened(tirx.BufferLoad(new, node.indices))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        new = renamed.get(hash(node.buffer))
        if new is None:
            return node
        return tirx.BufferStore(new, _rounded(node.value, new), node.indices)

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        new = renamed.get(hash(node.source))
        return node if new is None else tirx.BufferRegion(new, node.region)

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        if not any(hash(buffer) in renamed for buffer in node.alloc_buffers):
            return node
        buffers = [renamed.get(hash(buffer), buffer) for buffer in node.alloc_buffers]
        return with_fields(node, alloc_buffers=buffers)

    return tvm_ffi.structural_map(
        stmt,
        (
            (ir.TensorLoad, load),
            (tirx.BufferStore, store),
            (ir.TensorRegion, region),
            (s_tir.SBlock, block),
        ),
        order="post",
    )


def _narrow_moves(body: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    """Narrow intermediate buffers whose elements are elements of narrowed buffers, or zero."""
    while True:
        stores: dict[int, list[tirx.BufferStore]] = {}
        for store in _find(body, tirx.BufferStore):
            stores.setdefault(hash(store.buffer), []).append(store)
        renamed = {}
        for buffer in body.block.alloc_buffers:
            moved = {_moved_type(store.value) for store in stores.get(hash(buffer), [])}
            if len(moved) == 1 and (dtype := moved.pop()) in HALF:
                renamed[hash(buffer)] = _retype(buffer, dtype)
        if not renamed:
            return body
        body = _rename(body, renamed)


def _moved_type(value: ir.Expr) -> str | None:
    """Half type that a float32 value was widened from; ``zero`` fits all; None if computed."""
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) == WIDE:
        inner = str(value.value.ty.dtype)
        return inner if isinstance(value.value, ir.TensorLoad) and inner in HALF else None
    if isinstance(value, tirx.FloatImm):
        return "zero" if value.value == 0 else None
    branches = _branches(value)
    if not branches:
        return None
    types = {_moved_type(branch) for branch in branches} - {"zero"}
    return types.pop() if len(types) == 1 else ("zero" if not types else None)


def _branches(value: ir.Expr) -> tuple[ir.Expr, ...]:
    if isinstance(value, tirx.Select):
        return value.true_value, value.false_value
    if isinstance(value, ir.Call) and str(value.op.name).endswith(".if_then_else"):
        return tuple(value.args[1:])
    return ()


def _rounded(value: ir.Expr, buffer: ir.Var) -> ir.Expr:
    """Convert to a buffer's type; a value that only moves is not widened in between."""
    dtype = str(buffer.ty.dtype)
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == dtype:
        return value.value
    if isinstance(value, tirx.FloatImm):
        return tirx.FloatImm(dtype, value.value)
    if _moved_type(value) == dtype:
        then, otherwise = (_rounded(branch, buffer) for branch in _branches(value))
        if isinstance(value, tirx.Select):
            return tirx.Select(value.condition, then, otherwise)
        return tirx.if_then_else(value.args[0], then, otherwise)
    return tirx.Cast(dtype, value)


def _widened(load: ir.TensorLoad) -> ir.Expr:
    return load if str(load.ty.dtype) == WIDE else tirx.Cast(WIDE, load)


def _append_rounding(
    body: s_tir.SBlockRealize, pairs: Sequence[tuple[ir.Var, ir.Var]]
) -> s_tir.SBlockRealize:
    root = body.block
    copies = [_rounding_nest(wide, narrowed) for wide, narrowed in pairs]
    stmts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    buffers = [*root.alloc_buffers, *(wide for wide, _ in pairs)]
    block = with_fields(root, body=tirx.SeqStmt([*stmts, *copies]), alloc_buffers=buffers)
    return s_tir.SBlockRealize(body.iter_values, body.predicate, block)


def _rounding_nest(wide: ir.Var, narrowed: ir.Var) -> tirx.Stmt:
    """Copy a buffer element by element, converting."""
    shape = list(narrowed.ty.shape)
    # A block needs an iterator, also where the tensor has no axes.
    extents = shape or [tirx.IntImm("int64", 1)]
    zero = tirx.IntImm("int64", 0)
    loops = [tirx.Var(f"ax{i}", e.ty.dtype) for i, e in enumerate(extents)]
    variables = [tirx.Var(f"v_ax{i}", e.ty.dtype) for i, e in enumerate(extents)]
    iters = [
        tirx.IterVar(ir.Range(tirx.IntImm(str(e.ty.dtype), 0), e), v, tirx.IterVar.DataPar)
        for e, v in zip(extents, variables, strict=True)
    ]
    index = variables if shape else []
    point = [ir.Range.from_min_extent(v, tirx.IntImm(str(v.ty.dtype), 1)) for v in index]
    block = s_tir.SBlock(
        iters,
        [tirx.BufferRegion(wide, point)],
        [tirx.BufferRegion(narrowed, point)],
        f"{narrowed.name}_rounded",
        tirx.BufferStore(
            narrowed, tirx.Cast(str(narrowed.ty.dtype), tirx.BufferLoad(wide, index)), index
        ),
    )
    stmt: tirx.Stmt = s_tir.SBlockRealize(loops if shape else [zero], True, block)
    if shape:
        for loop, extent in reversed(list(zip(loops, extents, strict=True))):
            start = tirx.IntImm(str(extent.ty.dtype), 0)
            stmt = tirx.For(loop, start, extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _retype(buffer: ir.Var, dtype: str, name: str | None = None) -> ir.Var:
    return declare(buffer.ty.shape, dtype, name or buffer.name)


def _find(node: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, found.append))
    return found
