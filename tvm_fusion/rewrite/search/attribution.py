"""Attribute a change to laws: replay the search with subsets of them."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

import numpy as np
from tvm import relax, tirx

from ...core.names.source import names_of, sources_of
from ...ecg.properties import properties_of
from ...ecg.record import describe
from ..egraph.changes import Change, Gain
from ..egraph.graph import EGraph
from ..egraph.head import Head, Heads, is_tensor
from ..egraph.law import Law
from ..egraph.pattern import Apply, Number, Pattern, Tensor
from ..egraph.regions import Region
from ..egraph.saturate import Limits, Use, saturate
from ..egraph.terms import Numbering, Term, expression, subterms

_SECONDS = 5.0  # of one change; a form not reached in time is told with the laws that wrote it


@dataclass(frozen=True)
class Account:
    """What a change was, and by whom."""

    laws: tuple[str, ...]  # as :class:`tvm_fusion.rewrite.egraph.changes.Change` says
    # The parts that differ.
    before: str
    after: str
    place: Term  # the first of them, as it was
    is_replayed: bool  # whether the laws alone were seen to reach the form


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
        named
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


def variable_of(region: Region, term: Term, heads: Heads) -> relax.Var:
    """Return the variable of a region that a term, or an equal one, is bound to."""
    numbering = Numbering(expression)
    wanted = numbering(term)
    every = replace(region, outputs=tuple(b.var for b in region.bindings))
    for var, own in zip(every.outputs, every.terms(heads), strict=True):
        if numbering(own) == wanted:
            return var
    return region.outputs[-1]


def change_of(function: str, variable: relax.Var, account: Account, gain: Gain) -> Change:
    """Make the record of a change."""
    return Change(
        function,
        str(variable.name),
        account.laws,
        account.before,
        account.after,
        gain,
        account.is_replayed,
        names_of(sources_of(variable)),
    )


# Where two forms of an expression differ, written for a reader.
#: Integers as TVMScript writes them.
_SCRIPT = re.compile(r"T\.u?int\d+\((-?\d+)\)")


def differences(
    before: Sequence[Term],
    after: Sequence[Term],
    numbering: Numbering,
    classes: Mapping[int, int],
) -> list[tuple[Term, Term]]:
    """Find the smallest parts that were replaced.

    Parameters
    ----------
    before, after
        Forms of the same values.
    classes
        What each number is equal to: two operators are the same only if what they read is equal,
        operand by operand.

    Returns
    -------
    list of (Term, Term)
        Distinct pairs.
    """
    found: dict[tuple[int, int], tuple[Term, Term]] = {}
    seen: set[tuple[int, int]] = set()

    def visit(old: Term, new: Term) -> None:
        key = (numbering(old), numbering(new))
        if key[0] == key[1] or key in seen:
            return
        seen.add(key)
        for operands in _orders(new):
            pairs = list(zip(old.operands, operands, strict=False))
            if (
                old.head is new.head
                and len(old.operands) == len(operands)
                and all(classes[numbering(a)] == classes[numbering(b)] for a, b in pairs)
            ):
                break
        else:
            found[key] = (old, new)
            common = _common(old, new, numbering, classes)
            above, below = (_cut(root, common, numbering, classes) for root in (old, new))
            pairs = [(term, below[number]) for number, term in above.items() if number in below]
        for a, b in pairs:
            visit(a, b)

    for old, new in zip(before, after, strict=True):
        visit(old, new)
    return list(found.values())


def _common(
    old: Term, new: Term, numbering: Numbering, classes: Mapping[int, int]
) -> frozenset[int]:
    """Find the classes that stand in both forms, below their roots."""
    one, other = (
        {classes[numbering(part)] for part in subterms([root]) if part is not root}
        for root in (old, new)
    )
    return frozenset(one & other)


def _cut(
    root: Term, common: frozenset[int], numbering: Numbering, classes: Mapping[int, int]
) -> dict[int, Term]:
    """Return the first terms below a root that are of common classes, by class."""
    found: dict[int, Term] = {}
    seen: set[int] = set()
    stack = list(root.operands)
    while stack:
        term = stack.pop()
        number = numbering(term)
        if number in seen:
            continue
        seen.add(number)
        if classes[number] in common:
            found.setdefault(classes[number], term)
        else:
            stack.extend(term.operands)
    return found


def _orders(term: Term) -> list[tuple[Term, ...]]:
    """List the orders in which an operator may read its operands."""
    swaps = properties_of(term.head.name).commutative and len(term.operands) == 2
    return [term.operands, term.operands[::-1]] if swaps else [term.operands]


def readable(
    old: Term, new: Term, heads: Heads, numbering: Numbering, classes: Mapping[int, int]
) -> tuple[str, str]:
    """Write two forms of a value; what they have in common are letters.

    Small letters stand for tensors, capitals for constants; numbers are constants, too.
    """
    common = _common(old, new, numbering, classes)

    def number(term: Term) -> int:
        """Return a number for a term: below 0 for common classes, which the root may be of too."""
        known = classes[numbering(term)]
        return -1 - known if known in common and term not in (old, new) else numbering(term)

    writer = _Writer(heads, number)
    return writer.write(old), writer.write(new, in_order=True)


class _Writer:
    """Writes terms as patterns, which know their operators' symbols and precedence."""

    def __init__(self, heads: Heads, numbering: Callable[[Term], int]) -> None:
        self._heads, self._numbering = heads, numbering
        self._names: dict[int, Pattern] = {}
        self._letters = {False: _letters(ascii_lowercase), True: _letters(ascii_lowercase.upper())}

    def write(self, term: Term, in_order: bool = False) -> str:
        """Write one form; an operator whose result is read twice is written once, with a name.

        Operands that may be swapped come in the alphabet's order if the form's own says nothing.
        """
        readers = Counter(self._numbering(o) for part in self._parts(term) for o in part.operands)
        patterns: dict[int, Pattern] = {}
        named: list[str] = []
        for part in reversed(list(self._parts(term))):
            number = self._numbering(part)
            operands = [self._name(o) or patterns[self._numbering(o)] for o in part.operands]
            if in_order and len(_orders(part)) > 1:
                operands.sort(key=lambda o: (isinstance(o, Number), str(o).lstrip("(")))
            pattern = Apply(part.head.name, tuple(operands), _attributes(part.head))
            if readers[number] > 1 and part is not term:
                letter = next(self._letters[False])
                named.append(f"{letter} = {pattern}")
                patterns[number] = Tensor(letter)
            else:
                patterns[number] = pattern
        text = str(self._name(term) or patterns[self._numbering(term)])
        return f"{text} with {', '.join(named)}" if named else text

    def _parts(self, term: Term) -> Iterator[Term]:
        """Yield the operators that no letter stands for, readers first, each once."""
        order: dict[int, Term] = {}

        def visit(part: Term) -> None:
            number = self._numbering(part)
            if number not in order and self._name(part) is None:
                for operand in part.operands:
                    visit(operand)
                order[number] = part

        visit(term)
        yield from reversed(order.values())

    def _name(self, term: Term) -> Pattern | None:
        number = self._numbering(term)
        if number not in self._names:
            is_leaf = term.head.call is None
            if not is_leaf and number >= 0:
                return None
            self._names[number] = self._leaf(term) if is_leaf else self._letter(False)
        return self._names[number]

    def _leaf(self, term: Term) -> Pattern:
        known = self._heads.values.get(term.head)
        if known is not None:
            value = np.asarray(known.value.numpy(), "float64").reshape(-1)
            if value.size and (value == value[0]).all():
                return Number(float(value[0]))
        return self._letter(term.head.key[0] != "input")

    def _letter(self, is_constant: bool) -> Pattern:
        return Tensor(next(self._letters[is_constant]))


def _letters(alphabet: str) -> Iterator[str]:
    yield from alphabet
    number = 1
    while True:
        yield from (f"{letter}{number}" for letter in alphabet)
        number += 1


def _attributes(head: Head) -> str:
    """Write the attributes that are set, and the operands that are no tensors."""
    if head.call is None:
        return ""
    others = [_plain(arg) for arg in head.call.args if not is_tensor(arg)]
    attrs = describe(head.call).attrs
    parts = [part for part in others if part]
    parts += [
        f"{name}={list(value) if isinstance(value, tuple) else value}"
        for name, value in attrs.items()
        if value not in (None, False, (), "", "void")
    ]
    return ", ".join(parts)


def _plain(arg: object) -> str:
    if isinstance(arg, relax.Tuple):
        return ""  # of tensors, which are operands
    if isinstance(arg, relax.ShapeExpr):
        return f"({', '.join(map(_plain, arg.values))})"
    if isinstance(arg, tirx.IntImm | tirx.FloatImm):
        return str(arg.value)
    return _SCRIPT.sub(r"\1", str(arg))
