"""Emit the terms of an e-graph as Relax bindings."""

from collections.abc import Callable, Mapping

from tvm import ir, relax
from tvm.ir import GenericConst

from ...frontend.normalize.constants.stored import SMALL
from .facts.extents import nbytes
from .head import Head, Heads
from .regions import Region
from .terms import Term, subterms


class Emitter:
    """Writes terms into a block, each once.

    Parameters
    ----------
    leaves
        What inputs and large constants are.
    current
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
        Large constants are parameters, and so are expressions of constants, which are folded later.
    constants : list of int
        Their positions.
    """
    terms, folded = _fold(terms)
    params, fixed = parameters(region, heads)
    for i, leaf in enumerate(folded):
        fixed.append(len(params))
        params[leaf.head] = relax.Var(f"c{i}", leaf.type)
    func = build_function(params, heads, lambda _, emitter: [emitter.emit(term) for term in terms])
    return func, fixed


def parameters(region: Region, heads: Heads) -> tuple[dict[Head, relax.Var], list[int]]:
    """Make parameters of a region's leaves, but for small constants.

    Returns
    -------
    params : dict of Head to relax.Var
        In order.
    constants : list of int
        Positions of those that stand for large constants.
    """
    params: dict[Head, relax.Var] = {}
    fixed: list[int] = []
    for i, (head, leaf) in enumerate(zip(region.heads(heads), region.leaves, strict=True)):
        if head in heads.values:
            continue
        if isinstance(leaf, GenericConst):
            fixed.append(len(params))
        params[head] = relax.Var(f"x{i}", leaf.ty)
    return params, fixed


def build_function(
    params: dict[Head, relax.Var],
    heads: Heads,
    write: Callable[[relax.BlockBuilder, Emitter], list[ir.Expr]],
) -> relax.Function:
    """Make a function of one dataflow block."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            written = write(builder, Emitter(builder, params, heads.values))
            outputs = [builder.emit_output(value) for value in written]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()["main"]


def _fold(terms: tuple[Term, ...]) -> tuple[tuple[Term, ...], list[Term]]:
    """Put leaves for expressions of constants that ``FoldConstants`` will store."""
    new: dict[Term, Term] = {}
    sources: dict[Term, dict[Head, int]] = {}  # bytes of the constants behind a constant
    folded: list[Term] = []

    def final(term: Term) -> Term:
        if term not in sources or not term.operands:
            return new[term]
        if new[term] is term:
            head = Head("leaf", ("constant", "folded", len(folded)), None)
            new[term] = Term(head, (), term.type)
            folded.append(new[term])
        return new[term]

    for term in subterms(terms):
        new[term] = term
        if not term.operands:
            size = nbytes(term.type)
            if term.head.call is None and term.head.key[0] != "input" and size is not None:
                sources[term] = {term.head: size}
            continue
        if all(o in sources for o in term.operands):
            behind = {h: n for o in term.operands for h, n in sources[o].items()}
            size = nbytes(term.type)
            if size is not None and size <= max(SMALL, sum(behind.values())):
                sources[term] = behind
                continue
        operands = tuple(final(o) for o in term.operands)
        if any(a is not b for a, b in zip(operands, term.operands, strict=True)):
            new[term] = Term(term.head, operands, term.type, term.law)
    return tuple(final(term) for term in terms), folded
