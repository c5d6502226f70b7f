"""The choice of a tile for tensor cores of operands as they are, of groups, or of copies.

Models estimate clocks. Copies of operands that neither TMA nor cp.async can read pay where
the product behind them is faster by more than they take.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tvm import ir

from ....core.template import Refusal
from ....device import Device
from ....ecg.work import at
from ..copies.aligned_rows import aligned_rows
from ..copies.grouped_convolution import grouped_gemms
from ..copies.implicit_gemm import ImplicitGemm, implicit_gemm, with_stored_columns
from ..copies.operand_copies import OperandCopies, copies_clocks, packing_clocks
from ..copies.partial_im2col import partial_im2col
from ..mma.model import RATES
from ..mma.unaligned_tiles import narrow_copy_clocks
from ..problem.ragged_rows import ragged_rows
from ..problem.sum_of_products import SumOfProducts
from ..skinny.gemv_config import GemvConfig
from ..tile.concat_parts import ConcatParts
from ..tile.config import TileGemmConfig, is_plain
from ..tile.operand import OperandTile
from ..tile.problem import gemm_problem, gemm_sizes
from ..wgmma.config import WgmmaConfig
from ..wgmma.model import BESIDE_MMA, wgmma_clocks
from ..wgmma.roles import IDLE_THREADS
from ..wgmma.space import FEW_ROWS, best_wgmma_tile, has_wgmma
from .space import GemmConfig, GpuGemmProblem, clocks
from .space import clocks as tile_clocks

# How much longer tiles take whose elements are loaded one by one: on an H200, images of 56 by 56
# pixels and 64 channels in half types, NCHW against NHWC.
GATHERED = 8
# The same of tiles of mma.sync whose words threads shift, as odd row lengths want it; others are
# copied in 8 or 4 bytes. On an H200 in half types, with copies to aligned rows: 77 by 7207 by 4210
# 65 us against 130, 53 by 667 by 8108 10.4 against 15.4; 164 by 47 by 4789 9.1 against 6.6.
SHIFTED = 3.5
LEAST_ALIGNED_K = 128  # of a product that is worth copies of its operands
LEAST_CHANNELS = 2  # of a convolution's output: those of a decoder's last are 3, a pixel's colours

TileOfCopies = tuple[OperandCopies, TileGemmConfig]


def is_gathered(tile: TileGemmConfig) -> bool:
    """Whether an operand's elements are loaded one by one, as those of NCHW images."""
    sides = ((True, tile.staged_a), (False, tile.staged_b))
    return any(staged and OperandTile(tile, is_a).is_gathered for is_a, staged in sides)


def conv_tile(contraction: SumOfProducts, device: Device) -> TileGemmConfig | None:
    """Choose the tile of a convolution, which may have very few channels."""
    return GpuGemmProblem(contraction, device, least_rows=LEAST_CHANNELS).tile


def is_dequantized(tile: TileGemmConfig) -> bool:
    """Whether what threads compute of a tile are weights of int4 or int8, by pairs."""
    sides = ((True, tile.staged_a), (False, tile.staged_b))
    found = [OperandTile(tile, is_a).is_dequantized for is_a, staged in sides if staged]
    return bool(found) and all(found)


def tile_of_groups(
    contraction: SumOfProducts, constants: Collection[ir.Var], device: Device
) -> tuple[ImplicitGemm, TileGemmConfig] | None:
    """Choose how many groups of a convolution are joined, and a tile, by what models estimate.

    Parameters
    ----------
    contraction, constants, device
        As in :func:`behind_aligned_rows`.

    Returns
    -------
    (ImplicitGemm, TileGemmConfig) or None
        ``None`` for what is no grouped convolution of channels-last images by a constant weight.
    """
    found: list[tuple[float, ImplicitGemm, TileGemmConfig]] = []
    for one in grouped_gemms(contraction, constants):
        made = replace(one, contraction=with_stored_columns(one.contraction, {one.packed}))
        tile = conv_tile(made.contraction, device)
        if tile is not None and not is_gathered(tile):
            found.append((clocks(tile, device), made, tile))
    best = min(found, key=lambda one: one[0], default=None)
    return None if best is None else best[1:]


def behind_aligned_rows(
    contraction: SumOfProducts,
    tile: GemmConfig | None,
    constants: Collection[ir.Var],
    device: Device,
) -> TileOfCopies | None:
    """Choose wgmma behind copies of operands that are not aligned, where it is faster with them.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    tile : GemvConfig, TileGemmConfig or None
        The default of its operands as they are.
    constants : collection of Var
        Inputs that are known at compile time.
    device : Device
        A GPU.

    Returns
    -------
    TileOfCopies or None
        ``None`` where the tile is faster.
    """
    if not isinstance(tile, TileGemmConfig) or isinstance(tile, WgmmaConfig):
        return None
    if tile.k < LEAST_ALIGNED_K:
        return None
    copies = aligned_rows(contraction, constants)
    problem = None if copies is None else gemm_problem(copies.contraction, device)
    large = None if problem is None else best_wgmma_tile(problem, device)
    if copies is None or large is None:
        return None
    copied = wgmma_clocks(large, device, BESIDE_MMA) + copies_clocks(copies, device)
    small = clocks(tile, device) - RATES.launch
    small *= SHIFTED if tile.staged_a or tile.staged_b else 1
    small += narrow_copy_clocks(tile, device)
    return (copies, large) if copied < RATES.launch + small else None


def behind_im2col(
    contraction: SumOfProducts,
    tile: GemmConfig | None,
    constants: Collection[ir.Var],
    device: Device,
) -> TileOfCopies | None:
    """Choose a tile behind a partial im2col instead of one of a gathered image, where faster.

    Parameters
    ----------
    contraction, tile, constants, device
        As in :func:`behind_aligned_rows`; the product as the graph has it, no implicit GEMM.
    """
    if not isinstance(tile, TileGemmConfig) or not is_gathered(tile):
        return None
    copies = partial_im2col(contraction, constants)
    if copies is None:
        return None
    copied = conv_tile(copies.contraction, device)
    if copied is None:
        return None
    copying = clocks(copied, device) + copies_clocks(copies, device)
    return (copies, copied) if copying < _gathered_clocks(tile, device) else None


def behind_packed_weight(
    contraction: SumOfProducts,
    tile: GemmConfig | None,
    inputs: Collection[ir.Var],
    device: Device,
) -> tuple[ImplicitGemm, TileGemmConfig] | None:
    """Choose an implicit GEMM whose weight a kernel packs first, instead of gathers, where faster.

    Parameters
    ----------
    contraction, tile, device
        As in :func:`behind_im2col`.
    inputs : collection of Var
        Of the program: one of them may be the weight.
    """
    if not isinstance(tile, TileGemmConfig) or not is_gathered(tile):
        return None
    made = implicit_gemm(contraction, inputs)
    if made is None:
        return None
    made = replace(made, contraction=with_stored_columns(made.contraction, {made.packed}))
    packed = conv_tile(made.contraction, device)
    if packed is None or is_gathered(packed):
        return None
    packing = clocks(packed, device) + packing_clocks(made, device)
    return (made, packed) if packing < _gathered_clocks(tile, device) else None


def _gathered_clocks(tile: TileGemmConfig, device: Device) -> float:
    """Estimate a tile whose elements are loaded one by one."""
    return RATES.launch + GATHERED * (clocks(tile, device) - RATES.launch)


# The tile of a product of ragged rows on a GPU, or why it is better without what was fused.
def ragged_tile(contraction: SumOfProducts, device: Device) -> TileGemmConfig | Refusal | None:
    """Choose the tile of a product of ragged rows.

    Parameters
    ----------
    contraction : SumOfProducts
        A product.
    device : Device
        A GPU.

    Returns
    -------
    TileGemmConfig, Refusal or None
        ``None`` if its rows are not ragged, or no tensor cores multiply them. A refusal for rows
        that are gathered or computed: TMA copies those of a tensor alone.
    """
    if ragged_rows(contraction) is None:
        return None
    tile = GpuGemmProblem(contraction, device).tile
    if tile is None:
        return None
    if not is_plain(tile.a) and has_wgmma(device) and gemm_sizes(tile).m > FEW_ROWS:
        return Refusal(
            "prologue_recomputed",
            f"{contraction.stage.title} would gather or compute its rows for every tile of "
            "columns, and could not copy them by TMA.",
        )
    return tile


# Whether the kernel of a product stores the other parts of a concatenation: what it would cost.
#
# Threads of few blocks would copy a large part, as a cache beside the keys of one token, in more
# time than a kernel of its own takes to be launched and to read the product again.
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
