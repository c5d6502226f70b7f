"""From what a user writes to a target."""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from . import cpu, probe
from .model import Device
from .table import GPUS, REFUSED
from .target import TargetSpec

_FORMS = "cpu, cpu:<name>, cuda:<sm_..>[,<sm_..>] or rocm:<gfx..>"


def parse(target: Any) -> TargetSpec:
    """Read a target.

    Parameters
    ----------
    target : str, dict, tvm.target.Target or TargetSpec
        ``"llvm"`` or ``"cpu"``: this machine. ``"cpu:<name>"``: LLVM's name of an x86 or Arm CPU,
        with ``,+feature`` or ``,-feature`` behind it. ``"cuda"``, ``"rocm"``: the device in this
        machine. ``"cuda:sm_80,sm_90a"``, ``"rocm:gfx942"``: compiled for without being present.
        A TVM target or its dict means its kind, CPU or architecture; limits come from the device
        table, since TVM's own are missing or wrong for recent devices.

    Returns
    -------
    TargetSpec

    Raises
    ------
    UserError
        For an unknown or refused target, architecture or CPU.
    """
    if isinstance(target, TargetSpec):
        return target
    if not isinstance(target, str):
        return _from_tvm(target)
    kind, colon, rest = target.strip().partition(":")
    names = [name.strip() for name in rest.split(",")] if colon else []
    if not all(names):
        raise UserError(f"target {target!r} has an empty name", _FORMS)
    if kind in ("cpu", "llvm"):
        return cpu.named(names[0], names[1:]) if names else cpu.host()
    if kind == "cuda":
        return _cuda(names or _present(kind))
    if kind == "rocm":
        return _rocm(names or _present(kind))
    raise UserError(f"unknown target {target!r}", _FORMS, _advice(kind))


def _advice(kind: str) -> str | None:
    """Guess what was meant by a kind of target that does not exist."""
    if kind.startswith("sm_"):
        return f"write cuda:{kind}"
    if kind.startswith("gfx"):
        return f"write rocm:{kind}"
    if kind in ("gpu", "nvidia", "amd", "hip"):
        return "write " + {"nvidia": "cuda", "amd": "rocm", "hip": "rocm"}.get(kind, "cuda or rocm")
    return cpu.nearest(kind, ("cpu", "llvm", "cuda", "rocm"))


def _from_tvm(target: Any) -> TargetSpec:
    from tvm.target import Target

    try:
        config = {str(key): value for key, value in Target(target).export().items()}
    except (TypeError, ValueError) as error:
        reason = str(error).split(". ")[0]
        raise UserError(f"TVM does not take the target {target!r} ({reason})", _FORMS) from error
    if config["kind"] == "llvm":
        return cpu.from_config(config)
    if config["kind"] == "cuda":
        return _cuda([str(config.get("arch"))])
    if config["kind"] == "rocm":
        return _rocm([str(config.get("mcpu"))])
    raise UserError(f"unknown target kind {str(config['kind'])!r}", _FORMS)


def _probe(kind: str) -> tuple[Device, ...]:
    return probe.cuda_devices() if kind == "cuda" else probe.rocm_devices()


def _known(kind: str) -> list[str]:
    return [arch for arch, device in GPUS.items() if device.kind == kind]


def _present(kind: str) -> list[str]:
    """Return the architecture of the first such device in this machine."""
    devices = _probe(kind)
    if not devices:
        raise UserError(
            f"target {kind!r} names no architecture and this machine has no such device",
            f"one of {', '.join(_known(kind))}",
            f"name it, as in {kind}:{_known(kind)[1]}",
        )
    return [devices[0].arch]


def _device(kind: str, arch: str) -> Device:
    """Return the device of this architecture in this machine, or else the table's."""
    if arch not in _known(kind):
        raise UserError(
            f"unknown {kind} architecture {arch!r}",
            f"one of {', '.join(_known(kind))}",
            cpu.nearest(arch, _known(kind)),
        )
    return next((device for device in _probe(kind) if device.arch == arch), GPUS[arch])


def _cuda(names: list[str]) -> TargetSpec:
    devices = {name: _device("cuda", name) for name in names}
    archs = tuple(arch for arch in GPUS if arch in devices)  # the table ascends
    return TargetSpec("cuda", archs, tuple(devices[arch] for arch in archs))


def _rocm(names: list[str]) -> TargetSpec:
    if len(names) != 1:
        raise UserError(
            f"target 'rocm:{','.join(names)}' names {len(names)} architectures",
            "one, since TVM puts one code object into a module",
            "compile an artifact for each",
        )
    arch = names[0]
    for prefix, reason in REFUSED.items():
        if arch.startswith(prefix):
            known = ", ".join(_known("rocm"))
            raise UserError(f"rocm architecture {arch!r} is refused: {reason}", f"one of {known}")
    # Without this feature LLVM lets waves pass `s_barrier` before their writes to shared memory
    # have landed.
    attrs = (("mattr", ("-back-off-barrier",)),)
    return TargetSpec("rocm", (arch,), (_device("rocm", arch),), attrs)
