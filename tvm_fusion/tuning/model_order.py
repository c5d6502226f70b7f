"""Which configurations of a design space to measure: those that its model ranks first, all sorts.

The model is the template's: :meth:`..core.template.Template.estimates`. Chosen are the default; of
each tile (its sizes, and how warps share it) the configuration with the least estimate, in the
order of the estimates; of the default's tile two other pipelines or orders.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.template import Config

# What makes a tile, of GEMM and of attention; the rest are its variants.
TILE = (
    *("kernel", "block_m", "block_n", "warps_m", "warps_n", "consumers", "is_ping_pong"),
    *("blocks_per_sm", "split_k", "warps", "rows_of_warp", "uses_wgmma"),
)
USUAL_GROUP_M = 8
VARIANTS = 2

Estimated = tuple[Config, float]


def choose(found: Sequence[Estimated], default: Config, count: int) -> list[Config]:
    """Choose configurations by what they are estimated to take.

    Parameters
    ----------
    found : sequence of (Config, float)
        A design space with the clocks of each.
    default : Config
        The first one that is chosen.
    """
    ranked = [
        config
        for config, _ in sorted(
            found, key=lambda one: (one[1], one[0].get("group_m", 0) != USUAL_GROUP_M)
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


def _tile(config: Config) -> tuple[object, ...]:
    return tuple(config.get(name) for name in TILE)
