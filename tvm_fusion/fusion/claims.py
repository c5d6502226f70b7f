"""The claims of templates on groups: asked once per structure, the cheapest chosen."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from tvm.target import Target

from ..core.contract.template import Ban, Claim, Refusal, Template
from ..core.contract.templates import templates
from ..core.decisions import Decision, record
from ..core.names.source import joined, names_of
from ..core.tir.loops import constant
from ..device import Device, device_of
from ..ecg.graph import Operator, Value
from ..ecg.legalization.legalize import remembering_legalizations
from ..ecg.mapping_types.table import MappingType
from ..program.group import Group
from ..program.layouts import Layout, layout_for
from ..program.variant import unique, variant
from .cost import CostModel, Estimate
from .profile import Profile, ProfiledGroup, current_profile
from .refusals import RefusedByAll
from .reshapes import is_view


def _is_stored_by_parts(op: Operator) -> bool:
    """Whether kernels of reductions, such as convolutions, compute each input for it alone.

    :mod:`tvm_fusion.deploy.memory.concat_parts` lets them do so. What maps alone compute is rather
    computed by the kernel that joins it.
    """
    if op.record is None or op.record.name != "relax.concat":
        return False
    values = (*op.tensors, *op.results)
    is_static = all(constant(d) is not None for value in values for d in value.shape)
    is_once = len(set(op.tensors)) == len(op.tensors) > 1
    return is_static and is_once and all(map(_is_reduced, op.tensors))


def _free(claim: Claim) -> Claim:
    """Price a claim as nothing: what it promises others do."""
    return replace(claim, launches=0, bytes=0, flops=0, priced_flops=0, laid_out=None)


def _is_reduced(value: Value) -> bool:
    """Whether a value that is read once comes from a reduction, through maps of it."""
    op = value.producer
    if op is None or op.is_opaque or is_view(op):
        return False
    while op.type is not MappingType.MANY_TO_MANY:
        if value.leaves or len(value.consumers) != 1 or op.type is MappingType.OPAQUE:
            return False
        before = [v for v in op.tensors if not v.is_parameter and v.producer is not None]
        if len(before) != 1:
            return False
        (value,) = before
        op = value.operator
    return not value.leaves and len(value.consumers) == 1


NOISE = 0.02  # of measured times: what is closer is a tie, of which the model decides
FAR = 3.0  # times what the model says of another template, beyond which it is not measured
_BROKEN = Refusal("claim_broken", "Making the kernels of this group failed after it was claimed.")


class ClaimBook:
    """All promises made while planning, by the structure of the group.

    Parameters
    ----------
    templates
        Asked in this order; of equally cheap claims the first is taken, a fallback's only if there
        is no other.
    device
        What claims and costs are for.
    banned : set of (str, Hashable)
        Claims that emission has broken: not to be made again.

    Attributes
    ----------
    questions, asked : int
        How many there were; about how many structures templates were asked.
    answers : dict
        What else is known of structures, while planning: see :mod:`tvm_fusion.core.once`.
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
        self._others: dict[Hashable, tuple[Claim, ...]] = {}
        self._laid_out: dict[Hashable, Claim | None] = {}
        self._images: frozenset[Value] = frozenset()
        self._compared: dict[Hashable, tuple[Estimate, ...] | None] = {}
        self._asks_profile = False
        self.answers: dict[Hashable, object] = {}
        self.asked = 0
        self.questions = 0

    def claim(self, group: Group) -> Claim | RefusedByAll:
        """Take the cheapest claim of a group, or tell why each template refuses it."""
        self.questions += 1
        known = self._answer(group)
        if not isinstance(known, Claim):
            return known
        found = replace(known, group=group, laid_out=self._in_layouts(group))
        if self.device.kind == "llvm" and len(group.members) == 1:
            return _free(found) if _is_stored_by_parts(group.members[0]) else found
        return found

    def measured_best(self, claim: Claim) -> Claim:
        """Take another template's kernels for a group where the profile database has them faster.

        Such as one kernel for long rows, or two that split them. What the model has far behind is
        not asked about.
        """
        for other in self._others.get(claim.group.key, ()):
            if self.us(other) > FAR * self.us(claim):
                continue
            other = replace(other, group=claim.group, laid_out=None)
            now, then = self.compare([claim], [other])
            if then.source == "measured" and then.us < now.us * (1 - NOISE):
                sentence = (
                    f"Kernels by {other.template.name}: {then.us:.1f} us, by {claim.template.name} "
                    f"{now.us:.1f} us ({then.origin})."
                )
                title = claim.group.title
                record(
                    Decision(
                        title,
                        "",
                        "accepted",
                        "template_measured",
                        sentence,
                        measured_us=then.us,
                        producer_names=names_of(joined(m.sources for m in claim.group.members)),
                    )
                )
                claim = other
        return claim

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
        return (
            layout_for(value.shape, self.device, str(value.type.dtype))
            if value in self._images
            else None
        )

    def _in_layouts(self, group: Group) -> Claim | None:
        layouts = self._layouts(group)
        if not layouts:
            return None
        position = {v: k for k, v in enumerate((*group.inputs, *group.outputs))}
        key = group.key, tuple((position[v], layout) for v, layout in layouts.items())
        if key not in self._laid_out:
            answer = self._answer(variant(group, layouts).group)
            self._laid_out[key] = answer if isinstance(answer, Claim) else None
        return self._laid_out[key]

    def us(self, claim: Claim) -> float:
        """Microseconds that a claim takes by the model: what is measured has other errors."""
        return self.cost.estimate(claim)

    def compare(
        self, *alternatives: Sequence[Claim], may_measure: bool = True
    ) -> tuple[Estimate, ...]:
        """Tell what ways of doing the same cost: by the profile database, else by the model.

        Parameters
        ----------
        *alternatives
            Each a way to do the same: claims that run one after the other.
        may_measure
            Whether the question is one for the database.

        Returns
        -------
        tuple of Estimate
            One per alternative, all from the same source.
        """
        profile = current_profile() if self._asks_profile and may_measure else None
        if profile is not None:
            position = tuple(tuple(self._names(c) for c in claims) for claims in alternatives)
            if position not in self._compared:
                self._compared[position] = self._profiled(profile, alternatives)
            found = self._compared[position]
            if found is not None:
                return found
        return self.cost.compare(*alternatives)

    @staticmethod
    def _names(claim: Claim) -> Hashable:
        laid_out = claim.laid_out and (claim.laid_out.template.name, claim.laid_out.group.key)
        return claim.template.name, claim.group.key, laid_out

    def _profiled(
        self, profile: Profile, alternatives: Sequence[Sequence[Claim]]
    ) -> tuple[Estimate, ...] | None:
        parts = [[self._part(claim) for claim in claims] for claims in alternatives]
        whole = [[part for part in row if part is not None] for row in parts]
        if any(len(row) < len(claims) for row, claims in zip(whole, alternatives, strict=True)):
            return None
        answer = profile.ask(whole, self.device)
        if answer is None:
            return None
        source = profile.source(answer)
        return tuple(Estimate(us, "measured", source) for us in answer.us)

    def _part(self, claim: Claim) -> ProfiledGroup | None:
        """Take a claim as it will run: in layouts; None if its template does not take these."""
        layouts = self._layouts(claim.group)
        if not layouts:
            is_view_only = all(map(is_view, claim.group.members))
            return ProfiledGroup.plain("" if is_view_only else claim.template.name, claim.group)
        if claim.laid_out is None:
            return None
        found = variant(claim.group, layouts, unique)
        return ProfiledGroup.laid_out(claim.laid_out.template.name, found.group, found.original)

    @contextmanager
    def asking_profile(self) -> Iterator[None]:
        """Let comparisons, inside of ``with``, be answered by the profile database."""
        self._asks_profile = True
        try:
            yield
        finally:
            self._asks_profile = False

    def _layouts(self, group: Group) -> dict[Value, Layout]:
        return {
            value: layout
            for value in (*group.inputs, *group.outputs)
            if (layout := self._layout_of(value)) is not None
        }

    def _answer(self, group: Group) -> Claim | RefusedByAll:
        known = self._known.get(group.key)
        if known is None:
            known = self._known[group.key] = self._ask(group)
        return known

    def _ask(self, group: Group) -> Claim | RefusedByAll:
        self.asked += 1
        found: list[Claim] = []
        refusals: dict[str, Refusal] = {}
        for template in self._templates:
            if template.is_fallback and found:
                continue
            if (template.name, group.key) in self._banned:
                refusals[template.name] = _BROKEN
                continue
            answer = template.claim(group, self.device)
            if isinstance(answer, Refusal):
                refusals[template.name] = answer
            else:
                found.append(answer)
        if not found:
            return RefusedByAll(refusals)
        best = min(found, key=self.us)  # of equals the first
        self._others[group.key] = tuple(other for other in found if other is not best)
        return best


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
    """Return the claims made for a target inside of :func:`remembering`, or a new book."""
    books = _books.get()
    if books is None or banned:
        books = {}
    elif str(target) in books:
        return books[str(target)]
    device = device_of(target)
    book = ClaimBook(templates(target), device, CostModel(device), banned)
    books[str(target)] = book
    return book
