"""Epilogue fusion into a scheduled contraction: it stores results in place of the sum."""

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx

from .....core.tir.expressions import call_name, loads, variables
from .....core.tir.loops import find, sequence, substitute, whole, with_fields
from .....core.untouched import SCHEDULED
from .....program.program import Program
from ..sum_of_products import Result, SumOfProducts


class CannotFuseEpilogue(Exception):
    """The schedule does more with the sum's buffer than store each finished element once."""


def fuse_epilogue(
    func: tirx.PrimFunc, result: str, program: Program, contraction: SumOfProducts
) -> tirx.PrimFunc:
    """Replace stores of the sum by stores of the results; parameters become the program's.

    Parameters
    ----------
    func
        A schedule of what :func:`..functions.prim_func.contraction_prim_func` makes.
    result
        Name of the parameter that stands for all results.

    Raises
    ------
    CannotGraft
        If the schedule accumulates in that buffer.
    """
    # Scheduling may renew the buffer; it is known by its position among the parameters.
    own = next(p for p in func.params if p.name == result)
    stores = [s for s in find(func.body, tirx.BufferStore) if s.buffer.same_as(own)]
    if len(stores) != 1 or any(x.source.same_as(own) for x in find(func.body, ir.TensorLoad)):
        raise CannotFuseEpilogue("the schedule accumulates in the result")
    body = func.body

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        return (
            store_results(contraction, node.indices, node.value)
            if node.buffer.same_as(own)
            else node
        )

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        if not any(w.source.same_as(own) for w in node.writes):
            return node
        reads = dict.fromkeys(x.source for r in contraction.results for x in loads(r.value))
        outputs = dict.fromkeys(r.buffer for r in contraction.results)
        kept = [r for r in node.reads if r.source not in reads]
        written = [w for w in node.writes if not w.source.same_as(own)]
        return with_fields(
            node,
            reads=[*kept, *map(whole, reads)],
            writes=[*written, *map(whole, outputs)],
        )

    def loop(node: tirx.For) -> tirx.For:
        writes = find(node.body, tirx.BufferStore)
        if node.kind != tirx.ForKind.VECTORIZED or not any(w.buffer.same_as(own) for w in writes):
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.UNROLLED, node.body)

    if not all(is_vector_code(r, contraction.total) for r in contraction.results):
        body = tvm_ffi.structural_map(body, (tirx.For, loop), order="post")
    body = tvm_ffi.structural_map(body, (s_tir.SBlock, block), order="post")
    body = tvm_ffi.structural_map(body, (tirx.BufferStore, store), order="post")
    params = [*program.inputs, *program.scalars, *program.outputs]
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
    return tirx.PrimFunc(params, body).with_attrs(attrs)


def store_results(
    contraction: SumOfProducts,
    place: Sequence[ir.Expr],
    *totals: ir.Expr,
    head_total: ir.Expr | None = None,
) -> tirx.Stmt:
    """Store the results of one element of the sum, or of one position of a column split."""
    axes = dict(zip((a.var for a in contraction.stage.axes), place, strict=True))
    sums = dict(zip(contraction.totals, totals, strict=True))
    if contraction.head_sum is not None:
        sums[contraction.head_sum.total] = head_total
    stmts: list[tirx.Stmt] = []
    for result in contraction.results:
        value = substitute(result.value, {**axes, **sums})
        where = [substitute(i, axes) for i in result.indices]
        stmt: tirx.Stmt = tirx.BufferStore(result.buffer, value, where)
        if result.condition is not None:
            stmt = tirx.IfThenElse(substitute(result.condition, axes), stmt, None)
        stmts.append(stmt)
    return sequence(stmts)


def is_vector_code(result: Result, total: ir.Var, lane: ir.Var | None = None) -> bool:
    """Whether vectors of a result need no branches, as TVM makes of choices among loads.

    Where a lane is given, choices that do not depend on it may be there: they are one for a vector.
    """
    calls = [
        c
        for c in find(result.value, ir.Call)
        if lane is None or call_name(c) != "if_then_else" or lane in variables(c.args[0])
    ]
    choices = find(result.value, tirx.Select)
    return (
        result.condition is None
        and not any(call_name(c) == "if_then_else" for c in calls)
        and not any(_reads(v, total) for c in choices for v in (c.true_value, c.false_value))
    )


def _reads(expr: ir.Expr, total: ir.Var) -> bool:
    return bool(loads(expr)) or total in variables(expr)
