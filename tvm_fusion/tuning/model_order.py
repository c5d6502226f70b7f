"""Which configurations of a GPU's design space to measure: those that models rank first, all sorts.

The default; of each tile (its sizes, and how warps share it) the configuration with the least
estimate, in the order of the estimates; of the default's tile two other pipelines or orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.template import Claim, Config
from ..device import Device
from ..schedule.attention import space as attention_configs
from ..schedule.attention.flash import model as flash_mma_model
from ..schedule.attention.flash.problem import flash_problem
from ..schedule.attention.problem.constants import read_group
from ..schedule.attention.problem.pattern import Pattern
from ..schedule.contraction.gpu import space as gemm_configs_gpu
from ..schedule.contraction.gpu.emit import GpuContractionDetails
from ..schedule.contraction.gpu.tuning import designs
from ..schedule.contraction.tile.config import TileGemmConfig

# What makes a tile, of GEMM and of attention; the rest are its variants.
TILE = (
    *("kernel", "block_m", "block_n", "warps_m", "warps_n", "consumers", "is_ping_pong"),
    *("blocks_per_sm", "split_k", "warps", "rows_of_warp", "uses_wgmma"),
)
USUAL_GROUP_M = 8
VARIANTS = 2

Estimated = tuple[float, Config]


def choose(found: Sequence[Estimated], default: Config, count: int) -> list[Config]:
    """Choose configurations by what they are estimated to take.

    Parameters
    ----------
    found : sequence of (float, Config)
        A design space with the clocks of each.
    default : Config
        The first one that is chosen.
    """
    ranked = [
        config
        for _, config in sorted(
            found, key=lambda one: (one[0], one[1].get("group_m", 0) != USUAL_GROUP_M)
        )
        if config != default
    ]
    variants = [c for c in ranked if _tile(c) == _tile(default)]
    variants = variants[: min(VARIANTS, (count - 1) // 2)]
    tiles = {_tile(default)}
    others = []
    for config in ranked:
        if _tile(config) not in tiles:
            tiles.add(_tile(config))
            others.append(config)
    chosen = [default, *others[: max(0, count - 1 - len(variants))], *variants]
    chosen += [c for c in ranked if c not in chosen]  # small design spaces
    return chosen[:count]


def estimated(claim: Claim, device: Device) -> list[Estimated]:
    """Return the configurations of a claimed GEMM or attention, and their clocks by the model.

    Nothing of other kernels, for which there is no model of configurations.
    """
    if device.kind == "llvm":
        return []
    if claim.template.name == "attention":
        pattern = read_group(claim.group, claim.template._floats)  # type: ignore[attr-defined]
        return list(_attention(pattern, device)) if isinstance(pattern, Pattern) else []
    details = claim.details
    if not isinstance(details, GpuContractionDetails) or details.config.tile is None:
        return []
    found = [x for x in designs(claim, device) if isinstance(x, TileGemmConfig)]
    return [(gemm_configs_gpu.clocks(x, device), gemm_configs_gpu.KERNELS.plain(x)) for x in found]


def _attention(pattern: Pattern, device: Device) -> Iterator[Estimated]:
    problem = flash_problem(pattern)
    if problem is not None:
        for config in flash_mma_model.configs(problem, device):
            cycles = flash_mma_model.cycles(config, problem, device)
            yield cycles, attention_configs.KERNELS.plain(config)


def _tile(config: Config) -> tuple[object, ...]:
    return tuple(config.get(name) for name in TILE)
