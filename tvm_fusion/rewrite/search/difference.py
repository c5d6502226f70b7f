"""Where two forms of an expression differ, written for a reader."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import ascii_lowercase

import numpy as np
from tvm import relax, tirx

from ...ecg.properties import properties_of
from ...ecg.record import describe
from ..egraph.head import Head, Heads, is_tensor
from ..egraph.pattern import Apply, Number, Pattern, Tensor
from ..egraph.terms import Numbering, Term, subterms

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
    before, after : sequence of Term
        Forms of the same values.
    classes : Mapping of int to int
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
