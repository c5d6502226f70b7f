"""The template of norms that are fused into the GEMM behind them, on CPUs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.target import Target

from .....core.contract.template import Claim, Config, Emission, Refusal, Template
from .....device import Device
from .....ecg.graph import Graph, Operator
from .....program.group import Group
from .....program.program import Program
from .....program.stage import Axis, Stage, Unstructured
from ....index.design_space import member
from ....index.estimate import flops, points, terms, too_many_parameters, traffic
from ....index.inline import inlined, inlined_size
from ....instructions.table import find
from ....math.half_math import HALF_TYPES
from ....rows.program.passes import lanes_are_rows
from ....rows.program.row_program import row_program
from ...problem.gemm_view import GemmView, gemm_view
from ...problem.norm_prologue import NormPrologue, norm_gemm_proposals, norm_prologue
from ...problem.sum_of_products import SumOfProducts, analyse
from ...problem.template import constants_of
from ..config import CpuGemmConfig, blocking_of, configs, default
from ..dot_products import uncast
from ..kernel import gemm_cpu
from ..operands.packed_weights import packable
from ..operands.unpacked_split import refuse_unpacked_split, unpacked_split
from ..tile_product import matrix_dtype, vector_work
from .gemm import scattered

FAR = 6  # operations that take as long as an element of B from a far cache


@dataclass(frozen=True, eq=False)
class NormGemmConfig:
    """A GEMM with a norm prologue, as the claim decides and the emission reads it."""

    program: Program  # the program of the claimed group
    gemm: CpuGemmConfig  # the GEMM, with the program of its rows


@dataclass(frozen=True, eq=False)
class NormGemmDetails:
    """What a claim remembers until its kernel is made."""

    config: NormGemmConfig  # the GEMM and the program of its rows


class NormGemm(Template):
    """A GEMM with a norm prologue.

    Every task normalizes the rows of its block itself: tasks that split N repeat that, and tasks
    that split M read all of B again. For a few rows that is cheaper than a kernel of their own.
    """

    name = "row_contraction"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim reductions over rows, then one GEMM with epilogues."""
        if device.kind != "llvm":
            return Refusal("not_mine", "This template fuses a norm prologue on CPUs only.")
        read = _analysed(group, device)
        if isinstance(read, Refusal):
            return read
        config = default(read.contraction, device, read.constants, read.prologue)
        if config is None:
            return unpacked_split(read.contraction)
        before, after, sizes = read.prologue.rows.stages, read.stages, config.sizes
        product = read.contraction.stage
        rows = points(before[-1]) // read.prologue.k
        columns = points(product) // rows
        blocks = math.ceil(rows / sizes.block_m)
        chunks = math.ceil(columns / (sizes.panels * sizes.nr))
        again = (blocks - 1) * columns * terms(product)
        more = (chunks - 1) * flops(before) + FAR * again
        more += scattered(read.contraction, read.columns)
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, (*before, *after)),
            flops=flops((*before, *after)) + vector_work(more, config.dot),
            parallelism=blocks * chunks,
            matrix_dtype=matrix_dtype(config.dot),
            details=NormGemmDetails(NormGemmConfig(read.program, config)),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        config = claim.details_as(NormGemmDetails).config
        func, packing = gemm_cpu(config.program, config.gemm, target)
        return replace(Emission.one(func, claim.group), packing=packing)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate the blockings of the GEMM."""
        return map(blocking_of, _gemms(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure the GEMM with another blocking."""
        gemm = member(claim, config, _gemms(claim, device), blocking_of)
        if isinstance(gemm, Refusal):
            return gemm
        claimed = claim.details_as(NormGemmDetails).config
        return replace(claim, details=NormGemmDetails(replace(claimed, gemm=gemm)))

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name GEMMs with the reductions of their norm prologues."""
        return norm_gemm_proposals(graph) if device.kind == "llvm" else ()


def _gemms(claim: Claim, device: Device) -> Iterator[CpuGemmConfig]:
    gemm = claim.details_as(NormGemmDetails).config.gemm
    prologue = gemm.prologue
    constants = constants_of(claim.group)
    if prologue is not None:
        constants -= set(prologue.rows.inputs)
    return configs(gemm.contraction, device, constants, prologue)


@dataclass(frozen=True)
class _Analysed:
    program: Program
    prologue: NormPrologue
    contraction: SumOfProducts
    stages: tuple[Stage, ...]
    constants: frozenset[ir.Var]
    columns: Sequence[Axis]


def _analysed(group: Group, device: Device) -> _Analysed | Refusal:
    try:
        program = group.program
    except Unstructured as reason:
        return Refusal("unstructured", str(reason))
    reductions = sum(not stage.is_map for stage in program.stages)
    if reductions < 2:
        return Refusal("not_mine", f"There is no norm prologue: {reductions} reductions.")
    # Tile registers multiply what vectors would cast in each step.
    narrow = [half for half in HALF_TYPES if find(device, "amx", half, half) is not None]
    prologue = norm_prologue(program, narrow)
    if isinstance(prologue, Refusal):
        return prologue
    refusal = too_many_parameters(program) or inlined_size(prologue.product)
    if refusal is not None:
        return refusal
    stages = inlined(prologue.product)
    contraction = analyse(prologue.product, stages)
    if isinstance(contraction, Refusal):
        return contraction
    view = gemm_view(contraction)
    name = contraction.stage.title
    if view is None or not _is_prologue_a(view, prologue):
        return Refusal(
            "norm_not_operand_a",
            f"{name} is not a GEMM with the rows of the reductions as operand A.",
        )
    refusal = refuse_unpacked_split(group, contraction)
    if refusal is not None:
        return refusal
    # A packed constant is passed in no other form: not one that the rows read, too.
    constants = constants_of(group) - set(prologue.rows.inputs)
    if not view.m_axes and packable(contraction, view, constants) is None:
        return Refusal(
            "no_constant_weight", f"{name} has a single row and no constant weight to pack."
        )
    if lanes_are_rows(row_program(prologue.rows)):
        return Refusal(
            "vectors_across_rows",
            f"The reductions before {name} are vectorized across rows: these are short, or not "
            "contiguous in memory.",
        )
    return _Analysed(program, prologue, contraction, stages, constants, view.n_axes)


def _is_prologue_a(view: GemmView, prologue: NormPrologue) -> bool:
    """Whether a GEMM's A is nothing but the rows of the prologue."""
    a = uncast(view.a)
    if not isinstance(a, ir.TensorLoad):
        return False
    if not a.source.same_as(prologue.operand):
        return False
    given = [i for i in a.indices if not isinstance(i, tirx.IntImm)]
    axes = [a.var for a in (*view.m_axes, *view.k_axes)]
    return len(given) == len(axes) and all(i.same_as(a) for i, a in zip(given, axes, strict=True))
