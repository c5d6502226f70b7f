"""Expressions over the leaves of a region: what an e-graph is built from and gives back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from tvm import relax

from ..ecg.properties import properties_of
from .head import Head, type_key


@dataclass(frozen=True, eq=False)
class Term:
    """An operator and its operands; equal subexpressions are one object.

    Attributes
    ----------
    head : Head
        The operator, or a leaf.
    operands : tuple of Term
        In the order of the call's tensors.
    type : relax.TensorType
        Of the result.
    law : str
        The law that wrote it; empty for what the model has.
    """

    head: Head
    operands: tuple[Term, ...]
    type: relax.TensorType = field(repr=False)
    law: str = ""

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


class Structures:
    """Numbers of terms: equal ones for terms that differ in the order of operands at most."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, terms: Iterable[Term]) -> tuple[int, ...]:
        """Give the numbers of terms; leaves are equal where their heads are."""
        terms = tuple(terms)
        found: dict[int, int] = {}
        for term in subterms(terms):
            operands = tuple(found[id(o)] for o in term.operands)
            if len(operands) == 2 and properties_of(term.head.name).commutative:
                operands = min(operands), max(operands)
            key = (term.head.key, operands, type_key(term.type))
            found[id(term)] = self._numbers.setdefault(key, len(self._numbers))
        return tuple(found[id(term)] for term in terms)
