"""Modules of the planner's alternatives, whose ``main`` take and return the same tensors."""

from collections.abc import Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

from ..core.contract.template import TEMPLATE
from ..ecg.graph import Value
from ..fusion.profile import Alternative, ProfiledGroup
from ..program.primitive import call_group, call_tir, primitive_function
from .timing import TOLERANCE

MAIN = "main"


def modules_of(alternatives: Sequence[Alternative]) -> list[tvm.IRModule]:
    """Write alternatives as modules whose ``main`` take and return the same tensors.

    Raises
    ------
    ValueError
        If they meet in tensors of other layouts.
    """
    types: dict[Value, relax.TensorType] = {}
    for parts in alternatives:
        for part in parts:
            tensors = (*part.group.inputs, *part.group.outputs)
            for own, value in zip(tensors, (*part.inputs, *part.outputs), strict=True):
                known = types.setdefault(value, own.type)
                if not tvm_ffi.structural_equal(known, own.type):
                    raise ValueError(f"{value.name} has two layouts, {known} and {own.type}")
    made = [{value for part in parts for value in part.outputs} for parts in alternatives]
    outputs = [value for part in alternatives[0] for value in part.outputs]
    wanted = [v for v in dict.fromkeys(outputs) if all(v in values for values in made)]
    inputs: dict[Value, None] = {}
    for parts, values in zip(alternatives, made, strict=True):
        read = (value for part in parts for value in part.inputs if value not in values)
        inputs.update(dict.fromkeys(read))
    given = [
        value
        for value in inputs
        if value.constant is None
        or not tvm_ffi.structural_equal(value.constant.ty, types[value])  # it has a layout
    ]
    if not wanted:
        raise ValueError("they have no result in common")
    params = {value: types[value] for value in given}
    return [_module(parts, params, wanted) for parts in alternatives]


def _module(
    parts: Alternative, params: dict[Value, relax.TensorType], wanted: Sequence[Value]
) -> tvm.IRModule:
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {
        op.gvar: op.func for part in parts for op in part.group.members
    }
    builder = relax.BlockBuilder(tvm.IRModule(functions))
    variables = {v: relax.Var(f"x{n}", type_) for n, (v, type_) in enumerate(params.items())}
    known: dict[Value, relax.Expr] = dict(variables)
    with builder.function(MAIN, list(variables.values())):
        with builder.dataflow():
            for part in _ordered(parts):
                for value in part.inputs:
                    if value not in known:
                        known[value] = value.constant
                _emit(builder, part, known)
            outputs = [builder.emit_output(known[value]) for value in wanted]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def _ordered(parts: Alternative) -> list[ProfiledGroup]:
    """Sort parts so that each comes after those whose results it reads."""
    order: list[ProfiledGroup] = []
    left = list(parts)
    while left:
        waiting = {value for part in left for value in part.outputs}
        ready = [p for p in left if not any(v in waiting and v not in p.outputs for v in p.inputs)]
        if not ready:
            raise ValueError("they wait for each other")
        order += ready
        left = [part for part in left if part not in ready]
    return order


def _emit(builder: relax.BlockBuilder, part: ProfiledGroup, known: dict[Value, relax.Expr]) -> None:
    group = part.group
    if not part.template:
        inside = {own: known[v] for own, v in zip(group.inputs, part.inputs, strict=True)}
        for op in group.members:
            inside[op.results[0]] = builder.emit(call_tir(op, inside))
        known.update({v: inside[own] for own, v in zip(group.outputs, part.outputs, strict=True)})
        return
    func = primitive_function(group, {TEMPLATE: part.template})
    call = call_group(builder.add_func(func, "group"), group, [known[v] for v in part.inputs])
    result = builder.emit(call)
    if len(part.outputs) == 1:
        known[part.outputs[0]] = result
        return
    for number, value in enumerate(part.outputs):
        known[value] = builder.emit(relax.TupleGetItem(result, number))


def tolerance(alternatives: Sequence[Alternative]) -> float:
    """Choose what results may differ by, over the largest value: what their widest rounding is.

    Of a chain in float16 with a float32 result one alternative rounds in between, another does not.
    """
    values = (
        value
        for parts in alternatives
        for part in parts
        for op in part.group.members
        for value in (*op.tensors, *op.results)
    )
    return max((TOLERANCE.get(value.dtype, 0.0) for value in values), default=0.0)


def empty_module(params: Sequence[relax.Var]) -> tvm.IRModule:
    """Make a function of the same parameters that returns one tensor of a byte."""
    builder = relax.BlockBuilder()
    own = [relax.Var(f"x{n}", param.ty) for n, param in enumerate(params)]
    with builder.function(MAIN, own):
        with builder.dataflow():
            output = builder.emit_output(relax.const(np.zeros((1,), "int8")))
        builder.emit_func_output(output)
    return builder.get()
