"""Guarded scheduling: rules in a fixed order; a rule that fails costs its kernel only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.target import Target

from ...core.decisions import Decision, record
from ...core.untouched import SCHEDULED
from ...errors import reason_of
from .hoist_init import hoist_inits


@dataclass(frozen=True)
class Rule:
    """A named way to schedule a PrimFunc.

    Attributes
    ----------
    name : str
        Stands in decisions.
    apply : callable
        ``(PrimFunc, Target) -> Schedule or PrimFunc or None``; ``None``: does not apply.
    """

    name: str
    apply: Callable[[tirx.PrimFunc, Target], s_tir.Schedule | tirx.PrimFunc | None]


Check = Callable[[tirx.PrimFunc, Target], str | None]


def schedule_function(
    name: str, func: tirx.PrimFunc, target: Target, rules: Sequence[Rule], check: Check
) -> tirx.PrimFunc:
    """Schedule one PrimFunc by the first rule that applies and whose result passes ``check``.

    Parameters
    ----------
    name : str
        Kernel name, for the record.
    func : tirx.PrimFunc
        Unscheduled function over SBlocks.
    target : Target
        The target.
    rules : sequence of Rule
        Tried in order.
    check : callable
        Returns a sentence if a scheduled function cannot run on the target, else ``None``.

    Returns
    -------
    tirx.PrimFunc
        The scheduled function, marked ``tirx.is_scheduled``, or ``func`` itself when every rule
        failed; either way the reasons are recorded as decisions.
    """
    on_cpu = target.kind.name == "llvm"
    if on_cpu and _is_empty(func):  # a GPU needs threads all the same
        sentence = "An extent is 0: there is next to nothing to compute; it keeps plain loops."
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
