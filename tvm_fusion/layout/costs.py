"""What a group costs under layouts of its operands and results: claims of the group's variants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy

from ..core.contract.template import Claim
from ..ecg.graph import Value
from ..fusion.claims import ClaimBook
from ..program.group import Group
from ..program.layouts import Layout, name_of
from ..program.variant import laid_out, placeholder, read, variant, write
from .identity import is_identity

Assignment = tuple[Layout | None, ...]  # by the inputs and outputs that may have layouts


class GroupCosts:
    """Costs of one group under assignments of layouts, asked for one by one.

    Parameters
    ----------
    group
        Over the layout of the graph.
    images
        Inputs and outputs that may have a layout, and which.

    Attributes
    ----------
    images
        In the order of assignments.
    plain, all : Assignment
        No layouts, and those of all images.
    """

    def __init__(self, group: Group, images: Mapping[Value, Layout], book: ClaimBook) -> None:
        self._group, self._book = group, book
        self.images = list(images)
        self.plain: Assignment = (None,) * len(images)
        self.all: Assignment = tuple(images.values())
        self._known: dict[Assignment, float] = {}
        self._forbidden: set[Assignment] = set()
        self._held: Assignment | None = None
        self.sizes = [value.bytes for value in self.images]

    @property
    def version(self) -> int:
        """A number that grows whenever a cost has become known."""
        return len(self._known) + len(self._forbidden)

    def held(self, assignment: Assignment) -> GroupCosts:
        """Return the costs of one call of the group, which allows no other assignment."""
        costs = copy(self)  # what becomes known of one is known of the other
        costs._held = assignment
        return costs

    def name(self, assignment: Assignment) -> str:
        """Name the layouts of an assignment, each once."""
        pairs = zip(self.images, assignment, strict=True)
        return " and ".join(dict.fromkeys(name_of(x, len(v.shape)) for v, x in pairs))

    def is_known(self, assignment: Assignment) -> bool:
        """Whether the cost is that of a claim."""
        return assignment in self._known

    def ask(self, assignment: Assignment) -> float:
        """Microseconds under an assignment by the cheapest claim; infinite if all refuse.

        What copies a tensor onto itself costs nothing.
        """
        if assignment not in self._known:
            self._known[assignment] = self._asked(assignment)
        return math.inf if assignment in self._forbidden else self._known[assignment]

    def claim(self, assignment: Assignment) -> Claim | None:
        """Return the cheapest claim under an assignment."""
        found = self._book.claim(self._under(assignment))
        return found if isinstance(found, Claim) else None

    def _under(self, assignment: Assignment) -> Group:
        if assignment == self.plain:
            return self._group
        pairs = zip(self.images, assignment, strict=True)
        return variant(self._group, {v: x for v, x in pairs if x is not None}).group

    def _asked(self, assignment: Assignment) -> float:
        if is_identity(self._under(assignment)):
            return 0.0
        claim = self.claim(assignment)
        return math.inf if claim is None else self._book.us(claim)

    def forbid(self, assignment: Assignment) -> None:
        """Take an assignment out of the choice."""
        self._forbidden.add(assignment)

    def cost(self, assignment: Assignment) -> float:
        """Tell the cost if it is known, else a guess that is rather too small.

        A group that reads one layout and writes another one is taken to cost what the cheaper of
        both everywhere costs. So what is chosen by costs that turn out to be guesses is asked for,
        and chosen again.
        """
        if assignment in self._forbidden or self._held not in (None, assignment):
            return math.inf
        known = self._known.get(assignment)
        if known is not None:
            return known
        guess = min(self.ask(self.plain), self.ask(self.all))
        return self._known.get(assignment, guess)  # it may be one of those


def copy_cost(value: Value, layout: Layout, to_graph: bool, book: ClaimBook) -> float:
    """Microseconds of a kernel that does nothing but change a tensor's layout."""
    claim = book.claim(layout_kernel(value, layout, to_graph))
    return book.us(claim) if isinstance(claim, Claim) else math.inf


def layout_kernel(value: Value, layout: Layout, to_graph: bool, naming=placeholder) -> Group:
    """Make the group of one index map."""
    source = Value(value.name, value.type)
    if to_graph:
        op = read(laid_out(source, layout), source, layout, naming)
        op.results[0].leaves = True
        return Group([op])
    return Group([write(source, layout, naming)])
