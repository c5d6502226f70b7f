"""What a region of a graph will cost: the planner is asked, with the claims of all templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir.transform import Sequential
from tvm.target import Target

from ..core.decisions import recording
from ..core.progress import silent
from ..core.template import Claim, Refusal
from ..core.templates import templates
from ..ecg.graph import Graph
from ..ecg.legalize import Legalize
from ..ecg.read_dataflow import CONSTANTS
from ..program.group import Group
from .claims import claim_book
from .plan import plan
from .refusals import RefusedByAll


@dataclass(frozen=True, order=True)
class RegionCost:
    """Cost of a region under the plan that it would get; smaller ones sort first.

    Attributes
    ----------
    us : float
        Microseconds of all kernels: their traffic, launches and arithmetic.
    flops : int
        Operations, recomputation included.
    kernels, bytes : int
        Launches; memory traffic.
    operators : int
        Before fusion.
    """

    us: float
    flops: int
    kernels: int
    bytes: int
    operators: int


class Estimator:
    """Asks the planner about regions, and remembers its answers.

    Parameters
    ----------
    target : Target
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
        func : relax.Function
            One dataflow block of operators, not legalised.
        constants : sequence of int
            Positions of the parameters that stand for constants.

        Returns
        -------
        RegionCost
            Of its plan.
        """
        return self.cost(*self.claims(func, constants))

    def claims(
        self, func: relax.Function, constants: Sequence[int] = ()
    ) -> tuple[list[Claim], int]:
        """Plan a function as :meth:`estimate` does; returns the claims and how many operators."""
        if constants:
            func = func.with_attr(CONSTANTS, list(constants))
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        with self._target, recording(), silent():
            mod = Sequential([self._legalize])(mod)
            lowered = mod["main"]
            claims: list[Claim] = []
            operators = 0
            for block in lowered.body.blocks:
                if isinstance(block, relax.DataflowBlock):
                    planned = plan(Graph(mod, lowered, block), self._templates, self._book)
                    claims += planned.claims
                    operators += len(planned.graph.operators)
        return claims, operators

    def refusal(self, claims: Sequence[Claim], name: str = "") -> str:
        """Tell why templates do not take what the fallback or several of them take.

        Parameters
        ----------
        claims : sequence of Claim
            Of one function, as :meth:`claims` gives them.
        name : str
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
        return RegionCost(
            round(self._cost.total(claims), 6),
            sum(claim.flops for claim in claims),
            sum(claim.launches for claim in claims),
            sum(claim.bytes for claim in claims),
            operators,
        )
