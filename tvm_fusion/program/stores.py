"""What a block stores, its bindings resolved and its index arithmetic widened to int64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.tirx import Buffer

from .._tvm.structural import structural_map, structural_walk
from ..core.expressions import call_name, has_load, int64, load, loads, map_loads, substitute
from .stage import Unstructured

_PURE = 1  # tirx.CallEffectKind.Pure; larger kinds read or write memory


@dataclass(frozen=True)
class Store:
    """``target[indices] = value``."""

    target: Buffer
    indices: tuple[ir.Expr, ...]
    value: ir.Expr


def stores_of(name: str, body: tirx.Stmt, start: Mapping[ir.Var, ir.Expr]) -> list[Store]:
    """List a block's stores, with bound values put in.

    Parameters
    ----------
    name : str
        The block, for reasons.
    body : tirx.Stmt
        Its body or its initialisation.
    start : mapping of Var to PrimExpr
        What its iterators stand for.

    Raises
    ------
    Unstructured
        If it holds more than bindings and stores.
    """
    values = dict(start)
    stores: list[Store] = []
    for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if not isinstance(stmt, tirx.Bind | tirx.BufferStore):
            raise Unstructured(f"Block {name} holds a {type(stmt).__name__}.")
        value = _expression(name, stmt.value, values)
        if isinstance(stmt, tirx.Bind):
            reads_written = {s.target for s in stores} & {x.source for x in loads(value)}
            values[stmt.var] = value
        else:
            direct = {x.source for x in loads(stmt.value)}
            reads_written = {s.target for s in stores} & direct
            indices = tuple(int64(_expression(name, i, values)) for i in stmt.indices)
            if any(has_load(i) for i in indices):
                raise Unstructured(f"Block {name} writes where data say (a scatter).")
            stores.append(Store(stmt.buffer, indices, value))
        if reads_written:
            raise Unstructured(f"Block {name} reads what it has just written.")
    if len({s.target for s in stores}) < len(stores) or not stores:
        raise Unstructured(f"Block {name} does not write each of its buffers once.")
    return stores


def _expression(name: str, expr: ir.Expr, values: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
    """Resolve variables and ``let``; widen indices and positions compared to int64."""
    expr = structural_map(
        expr, (tirx.Let, lambda let: substitute(let.body, {let.var: let.value})), order="post"
    )
    calls: list[ir.Call] = []
    structural_walk(expr, (ir.Call, calls.append))
    for call in calls:
        effect = call.op.get_attr("TCallEffectKind") if isinstance(call.op, ir.Op) else None
        if effect is None or effect > _PURE or call_name(call) == "address_of":
            raise Unstructured(f"Block {name} calls {call_name(call) or 'a function'}.")
    expr = substitute(expr, values)
    expr = map_loads(expr, lambda found: load(found.source, [_index(i) for i in found.indices]))
    narrow: list[ir.Expr] = []
    structural_walk(expr, (tirx.Cast, narrow.append))
    if not any(isinstance(cast.value, ir.Var) for cast in narrow):
        return expr
    return structural_map(expr, (_COMPARISONS, _widen_comparison), order="post")


_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def _index(index: ir.Expr) -> ir.Expr:
    return index if has_load(index) else int64(index)


def _widen_comparison(expr: ir.Expr) -> ir.Expr:
    is_position = all(
        str(e.ty.dtype).startswith("int") and not has_load(e) for e in (expr.a, expr.b)
    )
    return type(expr)(int64(expr.a), int64(expr.b)) if is_position else expr
