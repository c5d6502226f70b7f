"""All distinct groups of several models, each measured once."""

from collections.abc import Callable
from typing import Any

from tvm.target import Target

from tvm_fusion.device import parse
from tvm_fusion.ecg.operator import Value
from tvm_fusion.fusion.database.key import Key

from . import measure
from .cases import Case, cases, planned

_ROUNDS = ("quotients", "runs")  # what figures are the medians of: not kept

Progress = Callable[[str], None]


class Survey:
    """Results so far.

    Parameters
    ----------
    target
        This machine's CPU.
    settings
        How much is measured.
    seed
        Of weights and inputs.
    """

    def __init__(self, target: Target, settings: measure.Settings, seed: int) -> None:
        self._target = target
        self._device = parse(target).device
        self._settings = settings
        self._seed = seed
        self._groups: dict[Key, dict[str, Any]] = {}
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
                self._groups[key] = _about(case) | kept
                shown = f"{result['ratio']:.2f}" if "ratio" in result else result["reason"]
                progress(f"{name}: {number}/{len(several)} {case.group.title}: {shown}")
            calls = self._groups[key]["models"]
            calls[name] = calls.get(name, 0) + case.calls

    def result(self) -> dict[str, Any]:
        """Return models, groups (largest ratio first), and the numbers of losses and failures."""
        groups = sorted(self._groups.values(), key=lambda g: -g.get("ratio", float("inf")))
        return {
            "models": self._models,
            "groups": groups,
            "losses": sum(g.get("ratio", 0.0) > measure.SLOWER for g in groups),
            "broken": sum(g["status"] != "right" for g in groups),
        }


def _about(case: Case) -> dict[str, Any]:
    return {
        "title": case.group.title,
        "template": case.template,
        "inputs": [_type(v) for v in case.group.inputs],
        "outputs": [_type(v) for v in case.group.outputs],
        "models": {},
    }


def _type(value: Value) -> str:
    return f"{value.dtype} {'x'.join(map(str, value.shape))}"
