"""One group, three ways to run it: as planned, member by member, and as stock TVM leaves it."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, relax, tirx
from tvm.target import Target

from tvm_fusion import pipeline, transform
from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.ecg.graph import Operator, Value
from tvm_fusion.program.group import Group
from tvm_fusion.program.primitive import call_group, call_tir

from .cases import Case
from .inline import inlined

_Values = dict[Value, relax.Expr]


def fused(case: Case, target: Target) -> tvm.IRModule:
    """Lower the group as its template makes it."""

    def body(builder: relax.BlockBuilder, exprs: _Values) -> list[relax.Expr]:
        group = case.group
        call = call_group(case.gvar, group, [exprs[v] for v in group.inputs])
        return _fields(builder, builder.emit(call), group)

    return _lowered(_main(case, dict(case.functions), body), target, _stages("fusion"))


def parts(case: Case, target: Target) -> tvm.IRModule:
    """Lower the members one by one: each is planned and scheduled as a group of its own."""
    return _lowered(unfused(case), target, [transform.FuseOperators(), *_stages("fusion")])


def unfused(case: Case) -> tvm.IRModule:
    """Write each member into a private function of its own, which ``main`` calls in order."""
    functions = {g: f for g, f in case.functions.items() if isinstance(f, tirx.PrimFunc)}
    builder = relax.BlockBuilder(tvm.IRModule(functions))
    constants = {case.group.inputs[i]: c for i, c in case.constants.items()}
    gvars = {op: _member(builder, op, constants) for op in case.group.members}

    def body(builder: relax.BlockBuilder, exprs: _Values) -> list[relax.Expr]:
        for op, gvar in gvars.items():
            alone = Group([op])
            args = [exprs[v] for v in alone.inputs if v not in constants]
            whole = builder.emit(relax.Call(gvar, [*args, *alone.scalars]))
            exprs |= dict(zip(alone.outputs, _fields(builder, whole, alone), strict=True))
        return [exprs[v] for v in case.group.outputs]

    return _main(case, dict(builder.get().functions), body)


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


def _member(
    builder: relax.BlockBuilder, op: Operator, constants: dict[Value, ir.GenericConst]
) -> ir.GlobalVar:
    alone = Group([op])
    exprs: _Values = {v: relax.Var(f"p{i}", v.type) for i, v in enumerate(alone.inputs)}
    exprs |= {v: constants[v] for v in alone.inputs if v in constants}
    params = [expr for expr in exprs.values() if isinstance(expr, relax.Var)]
    name = f"member{op.index}"
    # The attribute keeps equal members apart, which the builder would make one.
    attrs = {"member": name}
    with builder.function(name, [*params, *alone.scalars], attrs=attrs, private=True):
        with builder.dataflow():
            whole = builder.emit(call_tir(op, exprs))
            exprs |= dict(zip(op.results, _results(builder, whole, op), strict=True))
            results = [exprs[v] for v in alone.outputs]
            output = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get().get_global_var(name)


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
