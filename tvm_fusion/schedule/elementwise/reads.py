"""What a map reads, and under which conditions: whole vectors of it may be read ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, tirx

from ...core.expressions import call_name, loads, variables
from ...core.loops import find
from ..address import same
from ..gpu.launch import VECTOR_TYPES
from .domain import Domain

_CHOSEN = "chosen"  # what a choice among loads is called where it is looked past


@dataclass(frozen=True)
class Read:
    """A load of a whole vector, where a condition that all its lanes share holds."""

    element: ir.TensorLoad
    condition: ir.Expr | None


def bytes_of(value: ir.Var | ir.TensorLoad) -> int:
    """Size of an element."""
    return DataType(str(value.ty.dtype)).itemsize


def is_plain(value: ir.Var | ir.TensorLoad) -> bool:
    """Whether elements come in vectors."""
    return str(value.ty.dtype) in VECTOR_TYPES


def reads(domain: Domain) -> list[Read]:
    """List the different loads of types that come in vectors, with the conditions for them.

    Those that happen under several conditions are left out.
    """
    found: list[Read] = []
    for store in domain.stores:
        for element, condition in _conditional([store.value, *store.indices], None):
            is_known = any(same(element, known.element) for known in found)
            if not is_known and element.source not in domain.registers and is_plain(element):
                found.append(Read(element, condition))

    def times(element: ir.TensorLoad) -> int:
        return sum(same(element, other) for other in domain.loads)

    return [read for read in found if read.condition is None or times(read.element) == 1]


def _conditional(
    exprs: Sequence[ir.Expr], condition: ir.Expr | None
) -> Iterator[tuple[ir.TensorLoad, ir.Expr | None]]:
    """Yield loads with the conditions under which they happen, unconditional ones first.

    Not those at places that depend on what was loaded under a condition.
    """
    later: list[tuple[ir.Expr, ir.Expr]] = []
    for expr in exprs:
        choices: list[ir.Call] = []

        def hide(call: ir.Call, choices: list[ir.Call] = choices) -> ir.Expr:
            if call_name(call) != "if_then_else" or not loads(call):
                return call
            choices.append(call)
            return tirx.Var(_CHOSEN, str(call.ty.dtype))

        visible = tvm_ffi.structural_map(expr, (ir.Call, hide), order="pre")
        for x in find(visible, ir.TensorLoad):
            if not any(v.name == _CHOSEN for i in x.indices for v in variables(i)):
                yield x, condition
        for call in choices:
            later.append((call.args[0], condition))
            for holds, branch in (
                (call.args[0], call.args[1]),
                (tirx.Not(call.args[0]), call.args[2]),
            ):
                both = holds if condition is None else tirx.And(condition, holds)
                later.append((branch, both))
    for branch, both in later:
        yield from _conditional([branch], both)
