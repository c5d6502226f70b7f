"""What templates promise for a group: asked once per structure, the cheapest promise taken."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from tvm.target import Target

from ..device import Device, parse
from ..ecg.legalize import remembering_legalizations
from ..schedule.template import Claim, Refusal, Template
from .cost import CostModel
from .group import Group
from .records import default_records

Ban = tuple[str, Hashable]  # template name and group structure, after a broken claim


class ClaimBook:
    """All promises made while planning, by the structure of the group.

    Parameters
    ----------
    templates : sequence of Template
        Asked in this order; of equally cheap claims the first is taken, a fallback's only if there
        is no other.
    device : Device
        What claims and costs are for.
    cost : CostModel
        Compares claims.
    banned : set of (str, Hashable)
        Claims that emission has broken: not to be made again.

    Attributes
    ----------
    questions, asked : int
        How many there were; about how many structures templates were asked.
    """

    def __init__(
        self,
        templates: Sequence[Template],
        device: Device,
        cost: CostModel,
        banned: frozenset[Ban] = frozenset(),
    ) -> None:
        self._templates = templates
        self.device = device
        self.cost = cost
        self._banned = banned
        self._known: dict[Hashable, Claim | Refusal] = {}
        self.asked = 0
        self.questions = 0

    def claim(self, group: Group) -> Claim | Refusal:
        """Take the cheapest claim of a group, or join the templates' reasons into one refusal."""
        self.questions += 1
        known = self._known.get(group.key)
        if known is None:
            known = self._known[group.key] = self._ask(group)
        return replace(known, group=group) if isinstance(known, Claim) else known

    def us(self, claim: Claim) -> float:
        """Microseconds that a claim is expected to take."""
        return self.cost.cost(claim).us

    def _ask(self, group: Group) -> Claim | Refusal:
        self.asked += 1
        best: Claim | None = None
        refusals: list[Refusal] = []
        for template in self._templates:
            if template.is_fallback and best is not None:
                continue
            if (template.name, group.key) in self._banned:
                refusals.append(Refusal("claim_broken", f"{template.name} broke its promise."))
                continue
            answer = template.claim(group, self.device)
            if isinstance(answer, Refusal):
                refusals.append(answer)
            elif best is None or self.us(answer) < self.us(best):
                best = answer
        return best or _joined(refusals)


_books: ContextVar[dict[str, ClaimBook] | None] = ContextVar("books", default=None)


@contextmanager
def remembering() -> Iterator[dict[str, ClaimBook]]:
    """Let rewriting and planning inside of ``with`` ask once about equal groups.

    Inside of another one, that one remembers.

    Yields
    ------
    dict of str to ClaimBook
        By target.
    """
    outer = _books.get()
    if outer is not None:
        yield outer
        return
    books: dict[str, ClaimBook] = {}
    token = _books.set(books)
    try:
        with remembering_legalizations():
            yield books
    finally:
        _books.reset(token)


def claim_book(target: Target, banned: frozenset[Ban] = frozenset()) -> ClaimBook:
    """Give the claims made for a target inside of :func:`remembering`, or a new book."""
    from ..schedule.templates import templates

    books = _books.get()
    if books is None or banned:
        books = {}
    elif str(target) in books:
        return books[str(target)]
    device = parse(target).device
    cost = CostModel(device, default_records())
    book = books[str(target)] = ClaimBook(templates(target), device, cost, banned)
    return book


def _joined(refusals: list[Refusal]) -> Refusal:
    """Keep the most telling reason: that of the template that came nearest, which is asked last."""
    telling = [r for r in refusals if r.code not in ("not_mine", "one_operator_only")]
    if not telling:
        return Refusal("no_template", "No template makes kernels of this shape.")
    return Refusal(telling[0].code, " ".join(dict.fromkeys(r.sentence for r in telling)))
