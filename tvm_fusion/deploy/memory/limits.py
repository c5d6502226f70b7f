"""Which whole numbers a function may be given: tokens of a vocabulary, positions of a cache.

An input whose elements are looked up in a table, or at which slices of a state are written, is
limited by the extent of that axis. Compiled code clamps lookups and leaves such slices out; who
calls it can tell the user first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, relax

from ...core.tir.loops import constant
from ...frontend.dimensions.extents import from_tir
from ...signature import Signature
from .in_place import writes_of
from .slice_patterns import Bindings

_SAME = ("astype", "reshape", "expand_dims", "squeeze", "broadcast_to", "flatten")


@dataclass(frozen=True)
class Limit:
    """Numbers of an input: each, and ``count`` from it on, are at least 0 and below a number."""

    below: int  # the first number that there is not
    # How many consecutive ones it stands for; a string is an expression over dimensions.
    count: int | str = 1


def limits(
    mod: tvm.IRModule, signatures: Mapping[str, Signature], names: Mapping[str, str]
) -> dict[str, dict[str, Limit]]:
    """Find the limits of inputs.

    Parameters
    ----------
    mod
        The functions that ``signatures`` describes, as imported.
    names
        By input that is written to, its output.

    Returns
    -------
    dict of str to dict of str to Limit
        By function and input.
    """
    return {
        function: _of_function(mod[function], signature, names)
        for function, signature in signatures.items()
    }


def _of_function(
    func: relax.Function, signature: Signature, names: Mapping[str, str]
) -> dict[str, Limit]:
    bindings = Bindings(func)
    params = {p: s.name for p, s in zip(func.params, signature.inputs, strict=False)}
    found: dict[str, Limit] = {}
    for numbers, extent in (*_lookups(bindings), *writes_of(func, signature, names)):
        root = _root(bindings, numbers)
        if root is None or root[0] not in params or root[0].ty.dtype.dtype[0] not in "iu":
            continue
        name, limit = params[root[0]], Limit(extent, root[1])
        known = found.get(name)
        if known is None or limit.below < known.below:
            found[name] = limit
    return found


def _lookups(bindings: Bindings) -> Iterator[tuple[relax.Expr, int]]:
    for value in bindings.table.values():
        if isinstance(value, ir.Call) and _name(value) == "take" and value.attrs.axis is not None:
            table, numbers = value.args
            extent = constant(table.ty.shape.values[int(value.attrs.axis)])
            if extent is not None and isinstance(numbers, ir.Var):
                yield numbers, extent


def _root(bindings: Bindings, expr: relax.Expr) -> tuple[ir.Var, int | str] | None:
    """Find the parameter that numbers are, or that they count on from, and how far."""
    value = bindings.value(expr)
    if isinstance(value, ir.Var):
        return value, 1
    name = _name(value)
    if name in _SAME:
        return _root(bindings, value.args[0])
    if name == "where" and (start := bindings.before_shift(expr)) is not None:
        return _root(bindings, start)  # a number counted from the end is no position
    if name == "take" and all(constant(e) == 1 for e in value.args[0].ty.shape.values):
        return _root(bindings, value.args[0])
    if name != "add":
        return None
    for one, other in (value.args, value.args[::-1]):
        count = bindings.counted(other)
        found = None if count is None else _root(bindings, one)
        if found is not None:
            return (found[0], from_tir(count)) if found[1] == 1 else None
    return None


def _name(value: Any) -> str:
    is_call = isinstance(value, ir.Call) and isinstance(value.op, ir.Op)
    return value.op.name.removeprefix("relax.") if is_call else ""
