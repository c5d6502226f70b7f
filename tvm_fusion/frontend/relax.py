"""Import Relax modules: bind dimensions, describe every function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tvm
from tvm import relax, tirx

from .._tvm.symbolic import bind_symbolic_vars
from ..config import FusionConfig
from ..core.decisions import Decision, record
from ..core.untouched import is_rewritable
from ..errors import UserError
from ..signature import DimRange, Signature
from . import Imported
from .describe import signature_of
from .dims import DimTable
from .findings import Findings
from .finish import finish
from .python_functions import refuse_python_functions
from .steps import Steps
from .tuple_inputs import without_tuples


def from_module(mod: tvm.IRModule, config: FusionConfig) -> Imported:
    """Take a Relax module; see :func:`tvm_fusion.frontend.import_model`.

    Untouched functions (PrimFuncs; Composite, Codegen or Primitive functions) pass
    untouched. A symbolic dimension without an option keeps the bounds that the module's own
    ``tir_var_upper_bound`` gives it. Python functions are refused by name.
    """
    refuse_python_functions(mod)
    mod = without_tuples(mod)
    public = [
        (gvar.name_hint, func)
        for gvar, func in mod.functions.items()
        if is_rewritable(func) and func.attrs and "global_symbol" in func.attrs
    ]
    if not public:
        raise UserError("an IRModule without a public Relax function", "at least one function")
    ours = [func for func in mod.functions.values() if is_rewritable(func)]
    table = DimTable([(p.name, _extents(p.ty)) for func in ours for p in func.params])
    chosen, unbound = table.resolve(config.dims, own_bounds(mod))
    sizes = _extents_of_tensors(ours)
    Findings(unbound=[dim for dim in unbound if dim.label in sizes]).raise_if_any("the IRModule")
    ranges = {name: value for name, value in chosen.items() if isinstance(value, DimRange)}
    steps = Steps.among(ranges)
    mod = steps.bound(bind(mod, table, chosen))
    mod = finish(mod, config, steps.inner(ranges))
    described = signatures(mod, [name for name, _ in public])
    described = {name: steps.in_dims(signature) for name, signature in described.items()}
    return Imported(mod, described, ranges, {}, "IRModule")


def bind(
    mod: tvm.IRModule,
    table: DimTable,
    chosen: Mapping[str, int | DimRange],
    fixed: Mapping[str, int] = MappingProxyType({}),
) -> tvm.IRModule:
    """Give the symbolic variables of our functions their extents, or their names from the table.

    Parameters
    ----------
    mod : tvm.IRModule
        Functions whose symbolic variables are called like the table's labels.
    table : DimTable
        The dimensions.
    chosen : mapping of str to (int or DimRange)
        By identifier; the others stay symbolic under the labels that they have.
    fixed : mapping of str to int, optional
        Extents of further variables.
    """
    values: dict[str, int | tirx.Var] = dict(fixed)
    for dim in table.dims:
        value = chosen.get(dim.name)
        if isinstance(value, int):
            values[dim.label] = value
        elif value is not None and dim.name != dim.label:
            values[dim.label] = tirx.Var(dim.name, "int64")
    mod = mod.clone()
    for gvar, func in mod.functions.items():
        if is_rewritable(func):
            mod[gvar] = bind_symbolic_vars(func, values)
    return mod


def own_bounds(mod: tvm.IRModule) -> dict[str, DimRange]:
    """Read the ranges that the functions' attributes state for their symbolic variables."""
    ranges = {}
    for func in mod.functions.values():
        attrs = (func.attrs or {}) if is_rewritable(func) else {}
        lows = attrs.get("tir_var_lower_bound", {})
        for name, high in attrs.get("tir_var_upper_bound", {}).items():
            ranges[str(name)] = DimRange(max(1, int(lows.get(name, 1))), int(high))
    return ranges


def signatures(mod: tvm.IRModule, names: list[str]) -> dict[str, Signature]:
    """Describe functions, ``main`` first; one that does not map tensors to tensors is recorded."""
    described = {}
    for name in sorted(names, key=lambda name: name != "main"):
        signature = signature_of(mod[name])
        if signature is not None:
            described[name] = signature
            continue
        record(
            Decision(
                name,
                "",
                "refused",
                "no_signature",
                f"function {name} takes or returns something else than tensors; it is compiled, "
                "but its calls are not checked.",
            )
        )
    return described


def _extents_of_tensors(funcs: list[relax.Function]) -> set[int | str]:
    """Collect the extents of tensors; shapes alone, such as a cache's limits, are plain numbers."""

    def within(ty: Any) -> list[int | str]:
        if isinstance(ty, relax.TupleType):
            return [extent for field in ty.fields for extent in within(field)]
        return [] if isinstance(ty, relax.ShapeType) else _extents(ty)

    return {extent for func in funcs for p in func.params for extent in within(p.ty)}


def _extents(ty: Any) -> list[int | str]:
    """List the extents in a parameter's type; those that are expressions say nothing new."""
    if isinstance(ty, relax.TupleType):
        return [extent for field in ty.fields for extent in _extents(field)]
    if isinstance(ty, relax.ShapeType):
        values = ty.values or ()
    else:
        values = getattr(ty, "shape", None) or ()
    return [v.name if isinstance(v, tirx.Var) else 1 for v in values]
