"""The template for matrix products and convolutions, with prologue and epilogue."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tvm import DataType, ir, tirx
from tvm.target import Target

from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.intrinsic import call_name
from ...ecg.mapping import MappingType
from ...ecg.work import at
from ...fusion.expressions import is_expensive
from ...fusion.group import Group
from ...fusion.program import Program, Stage, Unstructured
from ..address import lies_along
from ..estimate import flops, operations, points, too_many_parameters, traffic
from ..inline import inlined, inlined_size
from ..loops import find
from ..strides import SCATTER, apart
from ..template import Claim, Emission, Refusal, Template
from .column_split import Pieces
from .cpu import contraction_cpu, copies, is_tiled, strided
from .gemm_view import roles
from .gemv_config import slim
from .gpu import contraction_gpu
from .norm_scale_gpu import RowSum, with_row_sum
from .operands import SumOfProducts, analyse
from .packed_weights_cpu import packable
from .prim_func import Apart
from .row_propose import row_product_proposals
from .skinny_mma_config import fragment_slim

CPU_PROLOGUE = 2  # operations on an operand's element: a vector of it meets a few vectors of sums
GPU_PROLOGUE = 8  # a block computes it once per element of a tile in shared memory
# How much longer a sum takes that computes an operand's producers for every term, or reads an
# operand across its columns although its producer could have written it in the right order.
DEAR_PROLOGUE = 8
WIDEST = 16  # elements of a vector
CPU_TILE = 256  # sums of one tile, roughly
GPU_TILE = 32 * 64


class Contraction(Template):
    """One sum of products of two operands, cheap maps of the operands, any maps of the result.

    On a GPU a product of few rows gathers a sum over the rows as well, which scales its results.

    Matrix products, convolutions (grouped, depthwise, transposed) and what else has that form. On a
    CPU, operands that are padded or lie across the columns are copied first.
    """

    name = "contraction"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one contraction whose results are maps of its sum at its own position."""
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        reductions = sum(not stage.is_map for stage in program.stages)
        if reductions != 1 and not (self._is_gpu and reductions == 2):
            return Refusal("not_mine", f"There are {reductions} reductions, not one.")
        refusal = too_many_parameters(program) or inlined_size(program)
        if refusal is not None:
            return refusal
        stages = inlined(program)
        read = _read(program, stages)
        if isinstance(read, Refusal):
            return read
        contraction, row_sum = read
        if row_sum is not None:
            cut = slim(contraction, device, row_sum)
            if cut is None:
                sentence = "A norm prologue is fused into skinny GEMM with short rows only."
                return Refusal("not_mine", sentence)
        refusal = None if self._is_gpu else unpacked_pieces(group, contraction)
        if refusal is not None:
            return refusal
        is_product = not self._is_gpu and roles(contraction) is not None
        written = [] if self._is_gpu or is_product else copies(contraction)
        copied = sum(points(c.stage) * DataType(str(c.buffer.ty.dtype)).itemsize for c in written)
        return Claim(
            self,
            group,
            launches=1 + len(written),
            bytes=traffic(group, stages) + 2 * copied,
            flops=(
                flops(program.stages)  # rows that a sum scales are computed once
                if row_sum is not None
                else flops(stages) * self._slowdown(group, contraction, written)
            )
            + self._scattered(contraction)
            + sum(apart(c.stage, c.axes[-1:]) for c in written),
            parallelism=self._parallelism(contraction, device),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Schedule the kernel."""
        program = claim.group.program
        read = _read(program, inlined(program))
        if isinstance(read, Refusal):
            raise RuntimeError(read.sentence)
        contraction, row_sum = read
        packing: dict[int, tirx.PrimFunc] = {}
        if self._is_gpu:
            func = contraction_gpu(program, contraction, claim.group.title, target, row_sum)
        else:
            func, packing = contraction_cpu(program, contraction, constants_of(claim.group), target)
        return replace(Emission.one(func, claim.group), packing=packing)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name contractions with light One-to-Many producers, such as a gate over channels.

        The mapping table keeps such a pair apart. On a GPU an operand's tile is computed on its way
        to shared memory, and the largest tensor of a squeeze-and-excitation block goes. What is
        only repeated, such as the keys that several heads share, is an index on every target.

        On a GPU norms go into products of few rows, too.
        """
        if self._is_gpu:
            yield from row_product_proposals(graph)
        for op in graph.operators:
            if op.type is not MappingType.MANY_TO_MANY:
                continue
            for producer in graph.predecessors(op):
                expanded = _expanded(graph, producer, op)
                if expanded and (self._is_gpu or not any(o.flops for o in expanded)):
                    yield *expanded, op

    def _slowdown(self, group: Group, contraction: SumOfProducts, copied: list[Apart]) -> int:
        """Weigh producers that the sum evaluates again and again, or makes it read across."""
        if not _has_prologue(group):
            return 1
        padded = [c.factor for c in copied if c.is_padded]
        if not self._is_gpu and any(_choices(factor) > 1 for factor in padded):
            return DEAR_PROLOGUE  # no vectors in the copy; for padding alone there are
        limit = GPU_PROLOGUE if self._is_gpu else CPU_PROLOGUE
        for factor in (contraction.left, contraction.right):
            if any(factor.same_as(other) for other in padded):
                continue  # computed once, into the padded copy
            if is_expensive(factor) or operations(factor) > limit:
                return DEAR_PROLOGUE
            if not self._is_gpu and _choices(factor):
                return DEAR_PROLOGUE  # no vectors
            if not self._is_gpu and is_tiled(contraction) and strided(contraction, factor):
                return DEAR_PROLOGUE
        return 1

    def _scattered(self, contraction: SumOfProducts) -> int:
        """Operations that results are worth which vectors of a tile on a CPU store far apart."""
        if self._is_gpu or not is_tiled(contraction):
            return 0
        column = contraction.stage.axes[-1]
        sums = points(contraction.stage)
        return SCATTER * sum(
            min(sums, math.prod(at(d) for d in r.buffer.ty.shape))
            for r in contraction.results
            if not lies_along(r.buffer, r.indices, column)
        )

    def _parallelism(self, contraction: SumOfProducts, device: Device) -> int:
        cut = slim(contraction, device) if self._is_gpu else None
        if cut is not None:
            return at((fragment_slim(cut, device) or cut).blocks)
        sums = points(contraction.stage)
        tile = 1
        if is_tiled(contraction):
            tile = GPU_TILE if self._is_gpu else CPU_TILE
        elif self._is_gpu:
            tile = 128
        return max(1, math.ceil(sums / tile))


def _read(
    program: Program, stages: Sequence[Stage]
) -> tuple[SumOfProducts, RowSum | None] | Refusal:
    """Read one product, or one with a sum over its rows."""
    if sum(not stage.is_map for stage in stages) == 2:
        return with_row_sum(program, stages)
    contraction = analyse(program, stages)
    return contraction if isinstance(contraction, Refusal) else (contraction, None)


def _expanded(graph: Graph, producer: Operator, reader: Operator) -> list[Operator]:
    """Follow an operand through what only moves it, back to a One-to-Many operator."""
    found: list[Operator] = []
    while graph.successors(producer) == [reader] and not any(v.leaves for v in producer.results):
        found.append(producer)
        if producer.type is MappingType.ONE_TO_MANY:
            return found
        before = graph.predecessors(producer)
        if producer.type not in (MappingType.REORGANIZE, MappingType.SHUFFLE) or len(before) != 1:
            break
        reader, producer = producer, before[0]
    return []


def unpacked_pieces(group: Group, contraction: SumOfProducts) -> Refusal | None:
    """Refuse pieces, but for columns of a constant, of which tiles take whole vectors."""
    if contraction.pieces is None or _packs(group, contraction, contraction.pieces):
        return None
    return Refusal(
        "epilogue_elsewhere",
        "The epilogue reads several columns of a product without a packed constant weight.",
    )


def _packs(group: Group, contraction: SumOfProducts, pieces: Pieces) -> bool:
    matrices = roles(contraction)
    if matrices is None or pieces.width % WIDEST:
        return False
    is_last = matrices.columns[-2:] == (pieces.piece, pieces.position)
    return is_last and packable(contraction, matrices, constants_of(group)) is not None


def constants_of(group: Group) -> frozenset[ir.Var]:
    """Return the inputs of a group's program that are known at compile time."""
    known = zip(group.program.inputs, group.inputs, strict=True)
    return frozenset(buffer for buffer, value in known if value.is_constant)


def _choices(expr: ir.Expr) -> int:
    return sum(call_name(call) == "if_then_else" for call in find(expr, ir.Call))


def _has_prologue(group: Group) -> bool:
    """Whether a member comes before the one that sums."""
    if len(group) == 1:
        return False
    results = {v for op in group.members for v in op.results}
    heavy = max(group.members, key=lambda op: op.flops)
    return any(v in results for v in heavy.tensors)
