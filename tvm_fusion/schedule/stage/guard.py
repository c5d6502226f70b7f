"""Guarded scheduling: rules in a fixed order; a rule that fails costs its kernel only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...core.decisions import Decision, record
from ...core.untouched import SCHEDULED
from ...errors import reason_of


@dataclass(frozen=True)
class Rule:
    """A named way to schedule a PrimFunc."""

    name: str  # stands in decisions
    # ``(PrimFunc, Target) -> Schedule or PrimFunc or None``; ``None``: does not apply.
    apply: Callable[[tirx.PrimFunc, Target], s_tir.Schedule | tirx.PrimFunc | None]


Check = Callable[[tirx.PrimFunc, Target], str | None]


def schedule_function(
    name: str, func: tirx.PrimFunc, target: Target, rules: Sequence[Rule], check: Check
) -> tirx.PrimFunc:
    """Schedule one PrimFunc by the first rule that applies and whose result passes ``check``.

    Parameters
    ----------
    name
        Kernel name, for the record.
    check
        Returns a sentence if a scheduled function cannot run on the target, else ``None``.

    Returns
    -------
    tirx.PrimFunc
        The scheduled function, marked ``tirx.is_scheduled``, or ``func`` itself when every rule
        failed; either way the reasons are recorded as decisions.
    """
    on_cpu = target.kind.name == "llvm"
    if on_cpu and _is_empty(func):  # a GPU needs threads all the same
        sentence = "An extent is 0, so there is nothing to speed up: it keeps plain loops."
        record(Decision(name, "", "accepted", "empty", sentence))
        return _initialized(name, func)
    for rule in rules:
        try:
            result = rule.apply(func, target)
            if isinstance(result, s_tir.Schedule):
                result = result.mod["main"]
            if result is not None and on_cpu:
                result = hoist_inits(result)
        # guard: recorded below; primitives raise anything from ScheduleError to InternalError
        except Exception as error:
            record(_fallback(name, rule, "schedule_failed", reason_of(error)))
            continue
        if result is None:
            continue
        complaint = check(result, target)
        if complaint:
            record(_fallback(name, rule, "schedule_rejected", complaint))
            continue
        record(Decision(name, "", "accepted", "scheduled", f"Scheduled by {rule.name}."))
        return result.with_attrs({**dict(func.attrs), SCHEDULED: True})
    record(
        Decision(
            name,
            "",
            "fallback",
            "unscheduled",
            "No rule schedules this kernel; it keeps plain loops.",
        )
    )
    return _initialized(name, func) if on_cpu else func


def _initialized(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
    try:
        return hoist_inits(func)
    # guard: recorded; primitives raise anything from ScheduleError to InternalError
    except Exception as error:
        record(
            _fallback(
                name, Rule("hoist_inits", lambda *_: None), "schedule_failed", reason_of(error)
            )
        )
        return func


def _is_empty(func: tirx.PrimFunc) -> bool:
    """Whether a parameter has no elements; schedules divide by extents and allocate tiles."""
    shapes = [p.ty.shape for p in func.params if isinstance(p.ty, tirx.BufferType)]
    return any(isinstance(d, tirx.IntImm) and not int(d) for shape in shapes for d in shape)


def _fallback(name: str, rule: Rule, code: str, reason: str) -> Decision:
    return Decision(name, "", "fallback", code, f"{rule.name} gave up: {reason}")


# Hoist initializations of reductions whose extents may be zero out of their loops.
def hoist_inits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Move the initialization of reductions over symbolic or zero extents before their loops.

    TVM lowers the init of a block to ``if k == 0: out = identity`` inside the loop over ``k``:
    where the extent is zero at run time, nothing is stored and the result is what the memory held.

    Parameters
    ----------
    func
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
