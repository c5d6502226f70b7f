"""The template for norms that go into the matrix product behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.target import Target

from ...device import Device
from ...ecg.graph import Graph, Operator
from ...fusion.group import Group
from ...fusion.program import Stage, Unstructured
from ..estimate import flops, points, terms, too_many_parameters, traffic
from ..inline import inlined, inlined_size
from ..register_tile import VectorUnit
from ..rows.passes import lanes_are_rows
from ..rows.row_program import row_program
from ..template import Claim, Emission, Refusal, Template
from .blocking import computing
from .gemm_cpu import tiles_cpu
from .gemm_view import Roles, roles
from .norm_prologue import RowPrologue, row_prologue
from .operands import SumOfProducts, analyse
from .packed_weights_cpu import packable
from .row_propose import row_product_proposals
from .template import constants_of, unpacked_pieces

FAR = 6  # operations that take as long as an element of the right factor from a far cache


class RowContraction(Template):
    """A matrix product of rows that other reductions compute: norm into GEMM.

    Every task computes the rows of its block itself: tasks that divide the columns compute them
    again, and tasks that divide the rows read all columns again. For a few rows that is less than
    a kernel of their own.
    """

    name = "row_contraction"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim reductions over rows, then one contraction with maps of its sum."""
        if device.kind != "llvm":
            return Refusal("not_mine", "This template fuses a norm prologue on CPUs only.")
        read = _read(group)
        if isinstance(read, Refusal):
            return read
        before, after = read.prologue.rows.stages, read.stages
        product = read.contraction.stage
        rows = points(before[-1]) // read.prologue.terms
        columns = points(product) // rows
        unit = VectorUnit((device.vector_bits or 128) // 32, 32)
        blocks, chunks = computing(rows, columns, read.prologue.terms, 1, unit, device.cores)
        again = (blocks - 1) * columns * terms(product)
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, (*before, *after)),
            flops=flops(after) + chunks * flops(before) + FAR * again,
            parallelism=blocks * chunks,
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel."""
        group = claim.group
        read = _read(group)
        if isinstance(read, Refusal):
            raise RuntimeError(read.sentence)
        func, packing = tiles_cpu(
            group.program,
            read.contraction,
            read.matrices,
            _packable_constants(group, read.prologue),
            target,
            read.prologue,
        )
        return replace(Emission.one(func, group), packing=packing)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name products with the reductions that their rows come from."""
        return row_product_proposals(graph) if device.kind == "llvm" else ()


@dataclass(frozen=True)
class _Read:
    prologue: RowPrologue
    contraction: SumOfProducts
    matrices: Roles
    stages: tuple[Stage, ...]


def _read(group: Group) -> _Read | Refusal:
    try:
        program = group.program
    except Unstructured as reason:
        return Refusal("unstructured", str(reason))
    reductions = sum(not stage.is_map for stage in program.stages)
    if reductions < 2:
        return Refusal("not_mine", f"There are {reductions} reductions, not several.")
    prologue = row_prologue(program)
    if isinstance(prologue, Refusal):
        return prologue
    refusal = too_many_parameters(program) or inlined_size(prologue.product)
    if refusal is not None:
        return refusal
    stages = inlined(prologue.product)
    contraction = analyse(prologue.product, stages)
    if isinstance(contraction, Refusal):
        return contraction
    matrices = roles(contraction)
    name = contraction.stage.name
    if matrices is None or not _are_rows_of(matrices, prologue):
        return Refusal("not_mine", f"{name} is no matrix product of the rows.")
    refusal = unpacked_pieces(group, contraction)
    if refusal is not None:
        return refusal
    constants = _packable_constants(group, prologue)
    if not matrices.rows and packable(contraction, matrices, constants) is None:
        return Refusal("not_mine", f"{name} has a single row and no constant to pack.")
    if lanes_are_rows(row_program(prologue.rows)):
        return Refusal("rows_across", "Rows are not contiguous in memory.")
    return _Read(prologue, contraction, matrices, stages)


def _packable_constants(group: Group, prologue: RowPrologue) -> frozenset[ir.Var]:
    """Return the constants that the rows do not read: a packed one is passed in no other form."""
    return constants_of(group) - set(prologue.rows.inputs)


def _are_rows_of(matrices: Roles, prologue: RowPrologue) -> bool:
    """Whether a product's rows are the prologue's, and its left factor nothing but these."""
    if not isinstance(matrices.left, ir.TensorLoad):
        return False
    if not matrices.left.source.same_as(prologue.operand):
        return False
    given = [i for i in matrices.left.indices if not isinstance(i, tirx.IntImm)]
    axes = [a.var for a in (*matrices.rows, *matrices.reduce)]
    return len(given) == len(axes) and all(i.same_as(a) for i, a in zip(given, axes, strict=True))
