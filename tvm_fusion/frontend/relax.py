"""Import Relax modules: bind dimensions, describe every function."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tvm
from tvm import ir, relax, tirx

from .._tvm.ir.symbolic import bind_symbolic_vars
from ..config import FusionConfig
from ..core.decisions import Decision, record
from ..core.names.source import Source, attach
from ..core.untouched import is_rewritable
from ..errors import UserError
from ..signature import DimRange, Signature
from . import Imported
from .dimensions.findings import Findings
from .dimensions.signatures import signature_of
from .dimensions.steps import Steps
from .dimensions.symbolic import DimTable
from .finish import finish


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
    mod = attach(mod, lambda binding: (Source("", (str(binding.var.name),)),))
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
    """Bind the symbolic variables of our functions to their extents, or to the table's names.

    Parameters
    ----------
    mod
        Functions whose symbolic variables are called like the table's labels.
    chosen
        By identifier; the others stay symbolic under the labels that they have.
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
                f"function {name} takes or returns something other than tensors; it is compiled, "
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


# Functions of a Relax module that exist in the compiling Python process alone.
_CALL = "relax.call_py_func"


def refuse_python_functions(mod: tvm.IRModule) -> None:
    """Raise a :class:`tvm_fusion.errors.UserError` that names a module's Python functions.

    An artifact holds no Python: the process that loads it could not call them.

    Parameters
    ----------
    mod
        With functions written by ``I.pyfunc`` or calls by ``call_py_func``, or without.
    """
    names: dict[str, None] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) and expr.op.name == _CALL:
            names[str(expr.args[0].value)] = None

    for gvar, func in mod.functions.items():
        if (func.attrs or {}).get("is_pyfunc", False):
            names[gvar.name_hint] = None
        elif is_rewritable(func):
            relax.analysis.post_order_visit(func.body, visit)
    if names:
        plural = "s" if len(names) > 1 else ""
        raise UserError(
            f"the IRModule needs Python function{plural} {', '.join(names)}",
            "functions that run without the Python process that compiles them",
            "write them as Relax functions or PrimFuncs, or as packed functions of a library that "
            "the loading process has",
        )


# Flatten tuple parameters to one input for each tensor.
def without_tuples(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace tuple parameters of public functions by a parameter for each field.

    They are called ``t_0``, ``t_1``, and the fields of a tuple inside ``t_1_0``, ``t_1_1``. An
    artifact's inputs are tensors; private functions, which others call, keep their parameters, and
    so do functions that take something else than tensors besides, such as a cache: callers give
    them what they always gave.

    Returns
    -------
    tvm.IRModule
        The same object if there is no such parameter.
    """
    result = mod
    for gvar, func in mod.functions.items():
        is_public = is_rewritable(func) and func.attrs and "global_symbol" in func.attrs
        if not is_public or not any(isinstance(p.ty, relax.TupleType) for p in func.params):
            continue
        if _is_called(mod, gvar) or not all(_is_of_tensors(p.ty) for p in func.params):
            continue
        result = mod.clone() if result is mod else result
        del result[gvar]
        new = tvm.ir.GlobalVar(gvar.name_hint)
        result[new] = _flattened(func)
    return result


def _flattened(func: relax.Function) -> relax.Function:
    params: list[relax.Var] = []
    bindings: list[relax.Binding] = []

    def fields(name: str, ty: Any) -> relax.Expr:
        if isinstance(ty, relax.TupleType):
            return relax.Tuple([fields(f"{name}_{i}", field) for i, field in enumerate(ty.fields)])
        params.append(relax.Var(name, ty))
        return params[-1]

    for param in func.params:
        if isinstance(param.ty, relax.TupleType):
            bindings.append(relax.VarBinding(param, fields(param.name, param.ty)))
        else:
            params.append(param)
    before = relax.BindingBlock(bindings)
    body = relax.SeqExpr([before, *func.body.blocks], func.body.body)
    attrs = func.attrs
    flattened = relax.Function(params, body, func.ret_ty, func.is_pure, attrs)
    if "num_input" in attrs:
        extra = len(params) - len(func.params)
        flattened = flattened.with_attr("num_input", int(attrs["num_input"]) + extra)
    return flattened


def _is_of_tensors(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(map(_is_of_tensors, ty.fields))
    return isinstance(ty, relax.TensorType)


def _is_called(mod: tvm.IRModule, gvar: tvm.ir.GlobalVar) -> bool:
    return any(
        gvar in relax.analysis.all_global_vars(func)
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
    )
