"""From what a user writes to a target."""

from typing import Any

from ..errors import UserError
from . import cpu, probe
from .architecture import guess_kind
from .model import Device, Kind
from .table import GPUS, REFUSED, known_archs
from .target import TargetSpec, archs_of

_GPU_KINDS: tuple[Kind, ...] = ("cuda", "rocm")
#: What a target may look like, for a reader.
EXAMPLES = (
    "cpu (this machine, the default), cpu:NAME, cpu:x86-64-v3,sapphirerapids, cuda:sm_80,sm_90a, "
    "rocm:gfx942"
)
_FORMS = "cpu, cpu:<name>[,<name>], cuda:<sm_..>[,<sm_..>] or rocm:<gfx..>[,<gfx..>]"


def parse(target: Any) -> TargetSpec:
    """Read a target.

    Parameters
    ----------
    target : str, dict, tvm.target.Target or TargetSpec
        ``"llvm"`` or ``"cpu"``: this machine. ``"cpu:<name>"``: LLVM's name of an x86 or Arm CPU,
        with ``,+feature`` or ``,-feature`` behind it. ``"cuda"``, ``"rocm"``: the device in this
        machine. ``"cpu:x86-64-v3,sapphirerapids"``, ``"cuda:sm_80,sm_90a"``, ``"rocm:gfx942"``:
        compiled for without being present, each architecture with kernels of its own.
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
        return cpu.several(names) if names else cpu.host()
    if kind in _GPU_KINDS:
        return _gpu(kind, names or _present(kind))
    raise UserError(f"unknown target {target!r}", _FORMS, _advice(kind))


def _advice(kind: str) -> str | None:
    """Guess what was meant by a kind of target that does not exist."""
    if meant := guess_kind(kind):
        return f"write {meant}:{kind}"
    if kind in ("gpu", "nvidia", "amd", "hip"):
        return "write " + {"nvidia": "cuda", "amd": "rocm", "hip": "rocm"}.get(kind, "cuda or rocm")
    return cpu.nearest(kind, ("cpu", "llvm", "cuda", "rocm"))


def _from_tvm(target: Any) -> TargetSpec:
    from tvm.target import Target

    try:
        target = Target(target)
        config = {str(key): value for key, value in target.export().items()}
    except (TypeError, ValueError) as error:
        reason = str(error).split(". ")[0]
        raise UserError(f"TVM does not take the target {target!r} ({reason})", _FORMS) from error
    if config["kind"] == "llvm":
        return cpu.from_config(config).permitting(list(map(str, target.keys)))
    kind = str(config["kind"])
    if kind in _GPU_KINDS:
        return _gpu(kind, archs_of(target)).permitting(list(map(str, target.keys)))
    raise UserError(f"unknown target kind {kind!r}", _FORMS)


def device_of(target: Any) -> Device:
    """Return what a TVM target's device can do.

    Parameters
    ----------
    target : tvm.target.Target or Device
        A Device is returned as it is. Of several architectures it is the lowest's.
    """
    return target if isinstance(target, Device) else parse(target).device


def _probe(kind: str) -> tuple[Device, ...]:
    return probe.cuda_devices() if kind == "cuda" else probe.rocm_devices()


def _present(kind: str) -> list[str]:
    """Return the architecture of the first such device in this machine."""
    devices = _probe(kind)
    if not devices:
        raise UserError(
            f"target {kind!r} names no architecture and this machine has no such device",
            f"one of {', '.join(known_archs(kind))}",
            f"name it, as in {kind}:{known_archs(kind)[1]}",
        )
    return [devices[0].arch]


def _device(kind: str, arch: str) -> Device:
    """Return the device of this architecture in this machine, or else the table's."""
    if arch not in known_archs(kind):
        raise UserError(
            f"unknown {kind} architecture {arch!r}",
            f"one of {', '.join(known_archs(kind))}",
            cpu.nearest(arch, known_archs(kind)),
        )
    return next((device for device in _probe(kind) if device.arch == arch), GPUS[arch])


def _gpu(kind: Kind, names: list[str]) -> TargetSpec:
    for name in names:
        for prefix, reason in REFUSED.items():
            if kind == guess_kind(prefix) and name.startswith(prefix):
                found = f"{kind} architecture {name!r} is refused: {reason}"
                raise UserError(found, f"one of {', '.join(known_archs(kind))}")
    devices = {name: _device(kind, name) for name in names}
    archs = tuple(arch for arch in GPUS if arch in devices)  # the table ascends
    return TargetSpec(kind, archs, tuple(devices[arch] for arch in archs))
