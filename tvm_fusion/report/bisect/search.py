"""Search for the groups whose fusion makes a model crash or give wrong results."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...core.contract.template import Claim
from ...measure.isolate import Failed, isolated
from ..explain import Member
from ..explain.run import member_of
from ..planned import PlannedModel
from ..reference import compare
from .delta import smallest_failing
from .execute import check_inputs, check_runnable, outputs_of
from .result import Bisection, Culprit, Outcome
from .variants import Variants

Progress = Callable[[str], None]


def find_broken(
    planned: PlannedModel,
    inputs: Mapping[str, np.ndarray],
    tolerance: float = 1e-4,
    progress: Progress = lambda text: None,
) -> Bisection:
    """Find the groups whose fusion breaks a model.

    The reference is the model with every operator in a kernel of its own. Groups are switched off
    by delta debugging until the smallest failing set is left, then the next set is looked for,
    until what remains fused agrees with the reference. Each variant is compiled and run in a
    process of its own: one that raises, or ends its process, has failed as well.

    Parameters
    ----------
    planned
        From :func:`tvm_fusion.report.planned.plan_model`.
    tolerance
        On max|a-b|/max|b| of each output.
    progress
        Told what each variant did.

    Returns
    -------
    Bisection

    Raises
    ------
    UserError
        For inputs that the model does not take, and for a target that is not on this machine.
    """
    check_runnable(planned.spec)
    check_inputs(planned, inputs)
    return _Search(planned, inputs, tolerance, progress).run()


class _Search:
    def __init__(
        self,
        planned: PlannedModel,
        inputs: Mapping[str, np.ndarray],
        tolerance: float,
        progress: Progress,
    ) -> None:
        self._planned = planned
        self._inputs = inputs
        self._tolerance = tolerance
        self._progress = progress
        self._variants = Variants(planned)
        self._reference: dict[str, np.ndarray] = {}
        self._probes = 0

    def run(self) -> Bisection:
        candidates = self._variants.candidates
        try:
            self._reference = self._outputs({})
        except Failed as failure:
            return self._bisection(reference_crash=str(failure))
        fused = self._outcome({c: c for c in candidates})
        left, culprits, outcome = list(candidates), [], fused
        while left and outcome.fails(self._tolerance):
            guilty = smallest_failing(left, self._fails)
            culprits.append(self._culprit(guilty))
            # Equal groups have the same kernels: to find each of them would say nothing new.
            off = {equal for claim in guilty for equal in self._variants.equal(claim)}
            left = [claim for claim in left if claim not in off]
            outcome = self._outcome({c: c for c in left})
        return self._bisection(
            fused=fused, culprits=tuple(culprits), cured=outcome if culprits else None
        )

    def _culprit(self, guilty: list[Claim]) -> Culprit:
        return Culprit(
            groups=tuple(map(self._variants.describe, guilty)),
            alone=self._outcome({c: c for c in guilty}),
            smallest=self._smallest(guilty[0]) if len(guilty) == 1 else (),
        )

    def _smallest(self, claim: Claim) -> tuple[Member, ...]:
        """Take operators away from the ends of a group for as long as what is left still fails."""
        part: Claim | None = claim
        smallest = claim
        while part is not None:
            smallest = part
            smaller = self._variants.smaller(smallest) if len(smallest.group) > 2 else []
            part = next(
                (s for s in smaller if self._outcome({claim: s}).fails(self._tolerance)), None
            )
        return tuple(map(member_of, smallest.group.members))

    def _fails(self, claims: Sequence[Claim]) -> bool:
        return self._outcome({claim: claim for claim in claims}).fails(self._tolerance)

    def _outcome(self, kept: Mapping[Claim, Claim]) -> Outcome:
        try:
            outputs = self._outputs(kept)
        except Failed as failure:
            outcome = Outcome(crash=str(failure))
        else:
            errors = {
                name: entry["max_rel_error"]
                for name, entry in compare(outputs, self._reference).items()
            }
            outcome = Outcome(error=max(errors.values(), default=0.0), outputs=errors)
        what = outcome.crash or f"error {outcome.error:.2e}"
        verdict = "failed" if outcome.fails(self._tolerance) else "passed"
        self._progress(f"{len(kept)} of {len(self._variants.candidates)} groups: {verdict}, {what}")
        return outcome

    def _outputs(self, kept: Mapping[Claim, Claim]) -> dict[str, np.ndarray]:
        self._probes += 1
        plans = self._variants.plans(kept)
        return isolated(lambda: outputs_of(self._planned, plans, self._inputs))

    def _bisection(self, **found) -> Bisection:
        return Bisection(
            model=self._planned.imported.source,
            target=self._planned.spec.text,
            tolerance=self._tolerance,
            candidates=len(self._variants.candidates),
            probes=self._probes,
            **found,
        )
