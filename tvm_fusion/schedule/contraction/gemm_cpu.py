"""GEMM on a CPU, after Goto and van de Geijn: register tiles over packed panels of B.

    tasks in parallel: (batch, chunk of panels, block of block_m rows); adjacent tasks share B
      norm prologue: rows of the block are normalized into a buffer           (operand_a_cpu)
      for pass over K, of kc:
        copy panels of B [panels][kc][nr], unless packed at compile time      level 2 cache
        for part of mc rows of the block:
          for panel:
            for tile of mr rows:                                              (gemm_loops_cpu)
              acc[mr][nr] = 0, or partial sums of the pass before             registers
              for k in kc:  acc += broadcast A[mr, k] * B[k, nr];  prefetch the next panel
              last pass: epilogue; else keep partial sums                     (epilogue_cpu)

With a dot-product instruction (VNNI, BF16), a group of k is one 32-bit element of A and of B.
"""

from __future__ import annotations

from collections.abc import Collection

from tvm import ir, tirx
from tvm.target import Target

from ...core.loops import block, constant, product
from ...core.untouched import SCHEDULED
from ...device import device_of
from ...program.program import Program
from ..register_tile import VectorUnit
from .blocking import MAX_VECTORS, blocking
from .dot_products import dot_product
from .gemm_loops_cpu import GemmLoops
from .gemm_view import GemmView, interleave_parts
from .norm_prologue import NormPrologue
from .operand_a_cpu import DirectA, NormalizedA, OperandA
from .operands import SumOfProducts
from .packed_weights_cpu import PackedB, operand_b, packable


def gemm_cpu(
    program: Program,
    contraction: SumOfProducts,
    view: GemmView,
    constants: Collection[ir.Var],
    target: Target,
    prologue: NormPrologue | None = None,
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the functions that pack constants, by position among the inputs.

    Parameters
    ----------
    program : Program
        Its program.
    contraction : SumOfProducts
        The contraction.
    view : GemmView
        The contraction as GEMMs.
    constants : collection of Var
        Inputs that are known at compile time.
    target : Target
        A CPU.
    prologue : NormPrologue, optional
        The program of A.
    """
    unit = VectorUnit.of(target).of_bits(tirx.const(0, contraction.dtype).ty.dtype.bits)
    is_packed = packable(contraction, view, constants) is not None
    dot = None
    if prologue is None:
        dot = dot_product(contraction, view, is_packed, target)
    if dot is not None:
        view = dot.groups(view)
    split, widths = contraction.column_split, list(range(1, MAX_VECTORS + 1))
    original = view
    if split is not None:
        view = interleave_parts(original, split, unit.lanes)
        fitting = (v for v in widths if split.width % (v * unit.lanes) == 0)
        widths = [split.count * v for v in fitting if split.count * v <= MAX_VECTORS]
    sizes = blocking(
        _extent(view.m_axes),
        constant(view.n_axes[-1].extent),
        constant(view.k_axes[-1].extent),
        _extent((*view.batch, *view.n_axes[:-1])),
        unit,
        device_of(target).cores,
        len(view.k_axes) > 1,
        widths,
        not is_packed,
        None if prologue is None else prologue.k,
    )
    if split is not None:
        view = interleave_parts(original, split, sizes.nr // split.count)
    m = _extent(view.m_axes)
    is_single = m is not None and m <= sizes.mr and dot is None
    b = operand_b(contraction, view, sizes.nr, sizes.kc, sizes.panels, is_single, constants)
    a: OperandA = DirectA(view)
    if prologue is not None:
        a = NormalizedA(view, prologue, sizes.block_m, target)
    body = GemmLoops(contraction, view, sizes, a, b, unit.lanes, dot).tasks()
    body = body if dot is None else dot.around(body)
    packed = {b.source: b.buffer} if isinstance(b, PackedB) else {}
    inputs = [packed.get(x, x) for x in program.inputs]
    func = tirx.PrimFunc([*inputs, *program.scalars, *program.outputs], block("root", body))
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    packing = {}
    if isinstance(b, PackedB):
        packing[program.inputs.index(b.source)] = b.packing()
    return func, packing


def _extent(axes) -> int | None:
    return constant(product([a.extent for a in axes]))
