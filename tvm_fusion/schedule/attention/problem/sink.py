"""Attention sinks: a score besides those of the keys, whose share of the softmax no value has.

Written out it is a column behind the scores, which is cut off behind the softmax:

    s = concat([q . k, sink]);  weights = softmax(s)[:-1]

Kernels leave it out, and add ``exp(sink - maximum)`` to the sum of a row when it is complete.
"""

from tvm import ir, sym, tirx

from ...._tvm.ir.structural import structural_map
from ....core.tir.expressions import choice, load, map_loads
from ....core.tir.loops import index, substitute


def split_sink(
    term: ir.Expr, along: ir.Var, extent: ir.Expr, keys: ir.Expr
) -> tuple[ir.Expr, ir.Expr | None] | None:
    """Split what a reduction adds up into that of the keys and that of a sink behind them.

    Parameters
    ----------
    term
        Of an element along the axis that is reduced.
    extent, keys
        Of that axis, and how many of it are keys. ``None`` is returned where neither all nor all
        but one are.
    """
    analyzer = sym.Analyzer()
    if analyzer.can_prove_equal(extent, keys):
        return term, None
    if not analyzer.can_prove_equal(extent, keys + 1):
        return None
    behind = substitute(term, {along: index(keys)})
    return of_keys(term, along, keys), _resolved(behind, analyzer)


def of_keys(term: ir.Expr, along: ir.Var, keys: ir.Expr) -> ir.Expr:
    """Resolve the choices in a term that a position among the keys decides."""
    analyzer = sym.Analyzer()
    analyzer.bind(along, ir.Range.from_min_extent(index(0), index(keys)))
    return _resolved(term, analyzer)


def _resolved(term: ir.Expr, analyzer: sym.Analyzer) -> ir.Expr:
    def chosen(expr: ir.Expr) -> ir.Expr:
        parts = choice(expr)
        if parts is None:
            return expr
        condition, then, otherwise = parts
        if analyzer.can_prove(condition):
            return then
        return otherwise if analyzer.can_prove(tirx.Not(condition)) else expr

    def simplified(read: ir.TensorLoad) -> ir.Expr:
        return load(read.source, [analyzer.simplify(i) for i in read.indices])

    return map_loads(structural_map(term, ((tirx.Select, ir.Call), chosen)), simplified)
