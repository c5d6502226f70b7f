"""Guarded scheduling: rules in a fixed order; what fails falls back for that kernel alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.target import Target

from ..foreign import SCHEDULED
from ..fusion.decisions import Decision, record


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
        What to schedule for.
    rules : sequence of Rule
        Tried in order.
    check : callable
        Returns a sentence if a scheduled function cannot run on the target, else ``None``.

    Returns
    -------
    tirx.PrimFunc
        The scheduled function, marked ``tirx.is_scheduled``, or ``func`` itself when every rule
        failed; either way the reasons stand in the decisions.
    """
    for rule in rules:
        try:
            result = rule.apply(func, target)
        # guard: recorded below; primitives raise anything from ScheduleError to InternalError
        except Exception as error:
            record(_fallback(name, rule, "schedule_failed", reason_of(error)))
            continue
        if result is None:
            continue
        scheduled = result.mod["main"] if isinstance(result, s_tir.Schedule) else result
        complaint = check(scheduled, target)
        if complaint:
            record(_fallback(name, rule, "schedule_rejected", complaint))
            continue
        record(Decision(name, "", "accepted", "scheduled", f"Scheduled by {rule.name}."))
        return scheduled.with_attrs({**dict(func.attrs), SCHEDULED: True})
    record(
        Decision(
            name,
            "",
            "fallback",
            "unscheduled",
            "No rule schedules this kernel; it keeps plain loops.",
        )
    )
    return func


def _fallback(name: str, rule: Rule, code: str, reason: str) -> Decision:
    return Decision(name, "", "fallback", code, f"{rule.name} gave up: {reason}")


def reason_of(error: Exception) -> str:
    """Keep the sentence of a schedule error, which TVM prints after the whole function."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("Error message:")]
    text = (
        marked[-1].removeprefix("Error message:").strip()
        if marked
        else (lines or ["no message"])[0]
    )
    return f"{type(error).__name__}: {text}"
