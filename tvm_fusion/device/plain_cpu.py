"""CPU targets that name no CPU, for which TVM makes code of the family's oldest."""

import warnings
from typing import Any

from . import probe


def plain_cpu_note(target: Any) -> str | None:
    """Say what to write instead of a TVM target such as ``Target("llvm")``.

    Parameters
    ----------
    target : tvm.target.Target, dict or any other
        As :func:`tvm_fusion.device.parse` takes it; a text names what is meant, ``"llvm"`` too.

    Returns
    -------
    str or None
        A sentence for a TVM target, or its dict, of kind ``llvm`` without ``mcpu``.
    """
    if isinstance(target, dict):
        config = target
    elif hasattr(target, "export"):
        config = {str(key): value for key, value in target.export().items()}
    else:
        return None
    if str(config.get("kind")) != "llvm" or config.get("mcpu") or config.get("mattr"):
        return None
    family = str(config.get("mtriple") or probe.machine()).split("-")[0]
    oldest = {"x86_64": "plain x86-64, without AVX", "aarch64": "plain AArch64"}.get(family, family)
    if family == probe.machine():
        named = 'write "cpu" for this machine, tvm_fusion.device.parse("cpu").tvm_target() in TVM'
    else:
        named = "name it as mcpu"
    return f"The target of kind llvm names no CPU, so kernels are for {oldest}: {named}."


def warn_of_plain_cpu(target: Any) -> None:
    """Warn a caller, as Python does, of a target that names no CPU."""
    note = plain_cpu_note(target)
    if note is not None:
        warnings.warn(note, stacklevel=3)
