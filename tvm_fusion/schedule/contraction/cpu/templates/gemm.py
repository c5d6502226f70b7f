"""Contractions on CPUs."""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tvm import DataType, ir
from tvm.target import Target

from .....core.contract.template import Claim, Config, Emission, Refusal
from .....core.tir.expressions import call_name, is_expensive, variables
from .....core.tir.loops import find
from .....device import Device
from .....ecg.graph import Graph, Operator
from .....ecg.mapping_types.table import MappingType
from .....ecg.work import at
from .....program.group import Group
from .....program.layouts import is_layout_map
from .....program.program import Program
from .....program.stage import Axis, Stage
from ....elementwise.cpu.kernel import ElementwiseCpuConfig
from ....index.address import lies_along
from ....index.design_space import member
from ....index.estimate import flops, operations, points, terms, traffic
from ....index.proposals import LIGHT
from ....index.strides import SCATTER, strided_access_cost
from ...problem.epilogue.concat import concat_epilogue
from ...problem.functions.prim_func import MaterializedOperand
from ...problem.ragged_rows import ragged_rows
from ...problem.results import elsewhere
from ...problem.sum_of_products import SumOfProducts, analyse, reuses_operands
from ...problem.template import (
    RECOMPUTE_FACTOR,
    Contraction,
    constants_of,
    has_convolution,
    has_prologue,
)
from ..blocks.choice import block_flops
from ..config import CpuGemmConfig, blocking_of, configs
from ..operands.computed_a import computed_parts
from ..operands.unpacked_split import refuse_unpacked_split, unpacked_split
from ..tile_product import matrix_dtype, vector_work
from .emit import CpuContractionConfig, contraction_cpu, is_strided

# Products with the operators that unpack their weights, which growth keeps apart.
#
# Numbers are joined from halves of bytes by a concatenation of several times the bytes: no edge of
# that chain pays before all of it is in the product.


def block_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name products with the operators that make their operands of constants and of integers."""
    for op in graph.operators:
        if op.type is not MappingType.MANY_TO_MANY:
            continue
        weights, rows = (_of_integers(graph, op, only) for only in (True, False))
        if weights:
            yield *sorted(weights, key=lambda x: x.index), op
            if rows - weights:
                yield *sorted(weights | rows, key=lambda x: x.index), op


def _of_integers(graph: Graph, reader: Operator, of_constants: bool) -> set[Operator]:
    """Find what leads from constants, or from int8 of any tensor, to an operator."""
    found: set[Operator] = set()
    for producer in graph.predecessors(reader):
        if producer.type not in LIGHT or len(producer.results) != 1:
            continue
        before = graph.predecessors(producer)
        dtypes = [v.dtype for v in producer.tensors]
        is_free = all(v.producer is None and v.is_constant for v in producer.tensors)
        reads_bytes = "int8" in dtypes and producer.results[0].dtype != "int8"
        if (of_constants and is_free) or (not of_constants and reads_bytes):
            found.add(producer)
            continue
        more = _of_integers(graph, producer, of_constants) if before else set()
        others = [v for v in producer.tensors if v.producer not in more]
        if more and (not of_constants or all(v.is_constant for v in others)):
            found |= {producer, *more}
    return found


PROLOGUE = 2  # operations on an operand's element, of which a vector meets a few vectors of sums
TILE = 256  # accumulators of one tile, roughly
SMALL = 1 << 23  # operations: about 50 microseconds of two cores


@dataclass(frozen=True, eq=False)
class CpuContractionDetails:
    """What a claim remembers until its kernel is made."""

    config: CpuContractionConfig  # the kernel, and what is written before it


class CpuContraction(Contraction):
    """Contractions on a CPU; padded and strided operands of convolutions are materialized first."""

    def _claim(
        self, group: Group, program: Program, stages: tuple[Stage, ...], device: Device
    ) -> Claim | Refusal:
        if any(v.producer is not None and is_layout_map(v.producer.func) for v in group.outputs):
            # Lanes of channels would be scattered: ShuffleNet took 123 ms so.
            sentence = "Results are blocks of channels, which direct convolutions write."
            return Refusal("blocked_results", sentence)
        contraction, concat = analyse(program, stages), None
        if isinstance(contraction, Refusal):
            first = contraction
            concat = None if has_convolution(group) else concat_epilogue(stages)
            contraction = first if concat is None else analyse(program, concat.stages)
            if isinstance(contraction, Refusal):
                return first
        refusal = refuse_unpacked_split(group, contraction)
        if refusal is not None:
            return refusal
        config = CpuContractionConfig.of(program, contraction, device, constants_of(group))
        if contraction.column_split is not None and config.gemm is None:
            return unpacked_split(contraction)
        if concat is not None:
            if config.gemm is None:
                return elsewhere(concat.others[0], contraction.stage)
            maps = ElementwiseCpuConfig.of(concat.others, config.registers)
            config = replace(config, others=(maps,))
            stages = (*concat.stages, *concat.others)
        written = config.written
        copied = sum(
            points(x.stage) * DataType(str(x.buffer.ty.dtype)).itemsize for x in config.operands
        )
        tile = TILE if reuses_operands(contraction) else 1
        if config.gemm is not None and (ragged := ragged_rows(contraction)) is not None:
            contraction = ragged[0]  # each row is multiplied by the matrix of its own group
            stages = tuple(s if s.is_map else contraction.stage for s in stages)
        dot = None if config.gemm is None else config.gemm.dot
        strides = scattered(contraction, contraction.stage.axes[-1:])
        strides += sum(strided_access_cost(x.stage, x.axes[-1:]) for x in config.operands)
        return Claim(
            self,
            group,
            launches=1 + len(written) + len(config.others),
            bytes=traffic(group, stages) + 2 * copied,
            flops=_flops(group, stages, config) + vector_work(strides, dot),
            parallelism=max(1, math.ceil(points(contraction.stage) / tile)),
            matrix_dtype=matrix_dtype(dot),
            details=CpuContractionDetails(config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        func, packing = contraction_cpu(claim.details_as(CpuContractionDetails).config, target)
        return replace(Emission.one(func, claim.group), packing=packing)

    def kind(self, claim: Claim) -> Hashable:
        """Let small GEMMs of any shapes be tried in one launch (:mod:`.grouped`)."""
        config = claim.details_as(CpuContractionDetails).config
        is_gemm = config.gemm is not None and not config.others and claim.flops <= SMALL
        if not is_gemm or has_convolution(claim.group):
            return super().kind(claim)
        return "small GEMM"

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate the blockings of a GEMM; other contractions have no choices."""
        return map(blocking_of, _gemms(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claimed GEMM with another blocking."""
        gemm = member(claim, config, _gemms(claim, device), blocking_of)
        if isinstance(gemm, Refusal):
            return gemm
        claimed = claim.details_as(CpuContractionDetails).config
        return replace(claim, details=CpuContractionDetails(replace(claimed, gemm=gemm)))

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name products with what expands an operand, or unpacks the weights."""
        yield from super().propose(graph, device)
        yield from block_proposals(graph)


def _gemms(claim: Claim, device: Device) -> Iterator[CpuGemmConfig]:
    config = claim.details_as(CpuContractionDetails).config
    if config.gemm is None:
        return iter(())
    return configs(config.contraction, device, constants_of(claim.group))


def _flops(group: Group, stages: tuple[Stage, ...], config: CpuContractionConfig) -> int:
    """Count the operations of vectors, in units of those of one product."""
    gemm, contraction = config.gemm, config.contraction
    if gemm is not None and gemm.blocks is not None:
        maps = flops(tuple(s for s in stages if s.is_map))
        return maps + block_flops(gemm.view, gemm.blocks, gemm.sizes)
    once = [] if gemm is None else list(_computed_once(gemm))
    left, right = contraction.left, contraction.right
    others = [x for x in (left, right) if not any(x.same_as(one.operand) for one in once)]
    packed = None
    if gemm is not None and gemm.b_source == "packed":
        packed = gemm.view.n_axes[-1].var
    work = flops(stages) * _slowdown(group, contraction, config.operands, others, packed)
    return work + sum(one.work - one.in_terms for one in once)


class _Computed(NamedTuple):
    """An operand that tasks compute before they multiply: its operations, and if terms did."""

    operand: ir.Expr
    work: int
    in_terms: int


def _computed_once(gemm: CpuGemmConfig) -> Iterator[_Computed]:
    """Find what is computed once for all terms of a task that read it."""
    contraction, view, sizes = gemm.contraction, gemm.view, gemm.sizes
    if gemm.dot is not None or gemm.prologue is not None or gemm.ragged is not None:
        return
    column, stage = view.n_axes[-1].var, contraction.stage
    count = {
        name: math.prod(at(a.extent) for a in getattr(view, name))
        for name in ("batch", "m_axes", "n_axes", "k_axes")
    }
    for operand in (contraction.left, contraction.right):
        is_b, each = column in variables(operand), operations(operand)
        if is_b and (gemm.b_source != "copied" or _choices(operand) or is_expensive(operand)):
            continue
        if not (each if is_b else computed_parts(view)):
            continue
        own = count["batch"] * count["k_axes"] * count["n_axes" if is_b else "m_axes"]
        columns = math.ceil(count["n_axes"] / (sizes.nr * sizes.panels))
        tasks = math.ceil(count["m_axes"] / sizes.block_m) if is_b else columns
        yield _Computed(operand, each * own * tasks, each * points(stage) * terms(stage))


def _slowdown(
    group: Group,
    contraction: SumOfProducts,
    written: Sequence[MaterializedOperand],
    operands: Sequence[ir.Expr],
    packed: ir.Var | None,
) -> int:
    """Weigh producers that the sum evaluates again and again, or makes it read across.

    An operand with columns along ``packed`` is read in the order that it is packed in.
    """
    if not has_prologue(group):
        return 1
    padded = [x.operand for x in written if x.is_padded]
    if any(_choices(operand) > 1 for operand in padded):
        return RECOMPUTE_FACTOR  # the copy is not vectorized, as it is for padding alone
    for operand in operands:
        if any(operand.same_as(other) for other in padded):
            continue  # computed once, into the padded copy
        if is_expensive(operand) or operations(operand) > PROLOGUE or _choices(operand):
            return RECOMPUTE_FACTOR
        if packed in variables(operand) or not reuses_operands(contraction):
            continue
        if is_strided(contraction, operand):
            return RECOMPUTE_FACTOR
    return 1


def scattered(contraction: SumOfProducts, columns: Sequence[Axis]) -> int:
    """Count the operations that scattered stores of a tile's results are worth.

    Parameters
    ----------
    columns
        Vectors of sums run along the last of them.
    """
    if not reuses_operands(contraction) or not columns:
        return 0
    column = columns[-1]
    sums = points(contraction.stage)
    return SCATTER * sum(
        min(sums, math.prod(at(d) for d in r.buffer.ty.shape))
        for r in contraction.results
        if not lies_along(r.buffer, r.indices, column)
    )


def _choices(expr: ir.Expr) -> int:
    return sum(call_name(call) == "if_then_else" for call in find(expr, ir.Call))
