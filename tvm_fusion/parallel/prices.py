"""What splitting costs and saves: bytes over links and from memory, and the time to begin."""

from __future__ import annotations

from ..device.links import Link, link_of
from ..device.model import Device
from ..words import counted
from .plan import Collective, Product, Region

_GB = 1e9
_MICROSECOND = 1e-6
_UNKNOWN_BANDWIDTH, _UNKNOWN_FLOPS = 50 * _GB, 1e12  # of devices whose figures are not known
_ASSUMED_DTYPES = ("float16", "float32")


def seconds_saved(products: list[Product], device: Device, size: int) -> float:
    """Estimate what workers save who read and compute a part of each product."""
    bandwidth = device.memory_bandwidth or _UNKNOWN_BANDWIDTH
    known = [device.peak_flops[d] for d in _ASSUMED_DTYPES if d in device.peak_flops]
    flops = known[0] if known else _UNKNOWN_FLOPS
    whole = sum(max(one.weight_bytes / bandwidth, one.flops / flops) for one in products)
    return whole * (1 - 1 / size)


def seconds_spent(collectives: list[Collective], link: Link, size: int) -> float:
    """Estimate what collectives take, by rings: a sum travels twice, a gathered tensor once."""
    spent = 0.0
    for one in collectives:
        trips = 2 if one.kind == "allreduce" else 1
        spent += link.latency + trips * one.nbytes * (size - 1) / size / link.bandwidth
    return spent


def pays(region: Region, device: Device, size: int) -> tuple[bool, str]:
    """Decide whether a region is split, and say why."""
    link = link_of(device)
    saved = seconds_saved(region.products, device, size) / _MICROSECOND
    spent = seconds_spent(region.collectives, link, size) / _MICROSECOND
    count = len(region.collectives)
    take = "takes" if count == 1 else "take"
    rest = f"{counted(count, 'exchange')} over {link.name} {take} {spent:.0f} us"
    verb = "saves" if saved > spent else "would save"
    return saved > spent, f"splitting it {verb} {saved:.0f} us, and {rest}"
