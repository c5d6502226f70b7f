"""Steps of rewriting, each kept only where the plan of the whole module gets no slower.

Functions that call no others are compared one by one: what helps one may harm another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import ir, relax
from tvm.ir.transform import Pass
from tvm.target import Target

from ...core.decisions import Decision, record, recording
from ...core.untouched import is_rewritable
from ...errors import UserError
from ...fusion.estimate import Estimator, RegionCost
from ..egraph.changes import Rewrites, is_noting, note_all, noting

_TIE = 1e-9  # of a price: sums of equal terms in another order


@dataclass(frozen=True, eq=False)
class _Planned:
    """A module and what its plan costs, which is found out where it is compared with another."""

    mod: tvm.IRModule
    estimator: Estimator

    @cached_property
    def cost(self) -> RegionCost | None:
        """None where an operator has no kernel: a later stage tells."""
        try:
            return self.estimator.module(self.mod)
        except UserError:
            return None

    def is_cheaper(self, other: _Planned) -> bool:
        """Whether its plan takes less time than another one's."""
        if self is other or self.cost is None or other.cost is None:
            return False
        own, others = self.cost.comparable(other.cost)
        return own < others * (1 - _TIE)


@dataclass(frozen=True)
class _Way:
    """A module after a step, and what the step told."""

    planned: _Planned
    decisions: Sequence[Decision]
    changes: Rewrites | None


class Whole:
    """A module that steps rewrite one after the other.

    Regions and places are priced alone. In a module, kernels of different regions share launches,
    and what is cheaper alone may be dearer there.

    Parameters
    ----------
    mod
        Before the first step.
    target
        What kernels are for.
    """

    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        self._estimator = Estimator(target)
        self._now = _Planned(mod, self._estimator)
        self._alone: dict[relax.Function, _Planned] = {}  # functions as modules of their own

    @property
    def mod(self) -> tvm.IRModule:
        """The module after the steps so far."""
        return self._now.mod

    def step(self, name: str, changes: Iterable[Pass]) -> bool:
        """Apply a step in the way that makes the cheapest plan; not at all if all are slower.

        Parameters
        ----------
        name
            For the decision that tells why the step was not taken.
        changes
            Ways to take it; of equally cheap ones the first is taken.

        Returns
        -------
        bool
            Whether the step was left out, of one function at least, because it is slower.
        """
        best: _Way | None = None
        if functions := _independent(self.mod):
            return self._step_of_each(functions, name, [self._apply(change) for change in changes])
        for change in changes:
            way = self._apply(change)
            if best is None or way.planned.is_cheaper(best.planned):
                best = way
        if best is None:
            return False
        if self._now.is_cheaper(best.planned):
            self._refuse(name, self._now, best.planned)
            return True
        self._now = best.planned
        self._tell(best)
        return False

    def _step_of_each(
        self, functions: Sequence[ir.GlobalVar], name: str, ways: Sequence[_Way]
    ) -> bool:
        """Take a step in the way that makes the cheapest plan of each function."""
        mod, taken, is_refused = self.mod, dict[int, _Way](), False
        for gvar in functions:
            now, best = self._planned(gvar, self.mod), None
            for number, way in enumerate(ways):
                then = self._planned(gvar, way.planned.mod)
                if best is None or then.is_cheaper(best[0]):
                    best = then, number
            if best is None or now is best[0]:
                continue
            then, number = best
            if now.is_cheaper(then):
                self._refuse(f"{name} of {gvar.name_hint}", now, then)
                is_refused = True
                continue
            mod = mod.clone() if mod is self.mod else mod
            mod[gvar] = then.mod[gvar]
            taken[number] = ways[number]
        if mod is not self.mod:
            self._now = _Planned(mod, self._estimator)
        for way in taken.values():
            self._tell(way)
        return is_refused

    def _planned(self, gvar: ir.GlobalVar, mod: tvm.IRModule) -> _Planned:
        func = mod[gvar]
        if func not in self._alone:
            self._alone[func] = _Planned(tvm.IRModule({gvar: func}), self._estimator)
        return self._alone[func]

    def _apply(self, change: Pass) -> _Way:
        with recording() as decisions, noting() if is_noting() else nullcontext() as changes:
            mod = change(self.mod)
        if all(func.same_as(mod[gvar]) for gvar, func in self.mod.functions.items()):
            return _Way(self._now, decisions, changes)
        return _Way(_Planned(mod, self._estimator), decisions, changes)

    @staticmethod
    def _tell(way: _Way) -> None:
        for decision in way.decisions:
            record(decision)
        if way.changes is not None:
            note_all(way.changes)

    @staticmethod
    def _refuse(name: str, now: _Planned, then: _Planned) -> None:
        if now.cost is None or then.cost is None:
            return
        us, us_now = then.cost.comparable(now.cost)
        sentence = (
            f"{name} is left out: with it, the whole plan would take {us:.1f} us and "
            f"{then.cost.kernels} kernels, instead of {us_now:.1f} us and {now.cost.kernels}."
        )
        record(Decision("Rewrite", "", "refused", "whole_plan_slower", sentence))


def _independent(mod: tvm.IRModule) -> list[ir.GlobalVar]:
    """List several functions that call no others; empty where there is one, or one that does."""
    ours = {gvar: func for gvar, func in mod.functions.items() if is_rewritable(func)}
    calls = any(relax.analysis.all_global_vars(func) for func in ours.values())
    return [] if calls or len(ours) < 2 else [*ours]
