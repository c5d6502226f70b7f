"""What to compile for, and the TVM target that says so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import probe
from .model import Device, Kind
from .table import GPUS

# How wide LLVM makes vectors of loops; kernels written in vectors keep theirs. LLVM prefers
# 512 bits on AMD's CPUs alone, and computes some strided loops wrongly then: see the test of
# PREFER_256 in tests/schedule/contraction/gpu/test_dynamic_m_gpu.py.
PREFER_256 = "+prefer-256-bit"
# With the feature, which LLVM takes for granted on AMD's GPUs, waves pass `s_barrier` before their
# writes to shared memory have landed.
WAIT_AT_BARRIERS = "-back-off-barrier"
# Names of what kernels may do if the user allows it, as tvm_fusion.core.flags has them; they stand
# among the keys of the target.
TF32_KEY, APPROXIMATE_KEY = "tf32", "approximate"


@dataclass(frozen=True)
class TargetSpec:
    """What to compile for.

    Attributes
    ----------
    kind : {"llvm", "cuda", "rocm"}
        TVM's target kind.
    archs
        Architectures, ascending.
    devices
        What each of them can do, in the same order.
    attrs : tuple of tuple of (str, value)
        Of each CPU, in the same order, the attributes of its TVM target, sorted by name; none of
        GPUs, which the table decides.
    """

    kind: Kind
    archs: tuple[str, ...]
    devices: tuple[Device, ...]
    attrs: tuple[tuple[tuple[str, Any], ...], ...] = ()

    @property
    def device(self) -> Device:
        """The device that schedules aim at: the lowest architecture's."""
        return self.devices[0]

    def permitting(self, flags: Collection[str]) -> TargetSpec:
        """Return the same, whose kernels may use what the user allowed.

        Parameters
        ----------
        flags
            Of :data:`tvm_fusion.core.flags.FLAGS`; others than those of kernels change nothing.
        """
        rounds = self.kind == "cuda" and TF32_KEY in flags
        approximates = self.kind == "llvm" and APPROXIMATE_KEY in flags
        if not rounds and not approximates:
            return self
        return replace(
            self,
            devices=tuple(
                replace(device, rounds_to_tf32=rounds, approximates=approximates)
                for device in self.devices
            ),
        )

    def of(self, archs: Sequence[str]) -> TargetSpec:
        """Return the same for some of its architectures."""
        kept = [i for i, arch in enumerate(self.archs) if arch in archs]
        return replace(
            self,
            archs=tuple(self.archs[i] for i in kept),
            devices=tuple(self.devices[i] for i in kept),
            attrs=tuple(self.attrs[i] for i in kept if self.attrs),
        )

    @property
    def each(self) -> tuple[TargetSpec, ...]:
        """The same for each of its architectures alone."""
        return tuple(self.of((arch,)) for arch in self.archs)

    @property
    def triple(self) -> str | None:
        """LLVM triple of the host code when it is another architecture's than this machine's."""
        triple = dict(self.attrs[0]).get("mtriple") if self.kind == "llvm" else None
        return triple if triple and triple.split("-")[0] != probe.machine() else None

    @property
    def text(self) -> str:
        """Canonical form, which :func:`~tvm_fusion.device.parse` reads back."""
        if self.kind == "llvm":
            each = zip(self.devices, map(dict, self.attrs), strict=True)
            words = [word for d, attrs in each for word in (d.arch, *attrs.get("mattr", ()))]
            return f"cpu:{','.join(words)}"
        return f"{self.kind}:{','.join(self.archs)}"

    def __str__(self) -> str:
        return self.text

    def tvm_target(self) -> Any:
        """Return the ``tvm.target.Target`` with which schedules and code are made, host included.

        For several architectures it is that of kernels that all of them run: the lowest one, with
        limits that all of them meet, and all of them among its keys; so is what is allowed.
        """
        from tvm.target import Target

        config: dict[str, Any] = {"kind": self.kind}
        if self.kind == "llvm":
            config |= self.attrs[0]
            # TVM's own answer is 512 for every x86 CPU, AVX or not.
            config["vector-width"] = self.device.vector_bits
            if "avx512f" in self.device.features:
                config["mattr"] = (*config.get("mattr", ()), PREFER_256)
            if self.device.approximates:
                return Target({**config, "keys": ("cpu", APPROXIMATE_KEY)}, host=config)
            return Target(config, host=config)
        config["arch" if self.kind == "cuda" else "mcpu"] = self.archs[0]
        several = self.archs if len(self.archs) > 1 else ()
        flags = (TF32_KEY,) if self.device.rounds_to_tf32 else ()
        if several or flags:
            config["keys"] = (self.kind, "gpu", *several, *flags)
        threads = self._least("max_threads_per_block")
        config["max_num_threads"] = config["max_threads_per_block"] = threads
        config["max_shared_memory_per_block"] = self._least("shared_memory_per_block")
        config["thread_warp_size"] = self.device.warp_size
        if self.kind == "cuda":
            config["registers_per_block"] = self._least("registers_per_block")
            config["l2_cache_size_bytes"] = self._least("l2_bytes")
        else:
            config["mattr"] = (WAIT_AT_BARRIERS,)
        return Target(config, host="llvm")

    def _least(self, figure: str) -> int:
        return min(getattr(device, figure) for device in self.devices)


def archs_of(target: Any) -> list[str]:
    """Read the architectures back that a GPU's TVM target is for: several are among its keys."""
    several = [str(key) for key in target.keys if str(key) in GPUS]
    return several or [str(target.attrs.get("arch" if target.kind.name == "cuda" else "mcpu"))]
