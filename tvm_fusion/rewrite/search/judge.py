"""What a pass would do at one place, priced by the planner in the surroundings of the place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tvm
from tvm import relax
from tvm.ir.transform import Pass
from tvm.target import Target

from ...core.decisions import Decision, record, recording
from ...core.names.source import names_of, sources_of
from ...errors import UserError
from ...fusion.estimate import Estimator, RegionCost
from ..egraph.changes import Gain, noting
from .surroundings import Blocks, surroundings


@dataclass(frozen=True)
class Choice:
    """Whether a pass shall rewrite a place, and what that saves if a planner was asked."""

    is_taken: bool
    gain: Gain | None = None

    @property
    def us(self) -> float:
        """Microseconds that it saves; 0 where no planner was asked."""
        return 0.0 if self.gain is None else self.gain.us


#: Takes a function and the variables of a place in it that a pass can rewrite.
Choose: TypeAlias = Callable[[relax.Function, Sequence[relax.Var]], Choice]


def always(_func: relax.Function, _site: Sequence[relax.Var]) -> Choice:
    """Rewrite every place: what a pass does in a pipeline of the user's."""
    return Choice(True)


class Judge:
    """Lets passes rewrite the places where the planner finds the result cheaper.

    Places with equal surroundings are priced once. A place that does not pay alone is priced with
    all others in its surroundings, too.

    Parameters
    ----------
    target
        What kernels are for.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._estimator = Estimator(target)
        self._blocks = Blocks()
        self._known: dict[Hashable, tuple[RegionCost, RegionCost]] = {}

    def ways(self, make: Callable[[Choose], Pass]) -> Iterator[Pass]:
        """Yield passes that rewrite where it pays, and everywhere if that is not the same.

        Parameters
        ----------
        make
            Makes the pass that asks what it is given about every place.
        """
        is_refused = False

        def choose(func: relax.Function, site: Sequence[relax.Var]) -> Choice:
            found = self._price(make, func, site)
            if found is None:
                return Choice(True)
            before, after = found
            if after.saves(before):
                return Choice(True, Gain.between(before, after))
            nonlocal is_refused
            is_refused = True
            self._refuse(make, site, before, after)
            return Choice(False, Gain.between(before, after))

        yield make(choose)
        if is_refused:  # what does not pay alone may in the module
            yield make(always)

    def _price(
        self, make: Callable[[Choose], Pass], func: relax.Function, site: Sequence[relax.Var]
    ) -> tuple[RegionCost, RegionCost] | None:
        """Price surroundings before and after; None where they cannot be cut out or planned."""
        around = surroundings(func, site, self._blocks)
        if around is None:
            return None
        key = make, around.key
        if key not in self._known:
            places, has_others = set(map(hash, around.site)), False

            def only(_func: relax.Function, other: Sequence[relax.Var]) -> Choice:
                nonlocal has_others
                is_own = set(map(hash, other)) <= places
                has_others |= not is_own
                return Choice(is_own)

            try:
                before, after = self._cost(around.mod), self._cost(around.mod, make(only))
                if has_others:
                    after = min(after, self._cost(around.mod, make(always)))
            except UserError:
                return None
            self._known[key] = before, after
        return self._known[key]

    def _cost(self, mod: tvm.IRModule, change: Pass | None = None) -> RegionCost:
        """Plan a module, after a change of it."""
        if change is not None:
            with self._target, recording(), noting():
                mod = change(mod)
        return self._estimator.module(mod)

    @staticmethod
    def _refuse(
        make: Callable[[Choose], Pass],
        site: Sequence[relax.Var],
        before: RegionCost,
        after: RegionCost,
    ) -> None:
        sentence = (
            f"{make.__name__} would take {after.us:.1f} us and {after.kernels} kernels here, "
            f"instead of {before.us:.1f} us and {before.kernels}."
        )
        title = ", ".join(var.name for var in site)
        names = names_of(source for var in site for source in sources_of(var))
        record(Decision(title, "", "refused", "not_cheaper", sentence, producer_names=names))
