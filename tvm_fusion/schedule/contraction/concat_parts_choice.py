"""Whether the kernel of a product stores the other parts of a concatenation: what it would cost.

Threads of few blocks would copy a large part, as a cache beside the keys of one token, in more time
than a kernel of its own takes to be launched and to read the product again.
"""

from __future__ import annotations

from ...core.template import Refusal
from ...device import Device
from ...ecg.work import at
from .concat_parts_gpu import ConcatParts
from .gemm_configs_gpu import clocks as tile_clocks
from .gemv_config import GemvConfig
from .tile_gemm_config import TileGemmConfig
from .tile_gemm_model import RATES
from .wgmma_config import WgmmaConfig
from .wgmma_roles import IDLE_THREADS

MOST_ROUNDS = 3  # of loads from memory that nothing hides: about the time of a launch


def refuse_parts(
    beside: ConcatParts, config: TileGemmConfig | GemvConfig | None, device: Device
) -> Refusal | None:
    """Refuse parts that take longer by the threads of a product than by a kernel of their own.

    Parameters
    ----------
    beside : ConcatParts
        The parts.
    config : TileGemmConfig, GemvConfig or None
        Of the product.
    device : Device
        A GPU.
    """
    if config is None:
        sentence = "Only tiled GEMMs on tensor cores and skinny GEMMs store parts they do not add."
        return Refusal("epilogue_elsewhere", sentence)
    if isinstance(config, TileGemmConfig) and config.has_workspace:
        sentence = "Split-K through global memory stores the product alone in its second launch."
        return Refusal("epilogue_elsewhere", sentence)
    if isinstance(config, WgmmaConfig) and config.computes_b:
        sentence = "Threads that compute an operand of a product store no parts beside it."
        return Refusal("epilogue_elsewhere", sentence)
    if isinstance(config, WgmmaConfig):
        threads, most = IDLE_THREADS, int(tile_clocks(config, device) / RATES.latency)
    else:
        threads, most = config.threads, MOST_ROUNDS
    rounds = beside.rounds(at(config.blocks) * threads)
    if rounds <= max(most, MOST_ROUNDS):
        return None
    return Refusal(
        "epilogue_elsewhere",
        f"Other parts of a concatenation take the threads of the product {rounds} rounds of loads, "
        "longer than a kernel of their own.",
    )
