"""A group in the IR: a Relax function marked ``Primitive``, as TVM's own FuseOps makes them.

Its body calls the members' PrimFuncs, one binding each, so that a later stage, in this package or
in any other pipeline, can read the group again or merge it by FuseTIR.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..core.names.source import joined, sources_of, span_of
from ..ecg.graph import Operator, Value
from ..ecg.read_dataflow import CLOSED_FORMS, CONSTANTS
from .group import Group


def primitive_function(group: Group, attrs: Mapping[str, object] | None = None) -> relax.Function:
    """Write a group as a Relax function.

    Parameters are the symbolic variables that the inputs do not define, as one shape, and the
    inputs; constants become parameters, since FuseTIR takes none inside, but closed forms of their
    elements stay with the function. Several outputs make a tuple.

    Parameters
    ----------
    attrs
        Attributes besides ``Primitive``.

    Returns
    -------
    relax.Function
        With symbolic variables of its own.
    """
    renamed = _renaming(group)
    exprs: dict[Value, relax.Expr] = {}
    params: list[relax.Var] = []
    for number, value in enumerate(group.inputs):
        name = f"constant{number}" if value.is_constant else value.name
        exprs[value] = relax.Var(name, renamed(value.type))
        params.append(exprs[value])
    bindings = []
    single = len(group.outputs) == 1
    for op in group.members:
        is_result = single and op.results == group.outputs
        kind, type_ = relax.Var if is_result else relax.DataflowVar, op.binding.var.ty
        var = kind(op.name, renamed(type_))
        bindings.append(relax.VarBinding(var, call_tir(op, exprs, renamed)))
        if isinstance(type_, relax.TupleType):
            for i, value in enumerate(op.results):
                is_result = single and value is group.outputs[0]
                kind = relax.Var if is_result else relax.DataflowVar
                item = kind(value.name, renamed(value.type))
                bindings.append(relax.VarBinding(item, relax.TupleGetItem(var, i)))
                exprs[value] = item
        else:
            exprs[op.results[0]] = var
    if single:
        result = exprs[group.outputs[0]]
    else:
        fields = [exprs[v] for v in group.outputs]
        result = relax.Var("outputs", relax.TupleType([f.ty for f in fields]))
        bindings.append(relax.VarBinding(result, relax.Tuple(fields)))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    symbols = [renamed(s) for s in _symbols(group)]
    if symbols:
        params.insert(0, relax.Var("symbols", relax.ShapeType(symbols)))
    func = relax.Function(params, body, result.ty, True)
    first = len(params) - len(group.inputs)
    constants = [first + i for i, v in enumerate(group.inputs) if v.is_constant]
    if constants:
        func = func.with_attr(CONSTANTS, constants)
    forms = {str(first + i): v.closed_form for i, v in enumerate(group.inputs) if v.closed_form}
    if forms:
        func = func.with_attr(CLOSED_FORMS, forms)
    return func.with_attrs({"Primitive": True, **(attrs or {})})


def _renaming(group: Group) -> Callable[[Any], Any]:
    """Make a function that puts symbolic variables of the group's own into types and extents.

    ``relax.utils.copy_with_new_vars`` fails on extents that choose (TVM 0.27), as slices have.
    """
    types = [v.type for op in group.members for v in (*op.tensors, *op.results)]
    found = [v for t in types for v in relax.analysis.tir_vars_in_type(t)]
    found += [v for scalar in group.scalars for v in tirx.analysis.undefined_vars(scalar)]
    own = {v: tirx.Var(v.name, v.ty.dtype) for v in dict.fromkeys(found)}

    def renamed(node: Any) -> Any:
        return tvm_ffi.structural_map(node, (ir.Var, lambda var: own.get(var, var)))

    return renamed if own else lambda node: node


def call_group(
    gvar: ir.GlobalVar,
    group: Group,
    args: Sequence[relax.Expr],
    known: Mapping[ir.Var, ir.Expr] | None = None,
    span: ir.Span | None = None,
) -> relax.Call:
    """Call a group's function over its inputs.

    Parameters
    ----------
    group
        What it is made of.
    args
        In the order of the group's inputs.
    known
        The caller's extents for the group's symbolic variables, where these are not the caller's.
    span
        The user's names of its operators, where the members' variables do not have them.
    """

    def of_caller(node: Any) -> Any:
        if not known:
            return node
        return tvm_ffi.structural_map(node, (ir.Var, lambda var: known.get(var, var)))

    symbols = [of_caller(symbol) for symbol in _symbols(group)]
    if span is None:
        span = span_of(joined(sources_of(op.binding.var) for op in group.members))
    call = relax.Call(gvar, [*([relax.ShapeExpr(symbols)] if symbols else []), *args], span=span)
    types = [of_caller(v.type) for v in group.outputs]
    # Relax cannot infer shapes over symbols that a function takes as a shape.
    relax.expr._update_type(call, types[0] if len(types) == 1 else relax.TupleType(types))
    return call


def _symbols(group: Group) -> list[tirx.Var]:
    """List scalars, then what an input's compound extent mentions before an input defines it."""
    symbols = dict.fromkeys(group.scalars)
    defined: set[tirx.Var] = set()
    for value in group.inputs:
        defined.update(d for d in value.shape if isinstance(d, tirx.Var))
        mentioned = [v for d in value.shape for v in tirx.analysis.undefined_vars(d)]
        symbols.update(dict.fromkeys(v for v in mentioned if v not in defined))
    return list(symbols)


def call_tir(
    op: Operator,
    exprs: Mapping[Value, relax.Expr],
    renamed: Callable[[Any], Any] = lambda node: node,
) -> relax.Call:
    """Write the call of an operator's PrimFunc over new operands."""
    args = [exprs[o] if isinstance(o, Value) else renamed(o) for o in op.operands]
    old = op.binding.value
    types = [renamed(t) for t in old.ty_args]
    return relax.Call(old.op, [old.args[0], relax.Tuple(args)], old.attrs, types)


def merged(group: Group) -> tirx.PrimFunc:
    """Merge the members' PrimFuncs by TVM's FuseTIR."""
    name = tvm.ir.GlobalVar("group")
    func = primitive_function(group)
    relax.expr._update_type(name, func.ty)
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {op.gvar: op.func for op in group.members}
    params = [relax.Var(f"p{i}", v.type) for i, v in enumerate(group.inputs)]
    functions[name] = func
    call = call_group(name, group, params)
    result = relax.Var("result", call.ty)
    body = relax.SeqExpr([relax.DataflowBlock([relax.VarBinding(result, call)])], result)
    shape = [relax.Var("symbols", relax.ShapeType(s))] if (s := _symbols(group)) else []
    main = relax.Function([*shape, *params], body, call.ty, True)
    main = main.with_attr("global_symbol", "main")  # FuseTIR drops what nothing public calls
    functions[ir.GlobalVar("main")] = main
    fused = relax.transform.FuseTIR()(tvm.IRModule(functions))
    called = fused["main"].body.blocks[0].bindings[0].value
    kernel = fused[called.args[0]]
    # What an input defines is no parameter of a kernel. FuseTIR has symbols in an order of its own.
    inputs, symbols = len(group.inputs), len(group.inputs) + len(s)
    given = list(called.args[1].fields)[inputs:symbols]
    of = dict(zip(given, kernel.params[inputs:symbols], strict=True))
    scalars = [of[v] for v in group.scalars]
    params = [*kernel.params[:inputs], *scalars, *kernel.params[symbols:]]
    return tirx.PrimFunc(params, kernel.body, kernel.ret_type, kernel.attrs)
