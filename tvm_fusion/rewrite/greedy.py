"""The published search: the rule that saves most operations, again and again.

DNNFusion (Niu et al., PLDI 2021, section 4.2) takes, inside a partition, the rule with the largest
reduction in FLOPs, and repeats that until no rule reduces them. Kept to be compared with; it may
use the published rules, which take several of our laws at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .egraph import EGraph
from .head import Heads
from .law import Law
from .pattern import function, tensors
from .terms import Term

STEPS = 64

a, b, c = tensors("a b c")
absolute, sqrt, square = (function(f"relax.{name}") for name in ("abs", "sqrt", "square"))
total = function("relax.sum", "axes")


class Reciprocals(Law):
    """1 / a * (1 / (a * b)) = square(1 / a) * (1 / b)."""

    name = "published_reciprocals"
    before = (1 / a) * (1 / (a * b))
    after = square(1 / a) * (1 / b)
    needs = "reassociate"


class Roots(Law):
    """a * sqrt(b) * (sqrt(b) * c) = a * b * c."""

    name = "published_roots"
    before = (a * sqrt(b)) * (sqrt(b) * c)
    after = a * b * c
    needs = "reassociate"


class AbsoluteValues(Law):
    """abs(a) * b * abs(c) = abs(a * c) * b."""

    name = "published_absolute_values"
    before = absolute(a) * b * absolute(c)
    after = absolute(a * c) * b
    needs = "reassociate"


class SumsOfRows(Law):
    """a * sum(b, axes) * (sum(b, axes) * c) = a * square(sum(b, axes)) * c."""

    name = "published_sums_of_rows"
    before = (a * total(b)) * (total(b) * c)
    after = a * square(total(b)) * c
    needs = "reassociate"


class SquareOfASum(Law):
    """square(a + b) - (a + b) * c = (a + b) * (a + b - c)."""

    name = "published_square_of_a_sum"
    before = square(a + b) - (a + b) * c
    after = (a + b) * (a + b - c)
    needs = "reassociate"


#: Rules of DNNFusion's table 4 that take more than one of our laws; the others are among these.
PUBLISHED: tuple[Law, ...] = (
    Reciprocals(),
    Roots(),
    AbsoluteValues(),
    SumsOfRows(),
    SquareOfASum(),
)


def greedy(
    terms: tuple[Term, ...],
    heads: Heads,
    laws: Sequence[Law],
    operations: Callable[[tuple[Term, ...]], float],
) -> tuple[Term, ...]:
    """Rewrite step by step.

    Parameters
    ----------
    terms : tuple of Term
        What to rewrite.
    heads : Heads
        Of the terms.
    laws : sequence of Law
        Applied forwards and backwards, one at a time, at one place at a time.
    operations : callable
        Counts the operations of terms.

    Returns
    -------
    tuple of Term
        From which no single step saves operations.
    """
    directed = [d for law in laws for d in (law, law.backwards()) if d is not None]
    graph = EGraph(heads)  # of which no classes are made one: it only keeps equal terms together
    cost = operations(terms)
    for _ in range(STEPS):
        best = min(
            (
                (operations(after), i, after)
                for i, after in enumerate(_steps(terms, graph, directed))
            ),
            default=(cost, 0, terms),
        )
        if best[0] >= cost:
            break
        cost, _, terms = best
    return terms


def _steps(
    terms: tuple[Term, ...], graph: EGraph, laws: Sequence[Law]
) -> Iterator[tuple[Term, ...]]:
    """Write what every single application of a law makes of terms."""
    graph.rebuild()
    roots = graph.add_terms(terms)
    known: dict[int, Term] = {}
    for root in roots:
        _term(graph, root, known)
    matches = [(law, m) for law in laws for number in known for m in law.find(graph, number)]
    for law, match in matches:
        if law.check(match) is not None:
            continue
        written = law.rewrite(match)
        if written is None or graph[written].type is not graph[match.root].type:
            continue
        written, place = graph.find(written), graph.find(match.root)
        if written != place:
            new = {place: _term(graph, written, {})}
            yield tuple(_term(graph, root, new) for root in roots)


def _term(graph: EGraph, number: int, known: dict[int, Term]) -> Term:
    """Read the term of a class; a small constant's is its value."""
    number = graph.find(number)
    if number not in known:
        nodes = graph.classes[number].nodes
        node = next((n for n in nodes if n.head.call is None), next(iter(nodes)))
        operands = tuple(_term(graph, o, known) for o in node.operands)
        known[number] = Term(node.head, operands, graph.classes[number].type, nodes[node])
    return known[number]
