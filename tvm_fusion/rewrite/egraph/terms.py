"""Expressions over the leaves of a region: what an e-graph is built from and gives back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from tvm import relax

from ...ecg.properties import properties_of
from .head import Head, type_key


@dataclass(frozen=True, eq=False)
class Term:
    """An operator and its operands; equal subexpressions are one object."""

    head: Head  # the operator, or a leaf
    operands: tuple[Term, ...]  # in the order of the call's tensors
    type: relax.TensorType = field(repr=False)  # of the result
    law: str = ""  # the law that wrote it; empty for what the model has

    def __str__(self) -> str:
        name = self.head.name.removeprefix("relax.").removeprefix("nn.")
        if not self.operands:
            return str(self.head.key) if self.head.call is None else name
        return f"{name}({', '.join(map(str, self.operands))})"


def subterms(terms: Iterable[Term]) -> Iterator[Term]:
    """Yield every distinct subterm once, operands first."""
    seen: set[int] = set()
    stack = [(term, False) for term in reversed(list(terms))]
    while stack:
        term, is_done = stack.pop()
        if is_done:
            yield term
        elif id(term) not in seen:
            seen.add(id(term))
            stack.append((term, True))
            stack.extend((operand, False) for operand in reversed(term.operands))


class Numbering:
    """Numbers terms: equal ones where their keys are, in which operands are numbers already.

    Parameters
    ----------
    key
        Takes a term and the numbers of its operands.
    """

    def __init__(self, key: Callable[[Term, tuple[int, ...]], Hashable]) -> None:
        self._key = key
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Term, int] = {}

    def __call__(self, term: Term) -> int:
        """Return a term's number."""
        if term not in self._known:
            for part in subterms([term]):
                if part not in self._known:
                    key = self._key(part, tuple(self._known[o] for o in part.operands))
                    self._known[part] = self._numbers.setdefault(key, len(self._numbers))
        return self._known[term]

    def of(self, terms: Iterable[Term]) -> tuple[int, ...]:
        """Return the numbers of several terms."""
        return tuple(map(self, terms))


def expression(term: Term, operands: tuple[int, ...]) -> Hashable:
    """Key of a :class:`Numbering` of terms that are the same, operand by operand."""
    return term.head, operands


def structure(term: Term, operands: tuple[int, ...]) -> Hashable:
    """Key of a :class:`Numbering` of terms that differ in the order of operands at most."""
    if len(operands) == 2 and properties_of(term.head.name).commutative:
        operands = min(operands), max(operands)
    return term.head.key, operands, type_key(term.type)
