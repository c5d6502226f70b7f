"""What the manifest says of a compiled model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from ...config import FusionConfig
from ...core.contract.kernel_info import Infos
from ...core.decisions import Decision
from ...device import TargetSpec
from ...device.cpu_features import linux_names
from ...device.probe import machine
from ...frontend import Imported
from ...fusion.profile import Profile
from ...signature import Signature
from ..memory.limits import Limit
from ..runtime.artifact import manifest
from ..runtime.artifact.signature import dims_to_json, signature_to_json
from .artifact import AT
from .build import Built
from .launch_names import launches_of
from .packed_functions import PackedFunctions
from .prepare import Prepared


@dataclass(frozen=True)
class Compilation:
    """A model after all stages, and what was noted on its way; dictionaries are by architecture."""

    imported: Imported  # of several workers the first one's part
    config: FusionConfig
    spec: TargetSpec
    limits: Mapping[str, Mapping[str, Limit]]  # by function and symbolic dimension
    profile: Profile | None
    prepared: dict[str, Prepared]
    of_others: dict[str, list[Prepared]]  # workers from 1
    built: Built
    packed: PackedFunctions
    kernels: dict[str, Infos]  # groups of operators with the names of their kernels
    decided: dict[str, list[Decision]]

    @property
    def modules(self) -> dict[str, Prepared]:
        """All modules, of workers as well, by architecture and rank."""
        workers = {
            f"{arch}{AT}{rank}": other
            for arch in self.prepared
            for rank, other in enumerate(self.of_others[arch], 1)
        }
        return {**self.prepared, **workers}


def describe(made: Compilation, common: list[Decision]) -> dict[str, Any]:
    """Write the manifest.

    Parameters
    ----------
    common
        Decisions that hold for all architectures.
    """
    built, needed, imported = made.built, made.built.needed, made.imported
    renamed = {arch: built.names.get(arch, {}) for arch in made.prepared}
    code = {
        arch: _code(imported, made.config, one, built.counts[arch], renamed[arch])
        for arch, one in made.prepared.items()
    }
    groups = {
        one.archs[0]: _groups(one, made.kernels[one.archs[0]], renamed[one.archs[0]])
        for one in made.spec.each
    }
    first, *others = made.prepared
    return {
        "schema": manifest.SCHEMA,
        "versions": {
            name: version(name) for name in ("tvm_fusion", "apache-tvm", "apache-tvm-ffi")
        },
        "source": imported.source,
        "target": _target(made.spec, needed),
        "precision": made.config.precision,
        "alignment": "element",
        "dims": dims_to_json(imported.dims),
        "suffix": built.suffixes[first],
        "functions": {
            name: {
                **signature_to_json(signature),
                "limits": {n: asdict(limit) for n, limit in made.limits[name].items()},
                **code[first][name],
            }
            for name, signature in imported.signatures.items()
        },
        "architectures": {
            arch: {
                "suffix": built.suffixes[arch],
                "functions": code[arch],
                **groups[arch],
                **_features(needed.get(arch)),
            }
            for arch in others
        },
        **groups[first],
        "stored_kernels": [
            {"archs": list(archs), "names": kernels} for archs, kernels in built.kernels.items()
        ],
        "profile": None if made.profile is None else made.profile.counts(),
        "decisions": _decisions(common, made.decided),
        "libraries": made.packed.libraries,
        "packed_functions": made.packed.application,
    }


def _code(
    imported: Imported,
    config: FusionConfig,
    one: Prepared,
    counts: Mapping[str, Any],
    library: Mapping[str, str],
) -> dict[str, Any]:
    """Write what the manifest says of an architecture's functions; ``library`` renames kernels."""
    return {
        name: {
            "weights": one.weight_names.get(name, []),
            "weights_as_tuple": one.passes_tuple[name],
            "in_place": _in_place(signature, config.writes),
            "destinations": [signature.outputs[i].name for i in one.destinations[name]],
            "launches": [
                {**asdict(launch), "kernel": library.get(launch.kernel, launch.kernel)}
                for launch in launches_of(one.mod, name)
            ],
            **counts[name],
        }
        for name, signature in imported.signatures.items()
    }


def _groups(spec: TargetSpec, kernels: Infos, names: Mapping[str, str]) -> dict[str, Any]:
    """Write what the manifest says of an architecture's groups of operators.

    Parameters
    ----------
    names
        The library's names of kernels, where they are others.
    """
    return {
        "groups": [
            {"kernels": [names.get(name, name) for name in called], **asdict(info)}
            for info, called in kernels
        ],
        "priced_for": {"name": spec.device.name, "cores": spec.device.cores},
    }


def _decisions(common: list[Decision], taken: Mapping[str, list[Decision]]) -> list[dict[str, Any]]:
    """List decisions as the manifest has them: one of some architectures alone names these."""
    if len(taken) == 1:
        (of_all,) = taken.values()
        return [asdict(d) for d in (*common, *of_all) if d.verdict != "accepted"]
    by_archs: dict[Decision, list[str]] = {decision: [*taken] for decision in common}
    for arch, decisions in taken.items():
        for decision in dict.fromkeys(decisions):
            by_archs.setdefault(decision, []).append(arch)
    return [
        asdict(decision) | ({"archs": archs} if len(archs) < len(taken) else {})
        for decision, archs in by_archs.items()
        if decision.verdict != "accepted"
    ]


def _in_place(signature: Signature, names: Mapping[str, str]) -> dict[str, str]:
    """List a function's inputs that it writes to, with their outputs."""
    outputs = {spec.name for spec in signature.outputs}
    inputs = [spec.name for spec in signature.inputs if names.get(spec.name) in outputs]
    return {name: names[name] for name in inputs}


def _target(spec: TargetSpec, needed: Mapping[str, list[str]]) -> dict[str, Any]:
    """Write a target as the manifest has it, with the instruction sets that code needs."""
    described: dict[str, Any] = {"text": spec.text, "kind": spec.kind, "archs": list(spec.archs)}
    if spec.kind == "llvm":
        described["machine"] = spec.triple.split("-")[0] if spec.triple else machine()
    return {**described, **_features(needed.get(spec.archs[0]))}


def _features(needed: list[str] | None) -> dict[str, list[str]]:
    """Write the instruction sets of a CPU as the manifest has them."""
    return {} if needed is None else {"features": needed, "cpuinfo": linux_names(needed)}
