"""Convert reads of extents and values, and assertions about them."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...core.decisions import Decision, record
from ..registry import Unsupported
from .call import Call
from .registry import register

op = relax.op


@register("sym_size.int")
def sym_size(call: Call) -> Any:
    """Return an extent."""
    extent = call.importer.shape_of(call.tensor("self"))[call["dim"]]
    return int(extent) if hasattr(extent, "value") else extent


@register("sym_numel", "sym_stride.int", "sym_storage_offset", "sym_is_contiguous")
def property_of_tensor(call: Call) -> Any:
    """Return what torch knows of how a tensor is stored."""
    for name in call.given:
        call.raw(name)
    value = call.out
    if isinstance(value, bool | int):
        return value
    raise Unsupported("of a symbolic extent", "give the dimension a fixed extent")


@register("_assert_tensor_metadata", "sym_constrain_range_for_size", "sym_constrain_range")
@register("_assert_scalar")
def nothing(call: Call) -> Any:
    """Leave assertions about shapes out: what holds for extents is checked at calls."""
    for name in call.given:
        call.raw(name)
    return None


@register("_assert_async", "_assert_async.msg", "_functional_assert_async.msg")
def unchecked(call: Call) -> Any:
    """Leave an assertion about a tensor's value out, and say so."""
    told = f" ({call['assert_msg']})" if "assert_msg" in call else ""
    sentence = f"An assertion about a value{told} is not checked when the program runs."
    record(Decision(call.node.name, "", "refused", "assertion", sentence))
    return nothing(call)


@register("_linalg_check_errors")
def unchecked_matrix(call: Call) -> Any:
    """Leave linalg's check of singular matrices out; the factorization says so."""
    return nothing(call)
