"""What a region of a graph will cost: the planner is asked, with the claims of all templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax
from tvm.ir.transform import Sequential
from tvm.target import Target

from ..core.contract.template import Claim, Refusal
from ..core.contract.templates import templates
from ..core.decisions import recording
from ..core.progress import silent
from ..ecg.graph import Graph
from ..ecg.legalization.legalize import Legalize
from ..ecg.read_dataflow import CONSTANTS
from ..program.group import Group
from ..program.images import images_of
from .claims import claim_book
from .planning.plan import plan
from .refusals import RefusedByAll

MARGIN = 0.02  # of what differs between two plans: what saves less is not worth another graph


@dataclass(frozen=True, order=True)
class RegionCost:
    """Cost of a region under the plan that it would get; smaller ones sort first."""

    us: float  # microseconds of all kernels: their traffic, launches and arithmetic
    flops: int  # operations, recomputation included
    # Launches; memory traffic.
    kernels: int
    bytes: int
    operators: int  # before fusion
    # How many groups there are of each structure, and the microseconds of one.
    groups: Mapping[int, tuple[int, float]] = field(default_factory=dict, compare=False, repr=False)
    # Microseconds by the roofline, where ``us`` are those of the fitted model.
    roofline_us: float | None = field(default=None, compare=False, repr=False)

    def comparable(self, other: RegionCost) -> tuple[float, float]:
        """Return microseconds of this plan and of another one, both by the same model."""
        if (self.roofline_us is None) == (other.roofline_us is None):
            return self.us, other.us
        first, second = (c.us if c.roofline_us is None else c.roofline_us for c in (self, other))
        return first, second

    def saves(self, before: RegionCost) -> bool:
        """Whether this plan is worth another graph: it takes less time, beyond the margin.

        What takes as long within the margin is, if it has less of something and more of nothing.
        """
        same = sum(
            min(count, before.groups[key][0]) * us
            for key, (count, us) in self.groups.items()
            if key in before.groups
        )
        if before.us - self.us > MARGIN * max(before.us - same, 0.0):
            return True
        names = ("us", "kernels", "flops", "bytes", "operators")
        pairs = [(getattr(self, name), getattr(before, name)) for name in names]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs[1:])


class Estimator:
    """Asks the planner about regions, and remembers its answers.

    Parameters
    ----------
    target
        What kernels would be for.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._templates = templates(target)
        self._book = claim_book(target)
        self._cost = self._book.cost
        self._legalize = Legalize()  # one for all: the book knows groups by their PrimFuncs

    def estimate(self, func: relax.Function, constants: Sequence[int] = ()) -> RegionCost:
        """Plan a function as if it were a model of its own.

        Parameters
        ----------
        func
            One dataflow block of operators, not legalised.
        constants
            Positions of the parameters that stand for constants.
        """
        return self.cost(*self.claims(func, constants))

    def module(self, mod: tvm.IRModule) -> RegionCost:
        """Plan all functions of a module that is not legalised.

        Raises
        ------
        UserError
            For an operator that has no kernel.
        """
        return self.cost(*self._planned(relax.transform.ConvertToDataflow(min_size=1)(mod)))

    def claims(
        self, func: relax.Function, constants: Sequence[int] = ()
    ) -> tuple[list[Claim], int]:
        """Plan a function as :meth:`estimate` does; returns the claims and how many operators."""
        if constants:
            func = func.with_attr(CONSTANTS, list(constants))
        return self._planned(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))

    def _planned(self, mod: tvm.IRModule) -> tuple[list[Claim], int]:
        claims: list[Claim] = []
        operators = 0
        with self._target, recording(), silent():
            mod = Sequential([self._legalize])(mod)
            for func in mod.functions.values():
                for block in func.body.blocks if isinstance(func, relax.Function) else ():
                    if isinstance(block, relax.DataflowBlock):
                        graph = Graph(mod, func, block)
                        with self._book.laying_out(images_of(graph)):
                            planned = plan(graph, self._templates, self._book, gives_reasons=False)
                        claims += planned.claims
                        operators += len(planned.graph.operators)
        return claims, operators

    def refusal(self, claims: Sequence[Claim], name: str = "") -> str:
        """Tell why templates do not take what the fallback or several of them take.

        Parameters
        ----------
        claims
            Of one function, as :meth:`claims` gives them.
        name
            A template's, which is asked about everything together. By default, all templates are
            asked about each group that the fallback takes.

        Returns
        -------
        str
            Sentences that begin with the templates' names; empty where none refuses.
        """
        groups = [claim.group for claim in claims if claim.template.is_fallback]
        if name:
            members = {op for claim in claims for op in claim.group.members}
            groups = [Group(tuple(sorted(members, key=lambda op: op.index)))]
        found: dict[str, Refusal] = {}
        for group in groups:
            for template in self._templates:
                if not template.is_fallback and name in ("", template.name):
                    answer = template.claim(group, self._book.device)
                    if isinstance(answer, Refusal):
                        found.setdefault(template.name, answer)
        return RefusedByAll(found).sentence

    def cost(self, claims: Sequence[Claim], operators: int) -> RegionCost:
        """Add up what a plan costs."""
        groups: dict[int, tuple[int, float]] = {}
        for claim in claims:
            key = hash(claim.group.key)
            count, us = groups.get(key, (0, self._cost.estimate(claim)))
            groups[key] = count + 1, us
        return RegionCost(
            round(self._cost.total(claims), 6),
            sum(claim.flops for claim in claims),
            sum(claim.launches for claim in claims),
            sum(claim.bytes for claim in claims),
            operators,
            groups,
            self._cost.roofline(claims) if self._cost.orders_by_fit(claims) else None,
        )
