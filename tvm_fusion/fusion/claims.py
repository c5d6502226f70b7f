"""What templates promise for a group: asked once per structure, the cheapest promise taken."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from ..core.template import Ban, Claim, Refusal, Template
from ..device import Device
from ..program.group import Group
from .cost import CostModel


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

    def claim(self, group: Group) -> Claim | Refusal:
        """Take the cheapest claim of a group, or join the templates' reasons into one refusal."""
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


def _joined(refusals: list[Refusal]) -> Refusal:
    """Keep the most telling reason: that of the template that came nearest, which is asked last."""
    telling = [r for r in refusals if r.code not in ("not_mine", "one_operator_only")]
    if not telling:
        return Refusal("no_template", "No template makes kernels of this shape.")
    return Refusal(telling[0].code, " ".join(dict.fromkeys(r.sentence for r in telling)))
