"""Variants of a plan: some groups fused, all others taken apart into single operators."""

from collections.abc import Hashable, Mapping, Sequence

from ...core.contract.template import Claim, Refusal
from ...ecg.operator import Operator
from ...fusion.claims import ClaimBook
from ...fusion.cost import CostModel
from ...fusion.planning.plan import Plan
from ...fusion.planning.views import is_view
from ...program.group import Group
from ..explain.run import member_of
from ..planned import PlannedModel, Plans
from .result import FusedGroup


class Variants:
    """The ways of fusing some of a model's groups.

    Parameters
    ----------
    planned
        The model with its own plans.

    Attributes
    ----------
    candidates : list of Claim
        Groups of several operators, in order.
    """

    def __init__(self, planned: PlannedModel) -> None:
        from ...core.contract.templates import templates

        device = planned.spec.device
        asked = templates(planned.spec.tvm_target())
        self.book = ClaimBook(asked, device, CostModel(device))
        self._plans = planned.plans
        self.candidates = [
            claim for plan in self._plans.values() for claim in plan.claims if len(claim.group) > 1
        ]

    def plans(self, kept: Mapping[Claim, Claim]) -> Plans:
        """Write a variant as plans.

        Parameters
        ----------
        kept
            By candidate, what stays fused of it: itself, or a claim for some of its members.
        """
        return {block: self._variant(plan, kept) for block, plan in self._plans.items()}

    def fused(self, claims: Sequence[Claim]) -> Plans:
        """Write the variant in which some candidates are fused as planned, and no others."""
        return self.plans({claim: claim for claim in claims})

    def equal(self, claim: Claim) -> list[Claim]:
        """List the candidates that have the same kernels."""
        return [other for other in self.candidates if _key(other) == _key(claim)]

    def describe(self, claim: Claim) -> FusedGroup:
        """Tell what a candidate is."""
        names = {op.name for op in claim.group.members}
        plan = next(p for p in self._plans.values() if claim in p.claims)
        return FusedGroup(
            claim.group.title,
            claim.template.name,
            tuple(map(member_of, claim.group.members)),
            len(self.equal(claim)),
            tuple(d for d in plan.decisions if d.producer in names and d.consumer in names),
        )

    def smaller(self, claim: Claim) -> list[Claim]:
        """Claims of the same template for a group without one of its first or last operators."""
        inside = set(claim.group.members)
        found = []
        for op in claim.group.members:
            has_before = any(v.producer in inside for v in op.tensors)
            has_behind = any(c in inside for v in op.results for c in v.consumers)
            if has_before and has_behind:
                continue
            answer = self.book.claim(Group(m for m in claim.group.members if m is not op))
            if isinstance(answer, Claim) and answer.template.name == claim.template.name:
                found.append(answer)
        return found

    def unfused(self, operators: Sequence[Operator]) -> list[Claim]:
        """Claim operators one by one; views need no kernel."""
        return [self._alone(op) for op in operators if not is_view(op)]

    def _variant(self, plan: Plan, kept: Mapping[Claim, Claim]) -> Plan:
        claims: list[Claim] = []
        for claim in plan.claims:
            whole = claim if len(claim.group) == 1 else kept.get(claim)
            if whole is not None:
                claims.append(whole)
            inside = set(whole.group.members) if whole is not None else set()
            claims += self.unfused([op for op in claim.group.members if op not in inside])
        return Plan(plan.graph, tuple(claims), plan.views, plan.decisions)

    def _alone(self, op: Operator) -> Claim:
        answer = self.book.claim(Group((op,)))
        if isinstance(answer, Refusal):
            raise RuntimeError(f"{op.name} alone is refused: {answer.sentence}")
        return answer


def _key(claim: Claim) -> Hashable:
    return claim.template.name, claim.group.key
