"""Contractions on GPUs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from tvm.target import Target

from ...core.expressions import is_expensive
from ...core.loops import constant
from ...core.template import Claim, Config, Emission, RaggedRows, Refusal
from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.work import at
from ...program.group import Group
from ...program.program import Program
from ...program.stage import Stage
from ..design_space import not_in_space
from ..estimate import flops, operations, points, traffic
from ..gpu.mma import HALF_TYPES, find_atom
from .concat_epilogue import concat_epilogue
from .concat_parts_choice import refuse_parts
from .concat_parts_gpu import ConcatParts
from .dual_gemm import dual_gemm, dual_gemm_proposals, dual_gemm_tile, has_two_products
from .gemm_configs_gpu import KERNELS, GemmConfig, GpuGemmProblem, default
from .gpu import GpuContractionConfig, GpuContractionDetails, contraction_gpu
from .grouped_gemm_choice import has_few_sums
from .implicit_gemm import implicit_gemm, with_stored_columns
from .norm_prologue import norm_gemm_proposals
from .norm_scale_gpu import NormScale, with_norm_scale
from .operand_copies import packing_bytes
from .operands import SumOfProducts, analyse, reads_windows, reuses_operands
from .ragged_choice import ragged_tile
from .result_vectors import lie_across
from .row_statistics import statistics_proposals, with_statistics
from .split_k_workspace import split_k_kernels
from .template import RECOMPUTE_FACTOR, Contraction, constants_of, has_convolution, has_prologue
from .tile_choice import (
    GATHERED,
    behind_aligned_rows,
    behind_im2col,
    behind_packed_weight,
    conv_tile,
    is_dequantized,
    is_gathered,
    tile_of_groups,
)
from .tile_gemm_config import TileGemmConfig, narrow_operand
from .tile_gemm_problem import LEAST_ROWS
from .transpose_proposals import transpose_proposals
from .tuning_gpu import configured, designs, gemm_launches, workspace_bytes
from .wgmma_config import WgmmaConfig

# How much longer windows without tiles take: adjacent threads load single elements, as often as
# there are taps. So do depthwise convolutions over NCHW; 3 channels of 512 by 512 pixels of 128
# took 1.9 ms.
UNTILED = 32
PROLOGUE = 8  # operations on an operand's element: once per element of a tile in shared memory
TILE = 32 * 64
THREADS = 128  # of a block without tiles


class GpuContraction(Contraction):
    """Contractions on a GPU; skinny GEMM has a norm prologue, too."""

    _max_reductions = 7  # of a product, of group sums behind it and row sums before

    def _claim(
        self, group: Group, program: Program, stages: tuple[Stage, ...], device: Device
    ) -> Claim | Refusal:
        if has_two_products(program):
            return self._claim_dual(group, program, stages, device)
        beside, read = None, _analysed(program, stages)
        if isinstance(read, Refusal):
            first, concat = read, concat_epilogue(stages)
            read = first if concat is None else _analysed(program, concat.stages)
            if concat is None or isinstance(read, Refusal):
                return first
            beside, stages = ConcatParts.of(concat.others), (*concat.stages, *concat.others)
        contraction, norm_scale = read
        if beside is None and norm_scale is None:
            ragged = ragged_tile(contraction, device)
            if isinstance(ragged, Refusal):
                return ragged
            if ragged is not None:
                return self._claim_tile(group, program, contraction, stages, device, ragged)
        constants = constants_of(group)
        if beside is not None:  # what other parts read stays as it is
            constants = frozenset(x for x in constants if not beside.reads(x))
        if norm_scale is None:
            contraction = with_stored_columns(contraction, constants)
        has_statistics = contraction.has_statistics
        if has_statistics and beside is not None:
            return _no_statistics(contraction)
        problem = GpuGemmProblem(contraction, device, norm_scale)
        few = problem.skinny
        if norm_scale is not None and few is None:
            sentence = (
                "A norm prologue is fused into GEMV and skinny GEMM only, which "
                f"{contraction.stage.title} is not."
            )
            return Refusal("not_skinny", sentence)
        gemm: GemmConfig | None = None
        found, convolution = None, implicit_gemm(contraction, constants)
        groups = tile_of_groups(contraction, constants, device)
        if groups is not None:
            convolution, gemm = groups
        elif convolution is not None and (few is None or few.m >= LEAST_ROWS):
            gemm = conv_tile(convolution.contraction, device)
        if convolution is None or gemm is None:
            gemm, convolution = default(problem), None
            if beside is None:
                found = behind_aligned_rows(contraction, gemm, constants, device)
        if beside is None:
            found = found or behind_im2col(contraction, gemm, constants, device)
        if beside is None and found is None:
            packed = behind_packed_weight(contraction, gemm, program.inputs, device)
            convolution, gemm = packed or (convolution, gemm)
        is_packed = convolution is not None and convolution.source not in constants
        if norm_scale is not None:
            work = flops(program.stages)  # normalized rows are computed once
        else:
            work = flops(stages) * _slowdown(group, contraction, gemm)
        if has_statistics and (found is not None or not isinstance(gemm, WgmmaConfig)):
            return _no_statistics(contraction)
        copies = None
        if found is not None:
            (copies, gemm), convolution = found, None
            program, contraction = copies.program(program), copies.contraction
        elif convolution is not None:
            program, contraction = convolution.program(program), convolution.contraction
        tile = gemm if isinstance(gemm, TileGemmConfig) else None
        if tile is not None:
            if lie_across(tile):
                return _across(contraction)
            work *= GATHERED if is_gathered(tile) else 1
        elif gemm is None:
            if refusal := _refuse_split(contraction, device):
                return refusal
            work *= _untiled(contraction)
        if beside is not None and (refusal := refuse_parts(beside, gemm, device)):
            return refusal
        blocks = _blocks(contraction) if gemm is None else at(gemm.blocks)
        return Claim(
            self,
            group,
            launches=gemm_launches(gemm)
            + (0 if copies is None else copies.launches)
            + int(is_packed),
            bytes=traffic(group, stages)
            + workspace_bytes(gemm)
            + (0 if copies is None else copies.bytes)
            + (packing_bytes(convolution) if convolution is not None and is_packed else 0),
            flops=work,
            parallelism=blocks,
            shared_bytes=0 if gemm is None else gemm.shared_bytes,
            registers=0 if gemm is None else gemm.registers,
            arithmetic="" if tile is None else tile.arithmetic,
            matrix_dtype="" if tile is None else tile.narrow_dtype,
            details=GpuContractionDetails(
                GpuContractionConfig(program, contraction, device, gemm, beside),
                convolution,
                copies,
            ),
        )

    def _claim_dual(
        self, group: Group, program: Program, stages: tuple[Stage, ...], device: Device
    ) -> Claim | Refusal:
        """Claim two GEMMs of one A, where wgmma computes both in the time of two kernels."""
        contraction = dual_gemm(program, stages)
        tile = None if contraction is None else dual_gemm_tile(contraction, device)
        if contraction is None or tile is None:
            first, second = (s.title for s in stages if not s.is_map)
            why = "are not such" if contraction is None else "have no tile of wgmma that pays"
            return Refusal(
                "several_reductions",
                f"A contraction kernel computes two products only of one A that an epilogue reads, "
                f"by wgmma: {first} and {second} {why}.",
            )
        return self._claim_tile(group, program, contraction, stages, device, tile)

    def _claim_tile(
        self,
        group: Group,
        program: Program,
        contraction: SumOfProducts,
        stages: tuple[Stage, ...],
        device: Device,
        tile: TileGemmConfig,
    ) -> Claim:
        """Claim one kernel of tiles."""
        of_rows = tile.contraction.stage  # of ragged ones, each is multiplied by one matrix
        counted = tuple(s if s.is_map or tile.ragged is None else of_rows for s in stages)
        ragged, config = tile.ragged, GpuContractionConfig(program, contraction, device, tile)
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=flops(counted),
            parallelism=at(tile.blocks),
            shared_bytes=tile.shared_bytes,
            registers=tile.registers,
            ragged=None if ragged is None else RaggedRows(ragged.groups.extent, ragged.rows.extent),
            # Dual GEMMs have no choices.
            details=GpuContractionDetails(config, has_choices=ragged is not None),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        details = claim.details_as(GpuContractionDetails)
        config = details.config
        program = claim.group.program
        if config.tile is not None and config.tile.has_workspace:
            made = split_k_kernels(config.program, config.tile, claim.group)
        else:
            func = contraction_gpu(config, claim.group.title, target)
            made = Emission.one(func, claim.group)
        if details.copies is not None:
            return details.copies.emission(program, made)
        if details.convolution is not None:
            return replace(made, packing=details.convolution.packing(program))
        return made

    def kind(self, claim: Claim) -> Hashable:
        """Let small GEMMs of any shapes be tried in one launch (grouped_gemm_template_gpu)."""
        config = claim.details_as(GpuContractionDetails).config
        stage = config.contraction.stage
        is_static = all(constant(a.extent) is not None for a in stage.axes)
        tile = config.tile
        is_tile = tile is not None and tile.ragged is None and config.beside is None
        is_tile = is_tile and config.contraction.column_split is None
        if not (is_static and is_tile and has_few_sums([stage], config.device)):
            return super().kind(claim)
        return super().kind(claim) if has_convolution(claim.group) else "small GEMM"

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
        a squeeze-and-excitation block goes. Convolutions are named with the transposes around them.
        """
        yield from norm_gemm_proposals(graph)
        yield from statistics_proposals(graph)
        yield from dual_gemm_proposals(graph, device)
        yield from transpose_proposals(graph)
        yield from super().propose(graph, device)

    def _takes(self, expanded: Sequence[Operator]) -> bool:
        return True


def _analysed(
    program: Program, stages: Sequence[Stage]
) -> tuple[SumOfProducts, NormScale | None] | Refusal:
    """Read one contraction, one with a norm prologue, or one with statistics of rows."""
    reductions = sum(not stage.is_map for stage in stages)
    contraction = (with_statistics if reductions > 1 else analyse)(program, stages)
    if reductions == 2 and isinstance(contraction, Refusal):
        return with_norm_scale(program, stages)
    return contraction if isinstance(contraction, Refusal) else (contraction, None)


def _across(contraction: SumOfProducts) -> Refusal:
    return Refusal(
        "results_across",
        f"Some results of {contraction.stage.title} lie along its rows, others along its columns: "
        "no tile is stored in vectors then.",
    )


def _no_statistics(contraction: SumOfProducts) -> Refusal:
    return Refusal(
        "no_statistics",
        f"Sums beside those of {contraction.stage.title} are added up by kernels of wgmma only, of "
        "many rows of a half type, and of results in vectors of 8 columns.",
    )


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


def _slowdown(group: Group, contraction: SumOfProducts, gemm: GemmConfig | None) -> int:
    """Weigh producers that the sum evaluates again and again."""
    if isinstance(gemm, TileGemmConfig) and is_dequantized(gemm):
        return 1
    operands = (contraction.left, contraction.right)
    has_expensive = any(is_expensive(x) or operations(x) > PROLOGUE for x in operands)
    return RECOMPUTE_FACTOR if has_expensive and has_prologue(group) else 1


def _untiled(contraction: SumOfProducts) -> int:
    """Weigh windows without tiles that tensor cores would multiply, or that no tile would share."""
    sides = contraction.left, contraction.right
    is_of_halves = all(str(narrow_operand(x).ty.dtype) in HALF_TYPES for x in sides)
    is_slow = is_of_halves or not reuses_operands(contraction)
    return UNTILED if is_slow and reads_windows(contraction) else 1


def _blocks(contraction: SumOfProducts) -> int:
    tile = TILE if reuses_operands(contraction) else THREADS
    return max(1, math.ceil(points(contraction.stage) / tile))
