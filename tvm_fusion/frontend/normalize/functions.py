"""Calls with side effects are kept, and nested functions lifted into the module."""

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir.transform import PassContext

from ...core.untouched import is_lowered, is_rewritable
from ...errors import UserError


@tvm.transform.module_pass(opt_level=0, name="LiftFunctions")
class LiftFunctions:
    """Run TVM's LambdaLift where there is anything to lift; its virtual machine needs that."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Lift the functions inside our functions; one that captures variables is refused."""
        has_local = any(is_rewritable(func) and _has_local(func) for func in mod.functions.values())
        return relax.transform.LambdaLift()(mod) if has_local else mod


def _has_local(func: relax.Function) -> bool:
    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Function):
            found.append(expr)

    relax.analysis.post_order_visit(func.body, visit)
    captured = [var.name for local in found for var in relax.analysis.free_vars(local)]
    if captured:  # LambdaLift passes them untyped, and kernels need types
        raise UserError(
            f"a function inside another one uses {', '.join(captured)} from outside of it",
            "functions that use nothing but their parameters",
            "pass it as an argument",
        )
    return bool(found)


_PURE_CALL = "relax.call_pure_packed"
FORCE_PURE = "relax.force_pure"  # TVM's mark: impure calls inside do not make the function impure


@tvm.transform.module_pass(opt_level=0, name="KeepCalls")
class KeepCalls:
    """Mark unread calls of packed functions and of functions among the parameters as impure.

    Passes drop pure calls whose results are not read, and so would change what a caller of a packed
    function or of a callback sees that writes to its arguments. TVM's default pipeline for CPUs
    drops none. Calls inside of dataflow blocks, which have no effects by definition, stay pure.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        result = mod
        for gvar, func in mod.functions.items():
            if is_rewritable(func) and not is_lowered(func) and func.is_pure:
                kept = _keep(func)
                if kept is not func:
                    result = mod.clone() if result is mod else result
                    result.update_func(gvar, kept)
        return relax.transform.Normalize()(result) if result is not mod else mod


def _keep(func: relax.Function) -> relax.Function:
    read = _reads(func)
    unread = [
        binding.value
        for block in func.body.blocks
        if not isinstance(block, relax.DataflowBlock)
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and hash(binding.var) not in read
    ]
    packed = [call for call in unread if _is_pure_packed(call)]
    pure = [p for p in func.params if isinstance(p.ty, relax.FuncType) and p.ty.purity]
    callbacks = {call.op for call in unread if any(call.op.same_as(p) for p in pure)}
    if not packed and not callbacks:
        return func
    impure = {p: relax.Var(p.name, _impure(p.ty)) for p in callbacks}

    def made(call: relax.Call) -> relax.Call:
        if not any(call.same_as(one) for one in packed):
            return call
        function, *arguments = call.args
        return relax.Call(function, arguments, call.attrs, call.ty_args, call.span)

    kept = tvm_ffi.structural_map(func, [(ir.Call, made)], order="pre") if packed else func
    if impure:
        kept = tvm_ffi.structural_map(kept, [(ir.Var, lambda v: impure.get(v, v))], order="post")
    return kept.with_attr(FORCE_PURE, True)


def _reads(func: relax.Function) -> set[int]:
    """Collect the variables that are read, by their hashes."""
    read: set[int] = set()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            read.add(hash(expr))

    for block in func.body.blocks:
        for binding in block.bindings:
            relax.analysis.post_order_visit(binding.value, visit)
    relax.analysis.post_order_visit(func.body.body, visit)
    return read


def _is_pure_packed(call: relax.Call) -> bool:
    return (
        isinstance(call.op, ir.Op)
        and call.op.name == _PURE_CALL
        and isinstance(call.args[0], relax.ExternFunc)
    )


def _impure(ty: Any) -> Any:
    return relax.FuncType(ty.params, ty.ret, False)
