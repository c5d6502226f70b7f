"""Expressions become Relax again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import ir, relax
from tvm.ir import GenericConst

from .head import Head, Heads
from .regions import Region
from .terms import Term, subterms


class Emitter:
    """Writes terms into a block, each once.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Inside the block.
    leaves : Mapping of Head to ir.Expr
        What inputs and large constants are.
    values : Mapping of Head to GenericConst
        The small constants.
    current : callable
        Gives what stands for a leaf now.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        leaves: Mapping[Head, ir.Expr],
        values: Mapping[Head, GenericConst],
        current: Callable[[ir.Expr], ir.Expr] = lambda leaf: leaf,
    ) -> None:
        self._builder = builder
        self._leaves = leaves
        self._values = values
        self._current = current
        self._done: dict[int, ir.Expr] = {}
        self._kept: list[Term] = []  # whose numbers must not be given again

    def place(self, term: Term, known: ir.Expr) -> None:
        """Say what stands for a term that is not to be written."""
        self._kept.append(term)
        self._done[id(term)] = known

    def emit(self, term: Term) -> ir.Expr:
        """Write a term after its operands; returns its variable or constant."""
        for part in subterms([term]):
            if id(part) not in self._done:
                self._kept.append(part)
                self._done[id(part)] = self._write(part)
        return self._done[id(term)]

    def _write(self, term: Term) -> ir.Expr:
        if term.head.call is None:
            known = self._values.get(term.head)
            return self._current(self._leaves[term.head]) if known is None else known
        operands = [self._done[id(o)] for o in term.operands]
        return self._builder.emit(term.head.apply(operands))


def function_of(
    terms: tuple[Term, ...],
    region: Region,
    heads: Heads,
) -> tuple[relax.Function, list[int]]:
    """Write terms as a function of the region's leaves.

    Returns
    -------
    func : relax.Function
        Large constants are parameters, and so is what is computed from constants alone: folding
        does that.
    constants : list of int
        Their positions.
    """
    params: dict[Head, relax.Var] = {}
    fixed: list[int] = []
    for i, (head, leaf) in enumerate(zip(region.heads(heads), region.leaves, strict=True)):
        if head in heads.values:
            continue
        if isinstance(leaf, GenericConst):
            fixed.append(len(params))
        params[head] = relax.Var(f"x{i}", leaf.ty)
    folded = _folded(terms, heads)
    variables = [relax.Var(f"folded{i}", term.type) for i, term in enumerate(folded)]
    fixed.extend(range(len(params), len(params) + len(folded)))
    builder = relax.BlockBuilder()
    with builder.function("main", [*params.values(), *variables]):
        with builder.dataflow():
            emitter = Emitter(builder, params, heads.values)
            for term, variable in zip(folded, variables, strict=True):
                emitter.place(term, variable)
            written = [emitter.emit(term) for term in terms]
            outputs = [builder.emit_output(value) for value in written]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()["main"], fixed


def _folded(terms: tuple[Term, ...], heads: Heads) -> list[Term]:
    """List the operators on constants that others read, or that are results."""
    known: dict[Term, bool] = {}
    found: dict[Term, None] = {}
    for term in subterms(terms):
        if term.head.call is None:
            known[term] = term.head in heads.values or term.head.key[0] == "constant"
        else:
            known[term] = all(known[o] for o in term.operands)
            if not known[term]:
                found.update((o, None) for o in term.operands)
    found.update((term, None) for term in terms)
    return [term for term in found if known[term] and term.head.call is not None]
