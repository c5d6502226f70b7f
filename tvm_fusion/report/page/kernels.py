"""Which PrimFuncs the groups of a planned model became, and their text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import tvm
from tvm import relax, tirx

from ..planned import PlannedModel
from .generated import LANGUAGES, generated

_LAYOUT = re.compile(r"_[A-Z]+(\d+[a-z])*$")  # what the layout stage adds to a variable's name
_LARGEST = 200_000  # characters of one kernel's text


def kernels_of_groups(planned: PlannedModel, scheduled: tvm.IRModule) -> list[tuple[str, ...]]:
    """Find the PrimFuncs that each group became, by the variables that they define.

    A group of several kernels has its last call bound to its output; the calls before it, whose
    results nothing else reads, belong to it as well.

    Returns
    -------
    list of tuple of str
        Of each group, in the order of the explanation, the names of PrimFuncs in the order of the
        calls; empty for a group that none is found for.
    """
    names: list[tuple[str, ...]] = []
    for block, plan in planned.plans.items():
        calls = dict(_calls(scheduled[planned.functions[block]]))
        for claim in plan.claims:
            defined = (value.name for value in claim.group.outputs)
            found = next((calls[name] for name in defined if name in calls), ())
            names.append(found)
    return names


def texts(
    planned: PlannedModel, scheduled: tvm.IRModule, names: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Write PrimFuncs as TVMScript, and in the target's language where it has one.

    Returns
    -------
    dict of str to dict
        By the names of PrimFuncs, texts by their language.
    """
    known = {gvar.name_hint: func for gvar, func in scheduled.functions.items()}
    functions = {name: known[name] for name in names if isinstance(known.get(name), tirx.PrimFunc)}
    target = planned.spec.tvm_target()
    code = generated(functions, target)
    found = {}
    for name, func in functions.items():
        found[name] = {"TVMScript": _cut(func.script(name=name))}
        if name in code:
            found[name][LANGUAGES[target.kind.name]] = _cut(code[name])
    return found


def _cut(text: str) -> str:
    if len(text) <= _LARGEST:
        return text
    return f"{text[:_LARGEST]}\n... {len(text) - _LARGEST:,} more characters"


def _calls(func: relax.Function) -> Iterator[tuple[str, tuple[str, ...]]]:
    """List the variables of a scheduled function with the PrimFuncs that compute them."""
    made_by: dict[relax.Var, tuple[str, ...]] = {}
    readers: dict[relax.Var, int] = {}
    bindings = [b for block in func.body.blocks for b in block.bindings]
    for binding in bindings:
        for var in relax.analysis.free_vars(getattr(binding, "value", relax.Tuple([]))):
            readers[var] = readers.get(var, 0) + 1
    for binding in bindings:
        value = getattr(binding, "value", None)
        if isinstance(value, relax.Var):
            made_by[binding.var] = made_by.get(value, ())
        elif isinstance(value, relax.TupleGetItem):
            made_by[binding.var] = made_by.get(value.tuple_value, ())
        elif isinstance(value, relax.Call) and _is_kernel(value):
            own = {"kernel", "workspace", "packed"}
            before = [
                name
                for arg in relax.analysis.free_vars(value)
                if arg.name.rstrip("0123456789") in own and readers.get(arg) == 1
                for name in made_by.get(arg, ())
            ]
            made_by[binding.var] = (*dict.fromkeys(before), value.args[0].name_hint)
    for var, names in made_by.items():
        yield var.name, names
        if _LAYOUT.search(var.name):
            yield _LAYOUT.sub("", var.name), names


def _is_kernel(call: relax.Call) -> bool:
    return getattr(call.op, "name", "") in ("relax.call_tir", "relax.call_tir_inplace")
