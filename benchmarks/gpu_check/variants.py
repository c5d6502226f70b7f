"""One group, two ways to run it: as planned, and member by member as stock TVM leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.target import Target

from tvm_fusion import pipeline, transform
from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.ecg.graph import Operator, Value
from tvm_fusion.program.group import Group
from tvm_fusion.program.primitive import call_group, call_tir
from tvm_fusion.schedule.kernels import arguments_of

from .cases import Case

_Values = dict[Value, relax.Expr]


def fused(case: Case, target: Target) -> tvm.IRModule:
    """Lower the group as its template makes it."""

    def body(builder: relax.BlockBuilder, exprs: _Values) -> list[relax.Expr]:
        group = case.group
        call = call_group(case.gvar, group, [exprs[v] for v in group.inputs])
        return _fields(builder, builder.emit(call), group)

    return _lowered(_main(case, dict(case.functions), body), target, _stages("fusion"))


def stock(case: Case, target: Target) -> tvm.IRModule:
    """Lower the members one by one without schedules, as stock TVM does on a CPU."""

    def body(builder: relax.BlockBuilder, exprs: _Values) -> list[relax.Expr]:
        for op in case.group.members:
            whole = builder.emit(call_tir(op, exprs))
            exprs |= dict(zip(op.results, _results(builder, whole, op), strict=True))
        return [exprs[v] for v in case.group.outputs]

    functions = {g: f for g, f in case.functions.items() if isinstance(f, tirx.PrimFunc)}
    return _lowered(_main(case, functions, body), target, [])


def load(mod: tvm.IRModule, target: Target) -> relax.VirtualMachine:
    """Build a lowered module for this machine's CPU."""
    executable = tvm.compile(mod, target, relax_pipeline=None, tir_pipeline=PIPELINE)
    return relax.VirtualMachine(executable, tvm.cpu())


def _main(
    case: Case,
    functions: dict[ir.GlobalVar, ir.BaseFunc],
    body: Callable[[relax.BlockBuilder, _Values], list[relax.Expr]],
) -> tvm.IRModule:
    """Add a function ``main`` over the group's inputs, constants left out, and its scalars."""
    builder = relax.BlockBuilder(tvm.IRModule(functions))
    exprs: _Values = {v: relax.Var(f"p{i}", v.type) for i, v in enumerate(case.group.inputs)}
    exprs |= {case.group.inputs[i]: constant for i, constant in case.constants.items()}
    params = [expr for expr in exprs.values() if isinstance(expr, relax.Var)]
    with builder.function("main", [*params, *case.group.scalars]):
        with builder.dataflow():
            results = body(builder, exprs)
            output = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get()


def _fields(builder: relax.BlockBuilder, whole: relax.Expr, group: Group) -> list[relax.Expr]:
    if len(group.outputs) == 1:
        return [whole]
    return [builder.emit(relax.TupleGetItem(whole, i)) for i in range(len(group.outputs))]


def _results(builder: relax.BlockBuilder, whole: relax.Expr, op: Operator) -> list[relax.Expr]:
    if not isinstance(op.binding.var.ty, relax.TupleType):
        return [whole]
    return [builder.emit(relax.TupleGetItem(whole, i)) for i in range(len(op.results))]


def _stages(after: str) -> list[tvm.transform.Pass]:
    names = [name for name, _ in pipeline.STAGES]
    return [stage() for _, stage in pipeline.STAGES[names.index(after) + 1 :]]


def _lowered(mod: tvm.IRModule, target: Target, stages: list[tvm.transform.Pass]) -> tvm.IRModule:
    with target:
        mod = inlined(tvm.ir.transform.Sequential(stages)(mod))
        return tvm.ir.transform.Sequential([transform.LowerToVM()])(mod)


def inlined(mod: tvm.IRModule) -> tvm.IRModule:
    """Write out all Relax functions that ``main`` calls, over bare extents or parameters; they go.

    TVM's InlinePrivateFunctions leaves the symbolic variables of what it writes out undefined.
    """
    main = mod["main"]
    others = {g: f for g, f in mod.functions.items() if not isinstance(f, relax.Function)}
    builder = relax.BlockBuilder(tvm.IRModule(others))
    with builder.function("main", list(main.params), attrs=dict(main.attrs or {})):
        with builder.dataflow():
            output = builder.emit_output(_emit(builder, mod, main, {}))
        builder.emit_func_output(output)
    return builder.get()


def _emit(
    builder: relax.BlockBuilder,
    mod: tvm.IRModule,
    func: relax.Function,
    known: dict[ir.Var, ir.Expr],
) -> relax.Expr:
    """Emit a function's bindings over what its variables stand for; return its result."""
    for block in func.body.blocks:
        for binding in block.bindings:
            value = _substitute(binding.value, known)
            callee = mod.functions.get(value.op) if isinstance(value, relax.Call) else None
            if isinstance(callee, relax.Function):
                value = _emit(builder, mod, callee, arguments_of(callee, value.args))
            known[binding.var] = builder.emit(value)
    return _substitute(func.body.body, known)


def _substitute(expr: relax.Expr, known: Mapping[ir.Var, ir.Expr]) -> relax.Expr:
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: known.get(v, v)), order="post")
