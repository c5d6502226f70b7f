"""What a region of a graph will cost: the planner is asked, with the claims of all templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import tvm
from tvm import relax
from tvm.ir.transform import Sequential
from tvm.target import Target

from ..core.contract.template import Claim, Refusal
from ..core.contract.templates import templates
from ..core.decisions import recording
from ..core.progress import silent
from ..ecg.graph import Graph
from ..ecg.layers import layers_of
from ..ecg.legalization.legalize import Legalize
from ..ecg.read_dataflow import CONSTANTS
from ..program.group import Group
from ..program.images import images_of
from .claims import claim_book
from .planning.plan import Plan, plan
from .planning.recompute import MAX_READERS
from .refusals import RefusedByAll

#: Layers of many equal ones: what all read has more readers in these than recompute it.
PLANNED = MAX_READERS + 2
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
                        read = partial(Graph, mod, func, block)
                        found, count = self._of_graph(read(), read)
                        claims += found
                        operators += count
        return claims, operators

    def _of_graph(self, graph: Graph, read: Callable[[], Graph]) -> tuple[list[Claim], int]:
        """Plan a graph; of many equal layers a few, where all of these get the same groups."""
        layers = layers_of(graph, PLANNED) if len(graph.operators) > PLANNED else None
        if layers is not None:
            layer_of = layers.shorten(graph, PLANNED)
            planned = self._plan(graph)
            added = _added(planned, layer_of)
            if added is not None:
                claims, operators = added
                further = layers.count - PLANNED
                all_operators = len(planned.graph.operators) + operators * further
                return [*planned.claims, *claims * further], all_operators
            graph = read()
        planned = self._plan(graph)
        return [*planned.claims], len(planned.graph.operators)

    def _plan(self, graph: Graph) -> Plan:
        with self._book.laying_out(images_of(graph)):
            return plan(graph, self._templates, self._book, gives_reasons=False)

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


def _added(planned: Plan, layer_of: Mapping[int, int]) -> tuple[list[Claim], int] | None:
    """List the claims that each layer adds, with the number of operators.

    None where layers are planned in different ways, but for the first and the last one, or where
    several share a kernel, which is of another structure for more of them.
    """
    claims: list[list[Claim]] = [[] for _ in range(PLANNED)]
    operators = [0] * PLANNED
    for view in planned.views:
        if view.index in layer_of:
            operators[layer_of[view.index]] += 1
    for claim in planned.claims:
        found = {layer_of[op.index] for op in claim.group.members if op.index in layer_of}
        if found:
            layer = min(found)
            if max(found) > layer + 1:
                return None
            claims[layer].append(claim)
            operators[layer] += len(claim.group.members)
    kinds = [Counter(map(_kind, of_layer)) for of_layer in claims[1:-1]]
    if any(kind != kinds[0] for kind in kinds[1:]):
        return None
    return claims[1], operators[1]


def _kind(claim: Claim) -> Hashable:
    return claim.template.name, claim.group.key, claim.launches
