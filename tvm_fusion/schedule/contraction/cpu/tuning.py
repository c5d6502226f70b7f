"""The design space of GEMMs on CPUs: blockings that a tuner may choose between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....core.template import Claim, Config, Refusal
from ...index.design_space import find, not_in_space, plain
from .config import CpuGemmConfig


def blockings(gemms: Iterable[CpuGemmConfig]) -> Iterator[Config]:
    """Enumerate the blockings of a GEMM as plain data."""
    return (plain(gemm.sizes) for gemm in gemms)


def with_blocking(claim: Claim, config: Config, gemms: Iterable[CpuGemmConfig]) -> Claim | Refusal:
    """Give the GEMM of a claim the blocking that a configuration describes.

    Parameters
    ----------
    claim : Claim
        The field ``gemm`` of its configuration is replaced.
    config : Config
        Plain data, as :func:`blockings` gives it.
    gemms : iterable of CpuGemmConfig
        The design space.
    """
    by_sizes = {gemm.sizes: gemm for gemm in gemms}
    sizes = find(by_sizes, config)
    if sizes is None:
        return not_in_space(claim, config)
    chosen = replace(claim.details["config"], gemm=by_sizes[sizes])
    return replace(claim, details={**claim.details, "config": chosen})
