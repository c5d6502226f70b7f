"""How devices of one host reach each other."""

from dataclasses import dataclass

from .model import Device

_GB = 1e9
_MICROSECOND = 1e-6


@dataclass(frozen=True)
class Link:
    """How workers reach each other."""

    name: str  # for sentences
    bandwidth: float  # bytes per second that a device sends while it receives as many
    latency: float  # seconds that a collective of a few bytes takes


# Bandwidths from the vendors' data sheets, half of what they give for both directions. Latencies
# are assumed: that of a short collective of NCCL between GPUs of one host, not measured here.
_LINKS = {
    "sm_80": Link("NVLink 3", 300 * _GB, 10 * _MICROSECOND),
    "sm_90": Link("NVLink 4", 450 * _GB, 10 * _MICROSECOND),
    "sm_90a": Link("NVLink 4", 450 * _GB, 10 * _MICROSECOND),
    "sm_100": Link("NVLink 5", 900 * _GB, 10 * _MICROSECOND),
}
_PCIE = Link("PCIe 4", 25 * _GB, 20 * _MICROSECOND)
_SHARED_MEMORY = Link("shared memory", 4 * _GB, 100 * _MICROSECOND)


def has_peer_memory(device: Device) -> bool:
    """Tell whether kernels reach the memory of other devices of the host, over NVLink."""
    return device.arch in _LINKS


def link_of(device: Device) -> Link:
    """Return the link between devices of a kind on one host."""
    if device.kind == "llvm":
        return _SHARED_MEMORY
    return _LINKS.get(device.arch, _PCIE)
