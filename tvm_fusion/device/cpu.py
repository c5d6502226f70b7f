"""CPU targets: LLVM's names, checked, with the features that they stand for."""

import difflib
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from ..errors import UserError
from . import probe
from .cpu_features import CPU_FEATURES, capabilities
from .model import Device
from .target import PREFER_256, TargetSpec
from .tile_permission import need_tiles, refused_tiles

# Cross compilation knows the two CPU families that the device table knows; Linux on both.
_TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
# LLVM's name for the lowest common denominator of a family is "generic" in both: say which.
_BASELINES = {"x86-64": "x86_64", "aarch64": "aarch64"}
# Levels are for any machine that has them: plans for one are the same wherever they are made.
_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
# Later CPUs with the cores of earlier ones, whose measured times hold for both.
_CORES = {"emeraldrapids": "sapphirerapids"}


def measured_as(arch: str) -> str:
    """Return the name of the architecture that times of its cores are kept under."""
    return _CORES.get(arch, arch)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return advice that names the known names closest to a misspelt one, if any is close."""
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}" if close else None


def host() -> TargetSpec:
    """Return the target for this machine's CPU, with the features that it really has.

    AMX is among them if this process may use it: the permission is asked for here.
    """
    from tvm.target import codegen

    name = str(codegen.llvm_get_system_cpu())
    here = set(_own_features())
    nominal = _features({"mcpu": name})
    # A hypervisor may hide instruction sets that LLVM derives from the CPU's model; the first such
    # instruction would kill the process.
    changes = [f"-{f}" for f in nominal - here] + [f"+{f}" for f in here - nominal]
    return named(name, sorted(changes) if here else [])


def _own_features() -> tuple[str, ...]:
    """List this CPU's instruction sets; AMX's if Linux lets this process use them."""
    features = probe.host_cpu().features
    if need_tiles(features) and refused_tiles():
        return tuple(feature for feature in features if not need_tiles([feature]))
    return features


def refusal_note(spec: TargetSpec) -> str | None:
    """Say why a target for this CPU is one without its AMX, if so."""
    has_tiles = need_tiles(probe.host_cpu().features)
    if spec.kind != "llvm" or not has_tiles or spec.device.cores is None:
        return None
    refused = refused_tiles()
    return refused and (
        f"This CPU has AMX, which Linux does not let this process use ({refused}), so kernels are "
        "without it: name the CPU, as in cpu:sapphirerapids, to compile for other processes."
    )


def named(name: str, changes: list[str], machine: str | None = None) -> TargetSpec:
    """Return the target for a CPU by LLVM's name.

    Parameters
    ----------
    name
        LLVM's name; ``x86-64`` and ``aarch64`` stand for the families' baselines.
    changes
        Features to add or take away, such as ``-avx512f``.
    machine
        The CPU family when the caller knows it.

    Returns
    -------
    TargetSpec
        With an ``mtriple`` when another family than this machine's is meant.

    Raises
    ------
    UserError
        For a name or a feature that LLVM does not know.
    """
    if name in _BASELINES:
        name, machine = "generic", _BASELINES[name]
    machine = _family(name, [machine] if machine else list(_TRIPLES))
    config: dict[str, Any] = {"mcpu": name}
    if machine != probe.machine():
        config["mtriple"] = _TRIPLES[machine]
    for change in changes:
        if change[:1] not in ("+", "-") or change[1:] not in CPU_FEATURES:
            raise UserError(
                f"unknown CPU feature {change!r} for {name!r}",
                "a sign and LLVM's name, such as -avx512f",
                nearest(change[1:], CPU_FEATURES),
            )
    if changes:
        config["mattr"] = tuple(changes)
    label = {v: k for k, v in _BASELINES.items()}[machine] if name == "generic" else name
    here, can = probe.host_cpu(), capabilities(label, _features(config))
    if label not in _LEVELS and machine == probe.machine() and can["features"] == _own_features():
        figures = {k: getattr(here, k) for k in ("cores", "l2_bytes", "l3_bytes")}
        device = Device("llvm", label, here.name, **figures, **can)
        config["num-cores"] = here.cores
    else:
        device = Device("llvm", label, label, **can)
    return TargetSpec("llvm", (label,), (device,), (tuple(sorted(config.items())),))


def several(words: Sequence[str]) -> TargetSpec:
    """Return the target for one CPU or several of a family: names, each before its changes.

    Raises
    ------
    UserError
        For CPUs of several families.
    """
    given: list[list[str]] = []
    for word in words:
        if given and (word[0] in "+-" or word in CPU_FEATURES):
            given[-1].append(word)
        else:
            given.append([word])
    specs = [named(name, changes) for name, *changes in given]
    if len(specs) == 1:
        return specs[0]
    if len({spec.triple for spec in specs}) > 1:
        raise UserError(
            f"the CPUs of target 'cpu:{','.join(words)}' are of several families",
            "CPUs of one, whose code one library can hold",
            "compile an artifact for each family",
        )
    by_name = {"".join(word): spec for word, spec in zip(given, specs, strict=True)}
    ascending = sorted(by_name, key=lambda name: len(by_name[name].device.features))
    return TargetSpec(
        "llvm",
        tuple(ascending),
        tuple(by_name[name].device for name in ascending),
        tuple(by_name[name].attrs[0] for name in ascending),
    )


def from_config(config: dict[str, Any]) -> TargetSpec:
    """Return the target for an exported TVM target of kind ``llvm``."""
    triple = str(config.get("mtriple") or probe.machine())
    machine = {"arm64": "aarch64"}.get(triple.split("-")[0], triple.split("-")[0])
    if machine not in _TRIPLES:
        raise UserError(f"unknown CPU family in the triple {triple!r}", " or ".join(_TRIPLES))
    known = [str(f) for f in config.get("mattr", ()) if str(f) != PREFER_256]
    return named(str(config.get("mcpu", "generic")), known, machine)


def _features(config: dict[str, Any]) -> set[str]:
    return set(_known_features(tuple(sorted(config.items()))))


@lru_cache(maxsize=256)  # a compilation asks for the device of its target again and again
def _known_features(config: tuple[tuple[str, Any], ...]) -> frozenset[str]:
    from tvm.target import Target, codegen

    target = Target({"kind": "llvm", **dict(config)})
    return frozenset(codegen.llvm_get_cpu_features(target)) & CPU_FEATURES


@cache
def _known_names(machine: str) -> tuple[str, ...]:
    """Return the names of a family's CPUs that LLVM knows."""
    from tvm.target import Target, codegen

    target = Target({"kind": "llvm", "mtriple": _TRIPLES[machine]})
    return tuple(str(cpu) for cpu in codegen.llvm_get_cpu_archlist(target))


def _family(name: str, machines: list[str]) -> str:
    """Return the CPU family that LLVM knows this name in, this machine's first."""
    known: list[str] = []
    for machine in sorted(machines, key=lambda m: m != probe.machine()):
        if name in _known_names(machine):
            return machine
        known += _known_names(machine)
    raise UserError(
        f"unknown CPU {name!r}",
        "a name that LLVM knows, such as x86-64-v3, skylake-avx512 or neoverse-n1",
        nearest(name, known),
    )
