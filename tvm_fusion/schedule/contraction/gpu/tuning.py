"""The design space of a claimed contraction on a GPU, and the claim of another configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....core.contract.template import Claim
from ....device import Device
from ....ecg.work import at
from ..skinny.gemv_config import GemvConfig
from ..tile.config import TileGemmConfig
from .emit import GpuContractionDetails
from .space import GemmConfig, GpuGemmProblem, configs


def designs(claim: Claim, device: Device) -> Iterator[GemmConfig]:
    """Enumerate configurations, the claimed one first; none where the kernel has no choices."""
    details = claim.details_as(GpuContractionDetails)
    claimed = details.config
    if claimed.gemm is None or not details.has_choices:
        return
    norm_scale = claimed.gemm.norm_scale if isinstance(claimed.gemm, GemvConfig) else None
    problem = GpuGemmProblem(claimed.contraction, device, norm_scale)
    yield from configs(problem, claimed.gemm)


def configured(claim: Claim, config: GemmConfig) -> Claim:
    """Reconfigure a claim."""
    details = claim.details_as(GpuContractionDetails)
    claimed = details.config
    return replace(
        claim,
        launches=claim.launches - gemm_launches(claimed.gemm) + gemm_launches(config),
        bytes=claim.bytes - workspace_bytes(claimed.gemm) + workspace_bytes(config),
        parallelism=at(config.blocks),
        shared_bytes=config.shared_bytes,
        registers=config.registers,
        details=replace(details, config=replace(claimed, gemm=config)),
    )


def gemm_launches(gemm: GemmConfig | None) -> int:
    """Count the kernels of a product: a second one adds up the sums of split-K in memory."""
    return 2 if isinstance(gemm, TileGemmConfig) and gemm.tile.has_workspace else 1


def workspace_bytes(gemm: GemmConfig | None) -> int:
    """Count the bytes of sums of split-K that are written to memory and read again."""
    return 2 * 4 * gemm.workspace_elements if isinstance(gemm, TileGemmConfig) else 0
