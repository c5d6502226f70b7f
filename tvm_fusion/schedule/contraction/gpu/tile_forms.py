"""Forms of a product: what its kernel reads, its configuration, and its estimated time.

    as it is           the operands in memory
    grouped            a batch of implicit GEMMs, some groups joined; the weight packed before
    implicit GEMM      the weight packed before, the image as it is
    aligned rows       copies of operands that neither TMA nor cp.async can read, for wgmma
    partial im2col     a copy of the image with the terms of a pixel contiguous
    planes             an implicit GEMM of an image whose channels are planes
    packed weight      an implicit GEMM whose weight a kernel packs at run time

Which of them is taken: :mod:`.forms`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from tvm import ir

from ....core.contract.forms import other_form
from ....core.contract.template import Refusal
from ....device import Device
from ....ecg.work import at
from ...instructions.amd import FAMILIES as AMD_FAMILIES
from ...instructions.table import find_of_fragments
from ..copies.aligned_rows import aligned_rows
from ..copies.grouped_convolution import grouped_gemms
from ..copies.implicit_gemm import ImplicitGemm, implicit_gemm, with_stored_columns
from ..copies.operand_copies import OperandCopies, copies_clocks, packing_bytes, packing_clocks
from ..copies.partial_im2col import partial_im2col
from ..copies.weight_along_k import weight_along_k
from ..mma.model import RATES
from ..mma.unaligned_tiles import narrow_copy_clocks, planar_clocks, planar_operands
from ..problem.ragged_rows import ragged_rows
from ..problem.sum_of_products import SumOfProducts
from ..skinny.gemv.config import GemvConfig
from ..tile.config import TileGemmConfig, is_plain, narrow_operand
from ..tile.operand.chunks import OperandChunks
from ..tile.operand.tile import is_dequantized
from ..tile.problem import GemmProblem, gemm_sizes
from ..tile.read_problem import gemm_problem
from ..tile.results.concat_parts import ConcatParts
from ..wgmma.config import WgmmaConfig
from ..wgmma.model import BESIDE_MMA, wgmma_clocks
from ..wgmma.roles import IDLE_THREADS
from ..wgmma.space import FEW_ROWS, best_wgmma_tile, has_wgmma
from .space import GemmConfig, GpuGemmProblem, clocks

# How much longer tiles take whose elements are loaded one by one: on an H200, images of 56 by 56
# pixels and 64 channels in half types, NCHW against NHWC.
GATHERED = 8
# The same of planes, whose pixels neighbouring threads load: not measured.
PLANAR = 8
# The same of tiles of mma.sync whose words threads shift, as odd row lengths want it; others are
# copied in 8 or 4 bytes. On an H200 in half types, with copies to aligned rows: 77 by 7207 by 4210
# 65 us against 130, 53 by 667 by 8108 10.4 against 15.4; 164 by 47 by 4789 9.1 against 6.6.
SHIFTED = 3.5
LEAST_ALIGNED_K = 128  # of a product that is worth copies of its operands
LEAST_CHANNELS = 2  # of a convolution's output: those of a decoder's last are 3, a pixel's colours


@dataclass(frozen=True, eq=False)
class GemmForm:
    """A form of a product."""

    contraction: SumOfProducts  # the product of what the kernel reads
    gemm: GemmConfig | None  # how it is computed; ``None`` for CUDA cores without a configuration
    device: Device  # A GPU
    # What makes the operands that the kernel reads.
    copies: OperandCopies | ImplicitGemm | None = None
    at_run_time: bool = False  # whether a weight is packed at run time
    # Estimated clocks of the copies and of the product behind them.
    with_copies: float | None = None

    @property
    def tile(self) -> TileGemmConfig | None:
        """The configuration, if it is one of tiles."""
        return self.gemm if isinstance(self.gemm, TileGemmConfig) else None

    @cached_property
    def is_gathered(self) -> bool:
        """Whether elements of a tile are loaded one by one, others than of planes."""
        return self.tile is not None and not self.is_planar and is_gathered(self.tile.problem)

    @cached_property
    def is_planar(self) -> bool:
        """Whether a tile's channels are planes."""
        return self.tile is not None and any(planar_operands(self.tile.problem))

    @cached_property
    def clocks(self) -> float | None:
        """Estimated clocks of a multiprocessor; ``None`` where there is no model: without tiles."""
        found = self.clocks_of_vectors
        if found is None or self.with_copies is not None or not self.is_gathered:
            return found
        return RATES.launch + GATHERED * (found - RATES.launch)

    @cached_property
    def clocks_of_vectors(self) -> float | None:
        """The same as if operands were loaded in vectors: how elements arrive is left out."""
        if self.tile is None or self.with_copies is not None:
            return self.with_copies
        found = clocks(self.tile, self.device) - RATES.launch
        if self.is_gathered or isinstance(self.tile, WgmmaConfig):
            return RATES.launch + found
        if self.is_planar:
            sizes, planar = gemm_sizes(self.tile.problem), planar_operands(self.tile.problem)
            return RATES.launch + found + planar_clocks(self.tile.tile, sizes, self.device, planar)
        found *= SHIFTED if self.tile.problem.staged_a or self.tile.problem.staged_b else 1
        return RATES.launch + found + narrow_copy_clocks(self.tile, self.device)

    @property
    def launches(self) -> int:
        """Kernels that copy or pack operands at run time."""
        if isinstance(self.copies, OperandCopies):
            return self.copies.launches
        return int(self.at_run_time)

    @property
    def bytes(self) -> int:
        """Bytes that these read and write."""
        if isinstance(self.copies, OperandCopies):
            return self.copies.bytes
        if self.copies is None or not self.at_run_time:
            return 0
        return packing_bytes(self.copies)


def is_gathered(problem: GemmProblem) -> bool:
    """Whether an operand's elements are loaded one by one, as those of NCHW images."""
    sides = ((True, problem.staged_a), (False, problem.staged_b))
    return any(staged and OperandChunks(problem, is_a).is_gathered for is_a, staged in sides)


def computes_weights_only(problem: GemmProblem) -> bool:
    """Whether what threads compute of operands are weights of int4 or int8, by pairs."""
    sides = ((True, problem.staged_a), (False, problem.staged_b))
    found = [is_dequantized(problem, is_a) for is_a, staged in sides if staged]
    return bool(found) and all(found)


def grouped_form(
    contraction: SumOfProducts, constants: Collection[ir.Var], device: Device
) -> GemmForm | Refusal:
    """Join groups of a convolution to the batch of implicit GEMMs of the least estimated time."""
    views, found = 0, list[tuple[float, GemmForm]]()
    for one in grouped_gemms(contraction, constants):
        views += 1
        made = replace(one, contraction=with_stored_columns(one.contraction, {one.packed}))
        form = GemmForm(made.contraction, _conv_tile(made.contraction, device), device, made)
        if form.tile is not None and not form.is_gathered:
            found.append((clocks(form.tile, device), form))
    if not views:
        return other_form("It is not a grouped convolution with a constant weight.")
    if not found:
        return other_form(f"Of {views} ways to join groups, none has a tile that loads vectors.")
    return min(found, key=lambda one: one[0])[1]


def implicit_form(
    contraction: SumOfProducts, constants: Collection[ir.Var], device: Device
) -> GemmForm | Refusal:
    """Make an implicit GEMM of a convolution, its weight packed at compile time."""
    made = implicit_gemm(contraction, constants)
    if isinstance(made, Refusal):
        return made
    tile = _conv_tile(made.contraction, device)
    if tile is None:
        return other_form("Tensor cores have no tile for it.")
    return GemmForm(made.contraction, tile, device, made)


def planes_form(
    contraction: SumOfProducts, base: GemmForm, constants: Collection[ir.Var], device: Device
) -> GemmForm | Refusal:
    """Load channels from their planes, neighbouring pixels by neighbouring threads.

    Parameters
    ----------
    contraction, constants, device
        As in :func:`im2col_form`.
    """
    if not base.is_gathered:
        return _no_tile() if base.tile is None else _in_vectors()
    made = implicit_gemm(contraction, constants, of_planes=True)
    if isinstance(made, Refusal):
        return made
    tile = _conv_tile(made.contraction, device)
    if tile is None or not any(planar_operands(tile.problem)):
        return other_form("Tensor cores have no tile for it.")
    return GemmForm(made.contraction, tile, device, made)


def weight_along_k_form(
    contraction: SumOfProducts, constants: Collection[ir.Var], device: Device
) -> GemmForm | Refusal:
    """Let AMD's matrix cores read a weight that was packed along K at compile time."""
    sides = (str(narrow_operand(x).ty.dtype) for x in (contraction.left, contraction.right))
    row = find_of_fragments(device, *sides)
    if row is None or row.family not in AMD_FAMILIES:
        return other_form("The device's tiles have rows along either axis.")
    made = weight_along_k(contraction, constants)
    if isinstance(made, Refusal):
        return made
    tile = GpuGemmProblem(made.contraction, device).tile
    if tile is None:
        return other_form("Tensor cores have no tile for it.")
    return GemmForm(made.contraction, tile, device, made)


def aligned_rows_form(
    contraction: SumOfProducts,
    gemm: GemmConfig | None,
    constants: Collection[ir.Var],
    device: Device,
) -> GemmForm | Refusal:
    """Let wgmma read copies of operands whose rows are not aligned.

    Parameters
    ----------
    gemm : GemvConfig, TileGemmConfig or None
        The default of its operands as they are.
    constants
        Inputs that are known at compile time.
    """
    if not isinstance(gemm, TileGemmConfig):
        return _no_tile()
    if isinstance(gemm, WgmmaConfig):
        return other_form("wgmma reads the operands as they are.")
    if not has_wgmma(device):
        return other_form("The device has no wgmma.")
    if gemm.problem.k < LEAST_ALIGNED_K:
        return other_form(
            f"Its sums have {gemm.problem.k} terms, copies pay off from {LEAST_ALIGNED_K}."
        )
    copies = aligned_rows(contraction, constants)
    if isinstance(copies, Refusal):
        return copies
    problem = gemm_problem(copies.contraction, device)
    large = None if problem is None else best_wgmma_tile(problem, device)
    if large is None:
        return other_form("wgmma has no tile for it, even with aligned rows.")
    copied = wgmma_clocks(large, device, BESIDE_MMA) + copies_clocks(copies, device)
    return GemmForm(copies.contraction, large, device, copies, with_copies=copied)


def im2col_form(
    contraction: SumOfProducts, base: GemmForm, constants: Collection[ir.Var], device: Device
) -> GemmForm | Refusal:
    """Read a partial im2col of an image instead of gathering it.

    Parameters
    ----------
    contraction, constants, device
        As in :func:`aligned_rows_form`; the product as the graph has it, no implicit GEMM.
    """
    if not base.is_gathered:
        return _no_tile() if base.tile is None else _in_vectors()
    copies = partial_im2col(contraction, constants)
    if isinstance(copies, Refusal):
        return copies
    tile = _conv_tile(copies.contraction, device)
    if tile is None:
        return other_form("Tensor cores have no tile for it.")
    copied = clocks(tile, device) + copies_clocks(copies, device)
    return GemmForm(copies.contraction, tile, device, copies, with_copies=copied)


def packed_weight_form(
    contraction: SumOfProducts,
    base: GemmForm,
    inputs: Collection[ir.Var],
    constants: Collection[ir.Var],
    device: Device,
) -> GemmForm | Refusal:
    """Make an implicit GEMM whose weight a kernel packs first, instead of gathering it.

    Parameters
    ----------
    contraction, base, constants, device
        As in :func:`im2col_form`.
    inputs
        Of the program: one of them may be the weight.
    """
    if not base.is_gathered:
        return _no_tile() if base.tile is None else _in_vectors()
    made = implicit_gemm(contraction, inputs)
    if isinstance(made, Refusal):
        return made
    made = replace(made, contraction=with_stored_columns(made.contraction, {made.packed}))
    tile = _conv_tile(made.contraction, device)
    if tile is None:
        return other_form("Tensor cores have no tile for it.")
    if is_gathered(tile.problem):
        return other_form("Even with a packed weight its tile would load elements one by one.")
    packed = clocks(tile, device) + packing_clocks(made, device)
    at_run_time = made.source not in constants
    return GemmForm(made.contraction, tile, device, made, at_run_time, packed)


def _conv_tile(contraction: SumOfProducts, device: Device) -> TileGemmConfig | None:
    """Choose the tile of a convolution, which may have very few channels."""
    return GpuGemmProblem(contraction, device, least_rows=LEAST_CHANNELS).tile


def _no_tile() -> Refusal:
    return other_form("There is no tile without copies to compare with.")


def _in_vectors() -> Refusal:
    return other_form("Its tile already loads vectors, not single elements.")


# The tile of a product of ragged rows on a GPU, or why it is better without what was fused.
def ragged_tile(contraction: SumOfProducts, device: Device) -> TileGemmConfig | Refusal:
    """Choose the tile of a product of ragged rows.

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
    if not is_plain(tile.problem.a) and has_wgmma(device) and gemm_sizes(tile.problem).m > FEW_ROWS:
        return Refusal(
            "prologue_recomputed",
            f"{contraction.stage.title} would gather or compute its rows for every tile of "
            "columns, and could not copy them by TMA.",
        )
    return tile


# Whether the kernel of a product stores the other parts of a concatenation: what it would cost.
#
# Threads of few blocks would copy a large part, as a cache next to the keys of one token, in more
# time than a kernel of its own takes to be launched and to read the product again.
MOST_ROUNDS = 3  # of loads from memory that nothing hides: about the time of a launch


def refuse_parts(
    concat_parts: ConcatParts, config: TileGemmConfig | GemvConfig | None, device: Device
) -> Refusal | None:
    """Refuse parts that take longer by the threads of a product than by a kernel of their own."""
    if config is None:
        sentence = "Only tiled GEMMs on tensor cores and skinny GEMMs store parts they do not add."
        return Refusal("epilogue_elsewhere", sentence)
    if isinstance(config, TileGemmConfig) and config.tile.has_workspace:
        sentence = "Split-K through global memory stores the product alone in its second launch."
        return Refusal("epilogue_elsewhere", sentence)
    if isinstance(config, WgmmaConfig) and config.computes_b:
        sentence = "Threads that compute an operand of a product do not store other parts."
        return Refusal("epilogue_elsewhere", sentence)
    if isinstance(config, WgmmaConfig):
        threads, most = IDLE_THREADS, int(clocks(config, device) / RATES.latency)
    else:
        threads, most = config.threads, MOST_ROUNDS
    rounds = concat_parts.rounds(at(config.blocks) * threads)
    if rounds <= max(most, MOST_ROUNDS):
        return None
    return Refusal(
        "epilogue_elsewhere",
        f"Copying the other parts of the concatenation would take the product's threads {rounds} "
        "rounds of loads, longer than a kernel of its own.",
    )
