"""Attribute a change to laws: replay the search with subsets of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..egraph.changes import Change, Gain
from ..egraph.egraph import EGraph
from ..egraph.head import Heads
from ..egraph.law import Law
from ..egraph.regions import Region
from ..egraph.saturate import Limits, Use, saturate
from ..egraph.terms import Numbering, Term, expression, subterms
from .difference import differences, readable

_SECONDS = 5.0  # of one change; a form not reached in time is told with the laws that wrote it


@dataclass(frozen=True)
class Account:
    """What a change was, and by whom.

    Attributes
    ----------
    laws : tuple of str
        As :class:`tvm_fusion.rewrite.egraph.changes.Change` says.
    before, after : str
        The parts that differ.
    place : Term
        The first of them, as it was.
    is_replayed : bool
        Whether the laws alone were seen to reach the form.
    """

    laws: tuple[str, ...]
    before: str
    after: str
    place: Term
    is_replayed: bool


class Accountant:
    """Accounts for changes."""

    def __init__(self, heads: Heads, laws: Sequence[Law], limits: Limits) -> None:
        self._heads, self._laws = heads, tuple(laws)
        self._limits = limits
        self._numbering = Numbering(expression)
        self._until = 0.0

    def account(
        self, before: tuple[Term, ...], after: tuple[Term, ...], named: Sequence[str]
    ) -> Account:
        """Say what differs between two forms, and which laws lead from one to the other.

        Parameters
        ----------
        named : sequence of str
            Laws that wrote operators of the second one: a first guess, as a law may have written
            an operator that others would have written, too.
        """
        self._until = time.monotonic() + _SECONDS
        guess = [law for law in self._laws if law.name in named]
        classes, fired = self._replay(before, after, guess)
        if classes is None:
            classes, fired = self._replay(before, after, self._laws)
        if classes is None:
            own = {self._numbering(t): self._numbering(t) for t in subterms([*before, *after])}
            pieces, own = self._pieces(before, after, own)
            return self._written(pieces, own, tuple(named), is_replayed=False)
        pieces, classes = self._pieces(before, after, classes)
        needed: dict[str, None] = {}
        is_replayed = True
        for old, new in pieces:
            fewest = self._fewest((old,), (new,), [w for w in self._laws if w.name in fired])
            is_replayed &= fewest is not None
            needed.update(dict.fromkeys(fired if fewest is None else fewest))
        return self._written(pieces, classes, tuple(sorted(needed)), is_replayed)

    def _pieces(
        self, before: tuple[Term, ...], after: tuple[Term, ...], classes: dict[int, int]
    ) -> tuple[list[tuple[Term, Term]], dict[int, int]]:
        """Find the parts that differ, and what is equal in them.

        Those are the results where only orders of operands differ: ``exp(a * b) + exp(b * a)``
        becomes ``exp(a * b) + exp(a * b)`` by no law. Then terms are equal only to themselves.
        """
        found = differences(before, after, self._numbering, classes)
        if found:
            return found, classes
        number, pairs = self._numbering, list(zip(before, after, strict=True))
        changed = [(a, b) for a, b in pairs if number(a) != number(b)] or pairs[:1]
        return changed, {number(t): number(t) for t in subterms([*before, *after])}

    def _written(
        self,
        pieces: list[tuple[Term, Term]],
        classes: dict[int, int],
        laws: tuple[str, ...],
        is_replayed: bool,
    ) -> Account:
        texts = [readable(old, new, self._heads, self._numbering, classes) for old, new in pieces]
        before, after = ("; ".join(column) for column in zip(*texts, strict=True))
        return Account(laws, before, after, pieces[0][0], is_replayed)

    def _fewest(
        self, old: tuple[Term, ...], new: tuple[Term, ...], laws: list[Law]
    ) -> tuple[str, ...] | None:
        """Leave laws out one by one as long as the others reach the form; None: they do not."""
        if self._replay(old, new, laws)[0] is None:
            return None
        for law in reversed(laws):
            fewer = [other for other in laws if other is not law]
            if self._replay(old, new, fewer)[0] is not None:
                laws = fewer
        # Out of time nothing was left out any more.
        return tuple(w.name for w in laws) if time.monotonic() < self._until else None

    def _replay(
        self, before: Sequence[Term], after: Sequence[Term], laws: Sequence[Law]
    ) -> tuple[dict[int, int] | None, list[str]]:
        """Search from one form with some laws, until the other one is found.

        Returns
        -------
        classes : dict of int to int or None
            What the numbered terms of both are equal to; None if it is not found.
        fired : list of str
            Laws that told something.
        """
        graph = EGraph(self._heads)
        roots = graph.add_terms(before)
        uses: dict[str, Use] = {}
        for step in range(self._limits.rounds + 1):
            left = self._until - time.monotonic()
            if left <= 0:
                break
            limit: str | None = "rounds"
            if step:
                once = replace(self._limits, rounds=1, seconds=min(left, self._limits.seconds))
                limit = saturate(graph, laws, once, uses)
            found = graph.lookup(after)
            if found == [graph.find(root) for root in roots]:
                terms = list(subterms([*before, *after]))
                numbers = zip(terms, graph.lookup(terms), strict=True)
                classes = {self._numbering(t): n for t, n in numbers if n is not None}
                return classes, [name for name, use in uses.items() if use.fired]
            if limit != "rounds":
                break
        return None, []


def variable_of(region: Region, term: Term, heads: Heads) -> str:
    """Name the variable of a region that a term, or an equal one, is bound to."""
    numbering = Numbering(expression)
    wanted = numbering(term)
    every = replace(region, outputs=tuple(b.var for b in region.bindings))
    for var, own in zip(every.outputs, every.terms(heads), strict=True):
        if numbering(own) == wanted:
            return str(var.name)
    return str(region.outputs[-1].name)


def change_of(function: str, variable: str, account: Account, gain: Gain) -> Change:
    """Make the record of a change."""
    return Change(
        function,
        variable,
        account.laws,
        account.before,
        account.after,
        gain,
        account.is_replayed,
    )
