"""The published search: the rule that saves most operations, again and again.

DNNFusion (Niu et al., PLDI 2021, section 4.2) takes, inside a partition, the rule with the largest
reduction in FLOPs, and repeats that until no rule reduces them. It may use the published rules,
which take several of our laws at once.

Models gain nothing by it. It is in the package, and not in `benchmarks/rewriting`, which compares
both searches, because ``--rewrite greedy`` and ``FusionConfig(rewrite="greedy")`` are options that
the site and tutorial 05 show: whoever writes a law sees what the published search does with it,
in a compilation that is the same but for that.
"""

from collections.abc import Callable, Iterator, Sequence

import tvm
from tvm.ir.transform import PassContext

from ...core.current_target import current_target
from ..egraph.facts.weights import operations, total
from ..egraph.graph import EGraph
from ..egraph.head import Heads
from ..egraph.law import Law
from ..egraph.pattern import function, tensors
from ..egraph.regions import Region
from ..egraph.saturate import Use
from ..egraph.terms import Term
from ..nonfinite import NonFinite
from .search import Found, Searcher, rewrite_regions

# Rules of DNNFusion (Niu et al., PLDI 2021, table 4) that take more than one of our laws.
#
# The search does not need them, but finds what they say; the greedy one, to be compared with, does.


a, b, c = tensors("a b c")
absolute, sqrt, square = (function(f"relax.{name}") for name in ("abs", "sqrt", "square"))
summed = function("relax.sum", "axes")


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
    before = (a * summed(b)) * (summed(b) * c)
    after = a * square(summed(b)) * c
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


STEPS = 64


def greedy(
    terms: tuple[Term, ...],
    heads: Heads,
    laws: Sequence[Law],
    count: Callable[[tuple[Term, ...]], float],
    told: Sequence[NonFinite] = (),
) -> tuple[tuple[Term, ...], list[str]]:
    """Rewrite step by step, until no step saves operations.

    Parameters
    ----------
    laws
        Applied forwards and backwards, one at a time.
    count
        Counts the operations of terms.
    told
        Which non-finite values of the terms are told from numbers.

    Returns
    -------
    tuple of Term, list of str
        The last form, and the laws of the steps.
    """
    directed = [d for law in laws for d in (law, law.backwards()) if d is not None]
    graph = EGraph(heads)  # of which no classes are made one: it only keeps equal terms together
    cost, taken = count(terms), []
    for _ in range(STEPS):
        found = list(_steps(terms, graph, directed, told))
        costs = [count(after) for after, _ in found]
        if not found or min(costs) >= cost:
            break
        cost = min(costs)
        terms, law = found[costs.index(cost)]
        taken.append(law)
    return terms, taken


def _steps(
    terms: tuple[Term, ...], graph: EGraph, laws: Sequence[Law], told: Sequence[NonFinite]
) -> Iterator[tuple[tuple[Term, ...], str]]:
    """Write what every single application of a law makes of terms."""
    graph.rebuild()
    roots = graph.add_terms(terms)
    if told:
        graph.read_from(roots, told)
    known: dict[int, Term] = {}
    for root in roots:
        _term(graph, root, known)
    matches = [(law, m) for law in laws for number in known for m in law.find(graph, number)]
    for law, match in matches:
        if law.refusal(match) is not None:
            continue
        written = law.rewrite(match)
        if written is None or graph[written].type is not graph[match.root].type:
            continue
        written, place = graph.find(written), graph.find(match.root)
        if written != place:
            new = {place: _term(graph, written, {})}
            yield tuple(_term(graph, root, new) for root in roots), law.name


def _term(graph: EGraph, number: int, known: dict[int, Term]) -> Term:
    """Read the term of a class; a small constant's is its value."""
    number = graph.find(number)
    if number not in known:
        nodes = graph.classes[number].nodes
        node = next((n for n in nodes if n.head.call is None), next(iter(nodes)))
        operands = tuple(_term(graph, o, known) for o in node.operands)
        known[number] = Term(node.head, operands, graph.classes[number].type, nodes[node])
    return known[number]


def flops(terms: tuple[Term, ...]) -> float:
    """Count operations as published: what is known at compile time counts nothing."""
    return total(terms, operations)


class GreedySearcher(Searcher):
    """Searches regions as published; the planner only says what came of it."""

    def _search(
        self, region: Region, before: tuple[Term, ...], told: tuple[NonFinite, ...]
    ) -> Found:
        flags = {law.needs for law in self._laws}
        published = (law for law in PUBLISHED if law.needs in flags)
        after, taken = greedy(before, self.heads, (*published, *self._laws), flops, told)
        for name in taken:
            use = self.uses.setdefault(name, Use())
            use.tried += 1
            use.fired += 1
        cost = self._estimate(before, region)
        if not taken:
            return Found(before, before, cost, cost)
        estimated = self._estimate(after, region)
        return Found(before, after, cost, estimated, tuple(sorted(set(taken))))


@tvm.transform.module_pass(opt_level=0, name="GreedyEquivalents")
class GreedyEquivalents:
    """Rewrite regions by the rule that saves most operations, again and again.

    Parameters
    ----------
    laws : sequence of Law, optional
        All that hold without a flag, by default.

    Raises
    ------
    UserError
        If there is no current target.

    Examples
    --------
    >>> from tvm_fusion.rewrite.laws import allowed
    >>> mod = module(lambda x, y, z: x * z + y * z, (8,), (8,), (8,))
    >>> with cpu:
    ...     calls(GreedyEquivalents(allowed(["reassociate"]))(mod))
    ['relax.add', 'relax.multiply']
    """

    def __init__(self, laws: Sequence[Law] | None = None) -> None:
        self._laws = laws

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function; each changed region is recorded."""
        from ..rules import laws

        chosen = laws() if self._laws is None else self._laws
        return rewrite_regions(mod, GreedySearcher(chosen, current_target("GreedyEquivalents")))
