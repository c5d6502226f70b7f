"""The design space of GEMMs on CPUs: blockings that a tuner may choose between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....core.contract.template import Claim, Config, Refusal
from ...index.design_space import find, not_in_space, plain
from .config import CpuGemmConfig


def blockings(gemms: Iterable[CpuGemmConfig]) -> Iterator[Config]:
    """Enumerate the blockings of a GEMM as plain data."""
    return (plain(gemm.sizes) for gemm in gemms)


def of_blocking(
    claim: Claim, config: Config, gemms: Iterable[CpuGemmConfig]
) -> CpuGemmConfig | Refusal:
    """Find the GEMM of the blocking that a configuration describes.

    Parameters
    ----------
    config : Config
        Plain data, as :func:`blockings` gives it.
    """
    by_sizes = {gemm.sizes: gemm for gemm in gemms}
    sizes = find(by_sizes, config)
    return not_in_space(claim, config) if sizes is None else by_sizes[sizes]
