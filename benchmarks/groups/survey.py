"""All distinct groups of several models, each measured once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm
from tvm.target import Target

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.fusion.record_key import Key
from tvm_fusion.fusion.records import Records

from . import measure, variants
from .cases import Case, cases, planned

_DIGITS = 16  # of a hash that are enough to find a group again
_ROUNDS = ("quotients", "runs")  # what figures are the medians of: not kept

Progress = Callable[[str], None]


class Survey:
    """Results so far.

    Parameters
    ----------
    target : Target
        This machine's CPU.
    settings : Settings
        How much is measured.
    seed : int
        Of weights and inputs.
    records : Records, optional
        Takes what is measured.
    """

    def __init__(
        self, target: Target, settings: measure.Settings, seed: int, records: Records | None
    ) -> None:
        self._target = target
        self._device = parse(target).device
        self._settings = settings
        self._seed = seed
        self._records = records
        self._groups: dict[Key, dict[str, Any]] = {}
        self._alone: set[Key] = set()
        self._models: list[dict[str, Any]] = []

    def model(self, name: str, progress: Progress = lambda line: None) -> None:
        """Plan one model and measure its groups that were not measured before."""
        progress(f"{name}: planning")
        found = list(cases(planned(name, self._seed, self._target)))
        several = [case for case in found if len(case.group) > 1]
        self._models.append({"name": name, "groups": len(found), "of_several": len(several)})
        for number, case in enumerate(several, start=1):
            key = case.key(self._device)
            if key not in self._groups:
                result = measure.measure(case, self._target, self._settings, self._seed)
                kept = {k: v for k, v in result.items() if k not in _ROUNDS}
                self._groups[key] = self._about(case, key) | kept
                self._put(case, key, result)
                shown = f"{result['ratio']:.2f}" if "ratio" in result else result["reason"]
                progress(f"{name}: {number}/{len(several)} {case.group.title}: {shown}")
            calls = self._groups[key]["models"]
            calls[name] = calls.get(name, 0) + case.calls
        if self._records is not None:
            for case in self._single(found):
                self._put_alone(case)

    def result(self) -> dict[str, Any]:
        """Return models, groups (largest ratio first), and the numbers of losses and failures."""
        groups = sorted(self._groups.values(), key=lambda g: -g.get("ratio", float("inf")))
        return {
            "models": self._models,
            "groups": groups,
            "losses": sum(g.get("ratio", 0.0) > measure.SLOWER for g in groups),
            "broken": sum(g["status"] != "right" for g in groups),
        }

    def _about(self, case: Case, key: Key) -> dict[str, Any]:
        return {
            "title": case.group.title,
            "template": case.template,
            "structure": key.structure[:_DIGITS],
            "inputs": [str(v.type) for v in case.group.inputs],
            "outputs": [str(v.type) for v in case.group.outputs],
            "models": {},
        }

    def _put(self, case: Case, key: Key, result: dict[str, Any]) -> None:
        if self._records is not None and result["status"] == "right" and case.template:
            runs = result["runs"]["fused"] * len(result["quotients"])
            self._records.put(key, result["us"]["fused"], runs)

    def _single(self, found: list[Case]) -> Iterator[Case]:
        """Yield groups of one operator: those of the plan, and the members of the others."""
        for case in found:
            if len(case.group) == 1:
                yield case
            else:
                with self._target:
                    plan = tvm.ir.transform.Sequential([transform.FuseOperators()])
                    yield from cases(plan(variants.unfused(case)))

    def _put_alone(self, case: Case) -> None:
        key = case.key(self._device)
        if case.template and self._records is not None and key not in self._alone:
            self._alone.add(key)
            us, runs = measure.alone(case, self._target, self._settings, self._seed)
            self._records.put(key, us, runs)
