"""What templates promise for a group: asked once per structure, the cheapest promise taken."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from tvm.target import Target

from ..core.template import Ban, Claim, Refusal, Template
from ..core.templates import templates
from ..device import Device, device_of
from ..ecg.graph import Operator, Value
from ..ecg.legalize import remembering_legalizations
from ..program.group import Group
from ..program.layouts import Layout, layout_for
from ..program.variant import variant
from .cost import CostModel
from .records import default_records

_FALLBACK = "one_operator_only"
_BROKEN = Refusal("claim_broken", "Making the kernels of this group failed after it was claimed.")


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
        self._known: dict[Hashable, Claim | RefusedByAll] = {}
        self._laid_out: dict[Hashable, Claim | None] = {}
        self._images: frozenset[Value] = frozenset()
        self.asked = 0
        self.questions = 0

    def claim(self, group: Group) -> Claim | RefusedByAll:
        """Take the cheapest claim of a group, or tell why each template refuses it."""
        self.questions += 1
        known = self._answer(group)
        if isinstance(known, Claim):
            return replace(known, group=group, laid_out=self._in_layouts(group))
        return known

    @contextmanager
    def laying_out(self, images: frozenset[Value]) -> Iterator[None]:
        """Compare groups, inside of ``with``, in the layouts that their images may get."""
        before, self._images = self._images, images
        try:
            yield
        finally:
            self._images = before

    def may_lay_out(self, op: Operator) -> bool:
        """Whether an operand or result may get a layout, in which a reshape of it is no view."""
        return any(map(self._layout_of, (*op.tensors, *op.results)))

    def _layout_of(self, value: Value) -> Layout | None:
        return layout_for(value.shape, self.device) if value in self._images else None

    def _in_layouts(self, group: Group) -> Claim | None:
        layouts = {
            value: layout
            for value in (*group.inputs, *group.outputs)
            if (layout := self._layout_of(value)) is not None
        }
        if not layouts:
            return None
        position = {v: k for k, v in enumerate((*group.inputs, *group.outputs))}
        key = group.key, tuple((position[v], layout) for v, layout in layouts.items())
        if key not in self._laid_out:
            answer = self._answer(variant(group, layouts).group)
            self._laid_out[key] = answer if isinstance(answer, Claim) else None
        return self._laid_out[key]

    def us(self, claim: Claim) -> float:
        """Microseconds that a claim is expected to take."""
        return self.cost.cost(claim).us

    def _answer(self, group: Group) -> Claim | RefusedByAll:
        known = self._known.get(group.key)
        if known is None:
            known = self._known[group.key] = self._ask(group)
        return known

    def _ask(self, group: Group) -> Claim | RefusedByAll:
        self.asked += 1
        best: Claim | None = None
        refusals: dict[str, Refusal] = {}
        for template in self._templates:
            if template.is_fallback and best is not None:
                continue
            if (template.name, group.key) in self._banned:
                refusals[template.name] = _BROKEN
                continue
            answer = template.claim(group, self.device)
            if isinstance(answer, Refusal):
                refusals[template.name] = answer
            elif best is None or self.us(answer) < self.us(best):
                best = answer
        return best or RefusedByAll(refusals)


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
    books = _books.get()
    if books is None or banned:
        books = {}
    elif str(target) in books:
        return books[str(target)]
    device = device_of(target)
    cost = CostModel(device, default_records())
    book = books[str(target)] = ClaimBook(templates(target), device, cost, banned)
    return book


class RefusedByAll(Refusal):
    """Why no template takes a group.

    Parameters
    ----------
    by_template : Mapping of str to Refusal
        By the template's name, in the order of asking.
    """

    def __init__(self, by_template: Mapping[str, Refusal]) -> None:
        self._far = {n: r for n, r in by_template.items() if r.code == "not_mine"}
        near = {n: r for n, r in by_template.items() if r.code not in ("not_mine", _FALLBACK)}
        code = next(iter(near.values())).code if near else "no_template"
        super().__init__(code, _sentences(near or self._far))

    def nearest(self, templates: Container[str]) -> Refusal:
        """Tell the reasons of the templates that came nearest.

        Those are the ones that take groups of this kind but for something; if there is none, the
        given ones, which make kernels of the parts that the group was to be made of.
        """
        ours = {n: r for n, r in self._far.items() if n in templates}
        return Refusal(self.code, _sentences(ours)) if self.code == "no_template" and ours else self


def _sentences(refusals: Mapping[str, Refusal]) -> str:
    """Join what templates say, each sentence once."""
    names: dict[str, list[str]] = {}
    for name, refusal in refusals.items():
        names.setdefault(refusal.sentence, []).append(name)
    return " ".join(f"{', '.join(by)}: {sentence}" for sentence, by in names.items())
