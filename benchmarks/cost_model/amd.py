"""What features of kernels for AMD GPUs cost at least: the data sheet's rates."""

from benchmarks.amd_clocks.model import CACHE, LAUNCH_US, megahertz
from tvm_fusion.device import GPUS
from tvm_fusion.fusion.fitted import MODELLED
from tvm_fusion.schedule.contraction.mma.model import RATES

L1_BYTES = 64  # a clock of a compute unit


def least(arch: str, kind: str) -> dict[str, float]:
    """Tell what features cost at the peak rates of a device, a launch as the planner assumes.

    Parameters
    ----------
    arch, kind
        Such as ``gfx942``; of coefficients.
    """
    device = GPUS[arch]
    units, hertz = device.sm_count or 1, megahertz(device) * 1e6
    memory = 1e6 * 1024 / (device.memory_bandwidth or 1)
    every = {
        "launches": LAUNCH_US,
        "weight_kib": memory,
        "other_kib": memory,
        "cached_kib": memory / CACHE / 2,
        "unit_kib": 1e6 * 1024 / (L1_BYTES * hertz),
    }
    # An element that is stored alone is a request of its own: one a clock of a compute unit.
    stores = {"element_stores": 1e12 / (units * hertz)}
    if kind.endswith(MODELLED):  # which count memory, too, in clocks of as many products
        peak = device.peak_flops["float16"]
        return {**stores, "kiloclocks": 1e9 * 2 * RATES.mma * units / peak / 2}
    rates = {name: 1e12 / device.peak_flops[name] for name in ("float16", "float32")}
    return {**every, **stores, "matrix_mflop": rates["float16"], "vector_mflop": rates["float32"]}
