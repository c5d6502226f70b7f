"""The tile of a product of ragged rows on a GPU, or why it is better without what was fused."""

from __future__ import annotations

from ...core.forms import other_form
from ...core.template import Refusal
from ...device import Device
from .gemm_configs_gpu import GpuGemmProblem
from .operands import SumOfProducts
from .ragged_rows import ragged_rows
from .tile_gemm_config import TileGemmConfig, is_plain
from .tile_gemm_problem import gemm_sizes
from .wgmma_configs import FEW_ROWS, has_wgmma


def ragged_tile(contraction: SumOfProducts, device: Device) -> TileGemmConfig | Refusal:
    """Choose the tile of a product of ragged rows.

    Parameters
    ----------
    contraction : SumOfProducts
        A product.
    device : Device
        A GPU.

    Returns
    -------
    TileGemmConfig or Refusal
        Another form is taken if its rows are not ragged, or no tensor cores multiply them; rows
        that are gathered or computed are refused: TMA copies those of a tensor alone.
    """
    if ragged_rows(contraction) is None:
        return other_form("Its rows are not ragged: there are no groups with a matrix each.")
    tile = GpuGemmProblem(contraction, device).tile
    if tile is None:
        return other_form("Tensor cores have no tile for it.")
    if not is_plain(tile.a) and has_wgmma(device) and gemm_sizes(tile).m > FEW_ROWS:
        return Refusal(
            "prologue_recomputed",
            f"{contraction.stage.title} would gather or compute its rows for every tile of "
            "columns, and could not copy them by TMA.",
        )
    return tile
