"""Contractions on GPUs."""

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace

from tvm import ir
from tvm.target import Target

from ....core.contract.forms import Form
from ....core.contract.kernel_work import NO_WORK, KernelWork
from ....core.contract.template import Claim, Config, Emission, RaggedExtents, Refusal
from ....core.tir.expressions import is_expensive, loads
from ....core.tir.loops import constant
from ....device import Device
from ....ecg.graph import Graph, Operator
from ....ecg.work import at
from ....program.group import Group
from ....program.program import Program
from ....program.stage import Stage
from ...index.design_space import member
from ...index.estimate import flops, operations, points, traffic
from ...index.inline import inlined
from ...instructions.nvidia import HALF_TYPES
from ...instructions.table import find_of_fragments
from ..copies.implicit_gemm import transpose_proposals
from ..copies.operand_copies import OperandCopies
from ..mma.grouped_choice import has_few_sums
from ..mma.model import residency
from ..mma.split_k_workspace import split_k_kernels
from ..problem.epilogue.proposals import epilogue_proposals
from ..problem.epilogue.row_statistics import statistics_proposals
from ..problem.norm_prologue import norm_gemm_proposals
from ..problem.pool import pooling_proposals
from ..problem.sum_of_products import SumOfProducts, reads_windows, reuses_operands
from ..problem.template import RECOMPUTE_FACTOR, Contraction, has_convolution, has_prologue
from ..skinny.gemv.config import GemvConfig
from ..tile.config import TileGemmConfig, is_plain, narrow_operand
from ..tile.operand.chunks import OperandChunks
from ..tile.problem import Sizes, assumed_rows, gemm_sizes
from ..tile.results.vectors import WIDTHS, lie_across, result_vectors
from ..wgmma.config import WgmmaConfig, WgmmaRowsConfig
from ..wgmma.dual_gemm import dual_gemm_proposals
from .emit import GpuContractionConfig, GpuContractionDetails, contraction_gpu
from .forms import choose, weighed
from .product import Product, Reading, read_product
from .space import KERNELS, GemmConfig, GpuGemmProblem, clocks, configs
from .tile_forms import GATHERED, PLANAR, GemmForm, computes_weights_only, refuse_parts

# The design space of a claimed contraction on a GPU, and the claim of another configuration.


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


#: How many loads one counts as whose place another one gives: on an H200, rows of a shifted window
#: that are taken by their numbers made products of 4 to 5 us take 4.4, 10.5 and 63.
DEPENDENT = 4


def work_of(form: GemmForm) -> KernelWork:
    """Count what a form's kernel does besides what its clocks tell of."""
    tile = form.tile
    if tile is None:
        return NO_WORK
    single = computed = 0.0
    for is_a, is_staged in ((True, tile.problem.staged_a), (False, tile.problem.staged_b)):
        if not is_staged or (is_a and isinstance(tile, WgmmaRowsConfig)):
            continue  # boxes of rows leave out what is computed: zeros around an image
        chunks = OperandChunks(tile.problem, is_a)
        elements = _loaded(tile, is_a)
        if chunks.is_gathered and not chunks.is_planar:  # which the clocks tell of
            single += elements * (DEPENDENT if _is_dependent(chunks.expr) else 1)
        if not is_plain(chunks.expr):
            computed += elements * max(1, operations(chunks.expr))
    _, waves = residency(tile.tile, _sizes(tile), form.device)
    of_thread = waves * single / (at(tile.blocks) * tile.threads)
    return KernelWork(form.clocks_of_vectors or 0.0, single, of_thread, _stores(tile), computed)


def _loaded(tile: TileGemmConfig, is_a: bool) -> float:
    """Count the elements of an operand that all blocks load."""
    rows = tile.tile.block_m if is_a else tile.tile.block_n
    return float(at(tile.blocks)) * rows * tile.tile.block_k * tile.grid.k_tiles


def _stores(tile: TileGemmConfig) -> float:
    """Count the stores of less than a vector of 16 bytes.

    Parts of a column split, such as halves of a rotary embedding, meet in registers of mma.sync:
    512x2048x3072 with heads of 64 took 54.6 us on an H200, by wgmma with heads of 128 15.
    """
    width = result_vectors(tile.problem).width
    if tile.problem.contraction.column_split is not None and not isinstance(tile, WgmmaConfig):
        width = 1
    if width >= WIDTHS[0]:
        return 0.0
    sizes, results = _sizes(tile), tile.problem.contraction.results
    whole = sum(result.condition is None for result in results)  # others are parts of one
    stored = sizes.batch * sizes.m * sizes.n / tile.problem.contraction.pooled
    return stored * max(1, whole) / width


def _sizes(tile: TileGemmConfig) -> Sizes:
    return gemm_sizes(tile.problem, assumed_rows(tile.problem))


def _is_dependent(operand: ir.Expr) -> bool:
    """Whether the place of a load is loaded before."""
    return any(loads(i) for x in loads(operand) for i in x.indices)


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
        product = read_product(group, stages, device)
        if isinstance(product, Refusal):
            return product
        choice = choose(product)
        if isinstance(choice, Refusal):
            return choice
        return _refuse(product, choice.form) or self._claimed(product, choice.form)

    def _claimed(self, product: Product, form: GemmForm) -> Claim:
        """Promise the kernels of a form."""
        group, program, gemm = product.group, product.program, form.gemm
        program = program if form.copies is None else form.copies.program(program)
        tile = form.tile
        config = GpuContractionConfig(
            program, form.contraction, product.device, gemm, product.concat_parts, product.constants
        )
        return Claim(
            self,
            group,
            launches=gemm_launches(gemm) + form.launches,
            bytes=traffic(group, product.stages) + workspace_bytes(gemm) + form.bytes,
            flops=_work(product, form),
            parallelism=_blocks(form.contraction) if gemm is None else at(gemm.blocks),
            shared_bytes=0 if gemm is None else gemm.shared_bytes,
            registers=0 if gemm is None else gemm.registers,
            arithmetic="" if tile is None else tile.problem.arithmetic,
            matrix_dtype="" if tile is None else tile.problem.narrow_dtype,
            ragged=None if tile is None else _ragged(tile),
            work=work_of(form),
            details=GpuContractionDetails(
                config, form.copies, has_choices=product.reading is not Reading.DUAL
            ),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        details = claim.details_as(GpuContractionDetails)
        config = details.config
        program = claim.group.program
        if config.tile is not None and config.tile.tile.has_workspace:
            made = split_k_kernels(config.program, config.tile, claim.group)
        else:
            func = contraction_gpu(config, claim.group.title, target)
            made = Emission.one(func, claim.group)
        return made if details.copies is None else details.copies.emission(program, made)

    def forms(self, claim: Claim, device: Device) -> tuple[Form, ...]:
        """Tell the forms of the product: see :mod:`.forms`."""
        product = read_product(claim.group, inlined(claim.group.program), device)
        return () if isinstance(product, Refusal) else weighed(product)

    def kind(self, claim: Claim) -> Hashable:
        """Let small GEMMs of any shapes be tried in one launch (grouped_gemm_template.py)."""
        config = claim.details_as(GpuContractionDetails).config
        stage = config.contraction.stage
        is_static = all(constant(a.extent) is not None for a in stage.axes)
        tile = config.tile
        is_tile = tile is not None and tile.problem.ragged is None and config.concat_parts is None
        is_tile = is_tile and config.contraction.column_split is None
        if not (is_static and is_tile and has_few_sums([stage], config.device)):
            return super().kind(claim)
        return super().kind(claim) if has_convolution(claim.group) else "small GEMM"

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate tiles, warps, pipelines and instructions; untiled kernels have no choices."""
        return map(KERNELS.plain, designs(claim, device))

    def estimates(self, claim: Claim, device: Device) -> Iterator[tuple[Config, float]]:
        """Estimate tiles on tensor cores; the kernels of few rows have no model."""
        for config in designs(claim, device):
            if isinstance(config, TileGemmConfig):
                yield KERNELS.plain(config), clocks(config, device)

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claimed contraction."""
        chosen = member(claim, config, designs(claim, device), KERNELS.plain)
        return chosen if isinstance(chosen, Refusal) else configured(claim, chosen)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name norms with the skinny GEMM behind them, dual GEMMs, and operands that are expanded.

        A tile of an operand is computed on its way to shared memory, so that the largest tensor of
        a squeeze-and-excitation block goes. Convolutions are named with the transposes around them,
        or with their pooling.
        """
        yield from norm_gemm_proposals(graph)
        yield from epilogue_proposals(graph)
        yield from statistics_proposals(graph)
        yield from dual_gemm_proposals(graph, device)
        yield from transpose_proposals(graph)
        yield from pooling_proposals(graph)
        yield from super().propose(graph, device)


def _ragged(tile: TileGemmConfig) -> RaggedExtents | None:
    rows = tile.problem.ragged
    return None if rows is None else RaggedExtents(rows.groups.extent, rows.rows.extent)


def _refuse(product: Product, form: GemmForm) -> Refusal | None:
    """Refuse what the kernel of a form does not compute besides the product."""
    tile, contraction, concat_parts = form.tile, form.contraction, product.concat_parts
    is_copied = isinstance(form.copies, OperandCopies)
    if contraction.has_statistics and (is_copied or not isinstance(tile, WgmmaConfig)):
        return _no_statistics(contraction)
    if contraction.head_sum is not None and not isinstance(form.gemm, GemvConfig):
        return _no_head_sum(contraction)
    if contraction.pool is not None and tile is None:
        sentence = f"{contraction.stage.title} is pooled by tiles on tensor cores only."
        return Refusal("pooling_windows", sentence)
    if tile is not None and lie_across(tile.problem):
        return _across(contraction)
    if form.gemm is None and (refusal := _refuse_split(contraction, product.device)):
        return refusal
    return None if concat_parts is None else refuse_parts(concat_parts, form.gemm, product.device)


def _work(product: Product, form: GemmForm) -> int:
    """Count the arithmetic, weighed by how fast the form computes it."""
    tile, stages = form.tile, product.stages
    if product.norm_scale is not None:
        return flops(product.program.stages)  # normalized rows are computed once
    if product.reading is Reading.DUAL:
        return flops(stages)
    if tile is not None and tile.problem.ragged is not None:  # a row is multiplied by one matrix
        return flops(tuple(s if s.is_map else tile.problem.contraction.stage for s in stages))
    work = flops(stages) * _slowdown(product.group, product.contraction, form.gemm)
    if form.gemm is None:
        return work * _untiled(form.contraction)
    return work * (GATHERED if form.is_gathered else PLANAR if form.is_planar else 1)


def _across(contraction: SumOfProducts) -> Refusal:
    return Refusal(
        "results_across",
        f"Some results of {contraction.stage.title} lie along its rows, others along its columns: "
        "no tile stores both in vectors.",
    )


def _no_statistics(contraction: SumOfProducts) -> Refusal:
    return Refusal(
        "no_statistics",
        f"Sums in the epilogue of {contraction.stage.title} are computed only by wgmma kernels, of "
        "many rows of a half type and results in vectors of 8 columns.",
    )


def _no_head_sum(contraction: SumOfProducts) -> Refusal:
    return Refusal(
        "no_head_sum",
        f"Sums over the heads of {contraction.stage.title} are computed only by GEMV and skinny "
        "GEMM, whose blocks, or clusters of them, have whole heads.",
    )


def _refuse_split(contraction: SumOfProducts, device: Device) -> Refusal | None:
    """Refuse a column split that no tile takes, where tensor cores compute the product without it.

    Splits of rows, say, or of three parts without wgmma: a kernel more is far cheaper than sums on
    CUDA cores.
    """
    split = contraction.column_split
    if split is None:
        return None
    if split.is_of_pairs:
        return _no_tile(contraction)
    if any(constant(a.extent) is None for a in contraction.stage.axes):
        return None
    types = [str(narrow_operand(x).ty.dtype) for x in (contraction.left, contraction.right)]
    mma = find_of_fragments(device, *types)
    if mma is None or mma.kind == "tfloat32":
        return None
    return _no_tile(contraction)


def _no_tile(contraction: SumOfProducts) -> Refusal:
    return Refusal(
        "epilogue_elsewhere",
        f"The epilogue of {contraction.stage.title} reads several elements of its result, which "
        "no tile on tensor cores has at once; they are faster without it.",
    )


def _slowdown(group: Group, contraction: SumOfProducts, gemm: GemmConfig | None) -> int:
    """Weigh producers that the sum evaluates again and again."""
    if isinstance(gemm, TileGemmConfig) and computes_weights_only(gemm.problem):
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
