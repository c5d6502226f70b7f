"""Expressions over the leaves of a region: what an e-graph is built from and gives back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tvm import relax

from .head import Head


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
