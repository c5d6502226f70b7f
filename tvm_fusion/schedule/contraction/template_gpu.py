"""Contractions on GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from tvm import ir
from tvm.target import Target

from ...core.expressions import is_expensive
from ...core.loops import constant
from ...core.template import Claim, Config, Emission, Refusal
from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.work import at
from ...program.group import Group
from ...program.program import Program
from ...program.stage import Stage
from ..design_space import not_in_space
from ..estimate import flops, operations, points, traffic
from ..gpu.mma import HALF_TYPES, find_atom
from .aligned_rows import AlignedRows, aligned_rows, copies_clocks
from .dual_gemm import dual_gemm, dual_gemm_proposals, dual_gemm_tile, has_two_products
from .gemv_config import GemvConfig
from .gpu import GpuContractionConfig, contraction_gpu
from .implicit_gemm import implicit_gemm, with_stored_columns
from .norm_prologue import norm_gemm_proposals
from .norm_scale_gpu import NormScale, with_norm_scale
from .operands import SumOfProducts, analyse, reads_windows, reuses_operands
from .skinny_mma_config import skinny_gemm_config
from .template import RECOMPUTE_FACTOR, Contraction, constants_of, has_prologue
from .tile_gemm_choice import best_tile
from .tile_gemm_config import TileGemmConfig, narrow_operand
from .tile_gemm_model import RATES, estimated_clocks
from .tile_gemm_problem import LEAST_ROWS, gemm_problem, gemm_sizes
from .tile_operand import OperandTile
from .tuning_gpu import KERNELS, configured, designs
from .wgmma_config import WgmmaConfig
from .wgmma_model import BESIDE_MMA, best_wgmma_tile, wgmma_clocks

# How much longer tiles take whose elements are loaded one by one: on an H200, images of 56 by 56
# pixels and 64 channels in half types, NCHW against NHWC.
GATHERED = 8
# The same of windows without tiles: adjacent threads load single elements, as often as there are
# taps. So do depthwise convolutions over NCHW; 3 channels of 512 by 512 pixels of 128 took 1.9 ms.
UNTILED = 32
# The same of tiles of mma.sync whose words threads shift, as odd row lengths want it; others are
# copied in 8 or 4 bytes. On an H200 in half types, with copies to aligned rows: 77 by 7207 by 4210
# 65 us against 130, 53 by 667 by 8108 10.4 against 15.4; 164 by 47 by 4789 9.1 against 6.6.
SHIFTED = 2.6
LEAST_ALIGNED_K = 128  # of a product that is worth copies of its operands
LEAST_CHANNELS = 2  # of a convolution's output: those of a decoder's last are 3, a pixel's colours
PROLOGUE = 8  # operations on an operand's element: once per element of a tile in shared memory
TILE = 32 * 64
THREADS = 128  # of a block without tiles


class GpuContraction(Contraction):
    """Contractions on a GPU; skinny GEMM has a norm prologue, too."""

    _max_reductions = 2

    def _claim(
        self, group: Group, program: Program, stages: tuple[Stage, ...], device: Device
    ) -> Claim | Refusal:
        if has_two_products(program):
            return self._claim_dual(group, program, stages, device)
        read = _analysed(program, stages)
        if isinstance(read, Refusal):
            return read
        contraction, norm_scale = read
        if norm_scale is None:
            contraction = with_stored_columns(contraction, constants_of(group))
        skinny = skinny_gemm_config(contraction, device, norm_scale)
        if norm_scale is not None and skinny is None:
            sentence = (
                "A norm prologue is fused into GEMV and skinny GEMM only; "
                f"{contraction.stage.title} has too many or too long rows, or another layout."
            )
            return Refusal("not_skinny", sentence)
        if norm_scale is not None:
            work = flops(program.stages)  # normalized rows are computed once
        else:
            work = flops(stages) * _slowdown(group, contraction)
        tile, convolution = None, implicit_gemm(contraction, constants_of(group))
        if convolution is not None and (skinny is None or skinny.m >= LEAST_ROWS):
            tile = _tensor_core_tile(convolution.contraction, device, LEAST_CHANNELS)
        if convolution is not None and tile is not None:
            program, contraction = convolution.program(program), convolution.contraction
        else:
            tile, convolution = _tile(contraction, skinny, device), None
        aligned = _aligned(contraction, tile, constants_of(group), device)
        if aligned is not None:
            (copies, tile) = aligned
            program, contraction = copies.program(program), copies.contraction
        if tile is not None:
            skinny = None
            work *= GATHERED if _is_gathered(tile) else 1
        elif (
            skinny is None
            and reads_windows(contraction)
            and (_is_of_half_types(contraction) or not reuses_operands(contraction))
        ):
            work *= UNTILED
        if skinny is None and tile is None and (refusal := _refuse_split(contraction, device)):
            return refusal
        config = tile or skinny
        blocks = _blocks(contraction) if config is None else at(config.blocks)
        return Claim(
            self,
            group,
            launches=1 if aligned is None else 1 + aligned[0].launches,
            bytes=traffic(group, stages) + (0 if aligned is None else aligned[0].bytes),
            flops=work,
            parallelism=blocks,
            shared_bytes=0 if config is None else config.shared_bytes,
            registers=0 if config is None else config.registers,
            details={
                "config": GpuContractionConfig(program, contraction, device, skinny, tile),
                "arithmetic": "" if tile is None else tile.arithmetic,
                "matrix_dtype": "" if tile is None else tile.narrow_dtype,
                "convolution": convolution,
                "aligned": None if aligned is None else aligned[0],
            },
        )

    def _claim_dual(
        self, group: Group, program: Program, stages: tuple[Stage, ...], device: Device
    ) -> Claim | Refusal:
        """Claim two GEMMs of one A, where wgmma computes both in the time of two kernels."""
        contraction = dual_gemm(program, stages)
        tile = None if contraction is None else dual_gemm_tile(contraction, device)
        if contraction is None or tile is None:
            first, second = (s.title for s in stages if not s.is_map)
            return Refusal(
                "several_reductions",
                f"A contraction kernel computes two products ({first}, {second}) only if they have "
                "one A, an epilogue that reads both, and many rows of a half type for wgmma.",
            )
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=flops(stages),
            parallelism=at(tile.blocks),
            shared_bytes=tile.shared_bytes,
            registers=tile.registers,
            details={"config": GpuContractionConfig(program, contraction, device, None, tile)},
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        func = contraction_gpu(claim.details["config"], claim.group.title, target)
        made = Emission.one(func, claim.group)
        program, details = claim.group.program, claim.details
        if (aligned := details.get("aligned")) is not None:
            return aligned.emission(program, made)
        if (convolution := details.get("convolution")) is not None:
            return replace(made, packing=convolution.packing(program))
        return made

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate tiles, warps, pipelines and instructions; untiled kernels have no choices."""
        return map(KERNELS.plain, designs(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Give a claimed contraction another configuration."""
        chosen = KERNELS.find(designs(claim, device), config)
        return not_in_space(claim, config) if chosen is None else configured(claim, chosen)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name norms with the skinny GEMM behind them, dual GEMMs, and operands that are expanded.

        A tile of an operand is computed on its way to shared memory, so that the largest tensor of
        a squeeze-and-excitation block goes.
        """
        yield from norm_gemm_proposals(graph)
        yield from dual_gemm_proposals(graph, device)
        yield from super().propose(graph, device)

    def _takes(self, expanded: Sequence[Operator]) -> bool:
        return True


def _analysed(
    program: Program, stages: Sequence[Stage]
) -> tuple[SumOfProducts, NormScale | None] | Refusal:
    """Read one contraction, or one with a norm prologue."""
    if sum(not stage.is_map for stage in stages) == 2:
        return with_norm_scale(program, stages)
    contraction = analyse(program, stages)
    return contraction if isinstance(contraction, Refusal) else (contraction, None)


def _refuse_split(contraction: SumOfProducts, device: Device) -> Refusal | None:
    """Refuse a column split that no tile takes, where tensor cores compute the product without it.

    Splits of rows, say, or of three parts without wgmma: a kernel more is far cheaper than sums on
    CUDA cores.
    """
    if contraction.column_split is None or any(
        constant(a.extent) is None for a in contraction.stage.axes
    ):
        return None
    types = [str(narrow_operand(x).ty.dtype) for x in (contraction.left, contraction.right)]
    atom = find_atom(device, "mma.sync", *types)
    if atom is None or atom.dtype == "tfloat32":
        return None
    return Refusal(
        "epilogue_elsewhere",
        f"The epilogue of {contraction.stage.title} reads several elements of its result, which "
        "no tile on tensor cores has at once; they are faster without it.",
    )


def _tile(
    contraction: SumOfProducts, skinny: GemvConfig | None, device: Device
) -> TileGemmConfig | None:
    """Configure a tiled GEMM, unless a skinny GEMM serves its rows better.

    On an H200, of 9 to 16 rows of float16 (N 14336, K 4096) the one takes 29 us, the other 34;
    operands that threads compute are computed once for all rows by a skinny GEMM.
    """
    if skinny is not None and (skinny.norm_scale is not None or skinny.m < LEAST_ROWS):
        return None
    tile = _tensor_core_tile(contraction, device)
    is_computed = tile is not None and (tile.staged_a or tile.staged_b or tile.products > 1)
    return None if skinny is not None and is_computed else tile


def _is_gathered(tile: TileGemmConfig) -> bool:
    """Whether an operand's elements are loaded one by one, as those of NCHW images."""
    sides = ((True, tile.staged_a), (False, tile.staged_b))
    return any(staged and OperandTile(tile, is_a).is_gathered for is_a, staged in sides)


def _tensor_core_tile(
    contraction: SumOfProducts, device: Device, least_rows: int = LEAST_ROWS
) -> TileGemmConfig | None:
    """Choose between mma.sync and wgmma by what their models estimate."""
    problem = gemm_problem(contraction, device, least_rows)
    if problem is None:
        return None
    small, large = best_tile(problem, device), best_wgmma_tile(problem, device)
    if small is None or large is None:
        return small or large
    clocks = estimated_clocks(small, gemm_sizes(small), device)
    return large if wgmma_clocks(large, device) < clocks else small


def _aligned(
    contraction: SumOfProducts,
    tile: TileGemmConfig | None,
    constants: Collection[ir.Var],
    device: Device,
) -> tuple[AlignedRows, WgmmaConfig] | None:
    """Choose wgmma behind copies of operands that are not aligned, where it is faster with them."""
    if tile is None or isinstance(tile, WgmmaConfig) or tile.k < LEAST_ALIGNED_K:
        return None
    copies = aligned_rows(contraction, constants)
    problem = None if copies is None else gemm_problem(copies.contraction, device)
    large = None if problem is None else best_wgmma_tile(problem, device)
    if copies is None or large is None:
        return None
    clocks = wgmma_clocks(large, device, BESIDE_MMA) + copies_clocks(copies, device)
    small = estimated_clocks(tile, gemm_sizes(tile), device) - RATES.launch
    small *= SHIFTED if tile.staged_a or tile.staged_b else 1
    return (copies, large) if clocks < RATES.launch + small else None


def _slowdown(group: Group, contraction: SumOfProducts) -> int:
    """Weigh producers that the sum evaluates again and again."""
    operands = (contraction.left, contraction.right)
    is_dear = any(is_expensive(x) or operations(x) > PROLOGUE for x in operands)
    return RECOMPUTE_FACTOR if is_dear and has_prologue(group) else 1


def _is_of_half_types(contraction: SumOfProducts) -> bool:
    """Whether tensor cores would multiply the operands, were there tiles."""
    sides = contraction.left, contraction.right
    return all(str(narrow_operand(x).ty.dtype) in HALF_TYPES for x in sides)


def _blocks(contraction: SumOfProducts) -> int:
    tile = TILE if reuses_operands(contraction) else THREADS
    return max(1, math.ceil(points(contraction.stage) / tile))
