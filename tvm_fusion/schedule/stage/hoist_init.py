"""Hoist initializations of reductions whose extents may be zero out of their loops."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV


def hoist_inits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Move the initialization of reductions over symbolic or zero extents before their loops.

    TVM lowers the init of a block to ``if k == 0: out = identity`` inside the loop over ``k``:
    where the extent is zero at run time, nothing is stored and the result is what the memory held.

    Parameters
    ----------
    func : tirx.PrimFunc
        Over SBlocks, scheduled or not, for a CPU.

    Returns
    -------
    tirx.PrimFunc
        The same object where all reductions have positive extents.
    """
    if not _has_such_blocks(func):
        return func
    sch = s_tir.Schedule(func)
    for block in _blocks(sch, sch.get_sblock("root")):
        loop = _first_reduction(sch, block)
        if loop is not None:
            sch.decompose_reduction(block, loop)
    return sch.mod["main"].with_attrs(dict(func.attrs))


def _has_such_blocks(func: tirx.PrimFunc) -> bool:
    found: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, found.append))
    return any(map(_may_have_no_terms, found))


def _may_have_no_terms(block: s_tir.SBlock) -> bool:
    extents = [iv.dom.extent for iv in block.iter_vars if iv.iter_type == tirx.IterVar.CommReduce]
    is_positive = [isinstance(n, tirx.IntImm) and int(n) > 0 for n in extents]
    return block.init is not None and not all(is_positive)


def _blocks(sch: s_tir.Schedule, root: SBlockRV) -> list[SBlockRV]:
    inner = list(sch.get_child_blocks(root))
    return [*inner, *(b for child in inner for b in _blocks(sch, child))]


def _first_reduction(sch: s_tir.Schedule, block: SBlockRV) -> LoopRV | None:
    """Return the outermost loop of a reduction that may have no terms."""
    stmt = sch.get(block)
    if not _may_have_no_terms(stmt):
        return None
    used: list[ir.Var] = []
    for iv, value in zip(stmt.iter_vars, _bindings(sch, block), strict=True):
        if iv.iter_type == tirx.IterVar.CommReduce:
            used += tirx.analysis.undefined_vars(value)
    for loop in sch.get_loops(block):
        if any(sch.get(loop).loop_var.same_as(v) for v in used):
            return loop
    return None


def _bindings(sch: s_tir.Schedule, block: SBlockRV) -> list[ir.Expr]:
    stmt = sch.get(block)
    found: list[s_tir.SBlockRealize] = []
    tvm_ffi.structural_walk(sch.mod["main"].body, (s_tir.SBlockRealize, found.append))
    return next(list(r.iter_values) for r in found if r.block.same_as(stmt))
