"""Matrix products on a CPU: how operands are read, and in which sizes tiles and blocks are."""

from __future__ import annotations

from collections.abc import Collection

from tvm import ir, tirx
from tvm.target import Target

from ...device import parse
from ...foreign import SCHEDULED
from ...fusion.program import Program
from ..loops import block, constant, product
from ..register_tile import VectorUnit
from .blocking import MOST_VECTORS, blocking
from .computed_rows import ComputedRows
from .dot_products import dot_product
from .gemm_loops_cpu import TileLoops
from .gemm_view import Roles, side_by_side
from .norm_prologue import RowPrologue
from .operand_a_cpu import DirectLeft, Left
from .operands import SumOfProducts
from .packed_weights_cpu import Packed, packable, vectors


def tiles_cpu(
    program: Program,
    contraction: SumOfProducts,
    roles: Roles,
    constants: Collection[ir.Var],
    target: Target,
    prologue: RowPrologue | None = None,
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the functions that pack constants, by position among the inputs.

    Parameters
    ----------
    program : Program
        Where the contraction comes from.
    contraction : SumOfProducts
        What to make.
    roles : Roles
        Of its axes.
    constants : collection of Var
        Inputs that are known at compile time.
    target : Target
        What to make it for.
    prologue : RowPrologue, optional
        What computes the left factor.
    """
    unit = VectorUnit.of(target).of_bits(tirx.const(0, contraction.dtype).ty.dtype.bits)
    is_packed = packable(contraction, roles, constants) is not None
    dot = None
    if prologue is None:
        dot = dot_product(contraction, roles, is_packed, target)
    if dot is not None:
        roles = dot.groups(roles)
    pieces, widths = contraction.pieces, list(range(1, MOST_VECTORS + 1))
    original = roles
    if pieces is not None:
        roles = side_by_side(original, pieces, unit.lanes)
        fitting = (v for v in widths if pieces.width % (v * unit.lanes) == 0)
        widths = [pieces.count * v for v in fitting if pieces.count * v <= MOST_VECTORS]
    sizes = blocking(
        _extent(roles.rows),
        constant(roles.columns[-1].extent),
        constant(roles.reduce[-1].extent),
        _extent((*roles.batch, *roles.columns[:-1])),
        unit,
        parse(target).device.cores,
        len(roles.reduce) > 1,
        widths,
        not is_packed,
        None if prologue is None else prologue.terms,
    )
    if pieces is not None:
        roles = side_by_side(original, pieces, sizes.width // pieces.count)
    height = _extent(roles.rows)
    is_single = height is not None and height <= sizes.height and dot is None
    right = vectors(
        contraction, roles, sizes.width, sizes.terms, sizes.panels, is_single, constants
    )
    left: Left = DirectLeft(roles)
    if prologue is not None:
        left = ComputedRows(roles, prologue, sizes.block, target)
    body = TileLoops(contraction, roles, sizes, left, right, unit.lanes, dot).tasks()
    body = body if dot is None else dot.around(body)
    swap = {right.source: right.buffer} if isinstance(right, Packed) else {}
    inputs = [swap.get(b, b) for b in program.inputs]
    func = tirx.PrimFunc([*inputs, *program.scalars, *program.outputs], block("root", body))
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    packing = {}
    if isinstance(right, Packed):
        packing[program.inputs.index(right.source)] = right.packing()
    return func, packing


def _extent(axes) -> int | None:
    return constant(product([a.extent for a in axes]))
