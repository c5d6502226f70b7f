"""Combiners of reductions, read from the update that TensorIR writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from ....core.tir.expressions import loads, substitute, variables


@dataclass(frozen=True)
class Combiner:
    """How a reduction combines its results with one more term."""

    # Placeholders of the partial results and of the new terms, one each for a target.
    results: tuple[ir.Var, ...]
    terms: tuple[ir.Var, ...]
    values: tuple[ir.Expr, ...]  # the new results; they mention placeholders only

    @property
    def threads_can_share(self) -> bool:
        """Whether TVM lowers it across the threads of a GPU."""
        if len(self.values) == 1:
            return isinstance(self.values[0], (tirx.Add, tirx.Mul, tirx.Max, tirx.Min))
        index, value = self.values[0], self.values[-1]
        return (
            len(self.values) == 2
            and isinstance(index, tirx.Select)
            and isinstance(value, (tirx.Select, tirx.Max, tirx.Min))
        )

    @property
    def in_order(self) -> Combiner:
        """The same for terms whose first part, an index, is larger than all before it.

        The better, or the first of equals, is then kept by one comparison.
        """
        earlier = tirx.LT(self.results[0], self.terms[0])

        def kept(either: tirx.Or) -> ir.Expr:
            better, tie = either.a, either.b
            strict = {tirx.GT: tirx.GE, tirx.LT: tirx.LE}.get(type(better))
            if strict is None or not isinstance(tie, tirx.And):
                return either
            equal = tirx.EQ(better.a, better.b)
            is_first = tvm_ffi.structural_equal(tie, tirx.And(equal, earlier))
            return strict(better.a, better.b) if is_first else either

        values = [tvm_ffi.structural_map(v, (tirx.Or, kept), order="post") for v in self.values]
        return replace(self, values=tuple(values))

    def __call__(self, results: Sequence[ir.Expr], terms: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Combine results with terms."""
        pairs = dict(zip((*self.results, *self.terms), (*results, *terms), strict=True))
        return [substitute(value, pairs) for value in self.values]


def split_update(
    name: str, targets: Sequence[ir.Var], values: Sequence[ir.Expr]
) -> tuple[tuple[ir.Expr, ...], Combiner]:
    """Split ``old + term`` (or max, select, ...) into the terms and the combiner."""
    results = tuple(_placeholder("result", value) for value in values)
    terms = tuple(_placeholder("term", value) for value in values)

    old_values = dict(zip(targets, results, strict=True))

    def old(load: ir.TensorLoad) -> ir.Expr:
        return old_values.get(load.source, load)

    updates = [tvm_ffi.structural_map(v, (ir.TensorLoad, old), order="post") for v in values]
    found = [_term(update, result) for update, result in zip(updates, results, strict=True)]
    if any(term is None for term in found):
        raise ValueError(f"{name}: the update is not a sum, product, extremum or selection")

    def take(expr: ir.Expr) -> ir.Expr:
        for term, new in zip(found, terms, strict=True):
            if tvm_ffi.structural_equal(expr, term):
                return new
        return expr

    combined = tuple(tvm_ffi.structural_map(u, (ir.Expr, take), order="pre") for u in updates)
    allowed = [*results, *terms]
    for value in combined:
        if loads(value) or any(v not in allowed for v in variables(value)):
            raise ValueError(f"{name}: a reduction whose update depends on the axes")
    return tuple(found), Combiner(
        results, terms, tuple(_results_first(v, results) for v in combined)
    )


def _results_first(value: ir.Expr, results: Sequence[ir.Var]) -> ir.Expr:
    """Write ``term < result`` as ``result > term``, by which TVM recognizes arg-reductions."""
    mirrored = {tirx.LT: tirx.GT, tirx.LE: tirx.GE, tirx.GT: tirx.LT, tirx.GE: tirx.LE}

    def is_result(expr: ir.Expr) -> bool:
        return any(expr.same_as(result) for result in results)

    def flip(kind: type):
        return lambda found: (
            mirrored[kind](found.b, found.a)
            if is_result(found.b) and not is_result(found.a)
            else found
        )

    return tvm_ffi.structural_map(value, [(kind, flip(kind)) for kind in mirrored], order="post")


def _term(update: ir.Expr, result: ir.Var) -> ir.Expr | None:
    if isinstance(update, tirx.Select):
        pair = update.true_value, update.false_value
    elif isinstance(update, (tirx.Add, tirx.Mul, tirx.Max, tirx.Min, tirx.And, tirx.Or)):
        pair = update.a, update.b
    else:
        return None
    for one, other in (pair, pair[::-1]):
        if one.same_as(result):
            return other
    return None


def _placeholder(name: str, value: ir.Expr) -> ir.Var:
    return tirx.Var(name, str(value.ty.dtype))
