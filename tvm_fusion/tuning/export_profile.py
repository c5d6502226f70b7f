"""Questions of the planner as candidates: the profile database of a device that is elsewhere.

  plan the model; the planner asks what its records do not answer:
    build each alternative into a library;  go on by the model

The answers are measured where the device is (:mod:`.candidate_bench`) and imported. The plan that
follows from them may have other questions, which the next folder has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.tuned import Lookup
from ..device import TargetSpec
from ..fusion.profile import Alternative, NotNow, Unmeasured, question_of
from ..measure.alternative_modules import modules_of, tolerance
from ..measure.budget import Budget
from ..measure.isolate import Failed
from .build_candidates import export_question


class QuestionExport:
    """What a :class:`~..fusion.profile.Profile` takes for a bench; it builds, and answers nothing.

    Parameters
    ----------
    spec : TargetSpec
        What to build for.
    folder : Path
        Gets the libraries.
    budget : Budget
        How many questions; or how long to build.
    tuned : callable
        Gives the configurations that kernels will have.
    model_bytes : int
        Weights of the model.

    Attributes
    ----------
    entries : list of dict
        The questions, as the table has them.
    """

    def __init__(
        self, spec: TargetSpec, folder: Path, budget: Budget, tuned: Lookup, model_bytes: int
    ) -> None:
        self._spec, self._folder, self._budget = spec, folder, budget
        self._tuned, self._model_bytes = tuned, model_bytes
        self.entries: list[dict[str, Any]] = []

    def __call__(self, alternatives: Sequence[Alternative]) -> tuple[Sequence[float], int]:
        """Build alternatives.

        Raises
        ------
        Unmeasured
            If one cannot be built.
        NotNow
            Otherwise: there is no answer yet.
        """
        number = len(self.entries)
        if not self._budget.is_spent(number):
            try:
                mods = modules_of(alternatives)
                entry = export_question(
                    question_of(alternatives, self._spec.device),
                    mods,
                    tolerance(alternatives),
                    self._tuned,
                    self._spec,
                    self._folder,
                    number,
                    self._model_bytes,
                )
            except (Failed, ValueError) as reason:
                raise Unmeasured(str(reason)) from reason
            self.entries.append(entry)
        raise NotNow
