"""The scheduling stage: groups become the kernels that their templates promised."""

from collections.abc import Callable, Container, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir.transform import Pass, PassContext, Sequential

from ..core.contract.kernel_info import Describe
from ..core.contract.template import Ban
from ..core.contract.tuned import Lookup, untuned
from ..core.current_target import current_target
from ..core.decisions import naming
from ..core.names.source import names_of_callees
from ..core.untouched import PRIMITIVE, has_blocks, is_external, is_scheduled
from .single.rules import rules
from .stage.emit import Inspect, emit_groups, is_group
from .stage.guard import schedule_function
from .stage.install import install


def inline_groups(mod: tvm.IRModule, groups: Container[ir.GlobalVar]) -> tvm.IRModule:
    """Write groups out where they are called, so that they can be planned again.

    TVM's own inlining leaves the symbolic variables of what it writes out undefined.

    Parameters
    ----------
    mod
        With calls of the groups in dataflow blocks.

    Returns
    -------
    tvm.IRModule
        Without them.
    """
    mod = mod.clone()
    for gvar, func in list(mod.functions.items()):
        if isinstance(func, relax.Function) and gvar not in groups:
            blocks = [_block(mod, block, groups) for block in func.body.blocks]
            body = relax.SeqExpr(blocks, func.body.body)
            rewritten = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
            mod.update_func(gvar, rewritten)
    for gvar in [g for g in mod.functions if g in groups]:
        del mod[gvar]
    return relax.transform.Normalize()(mod)


def _block(
    mod: tvm.IRModule, block: relax.BindingBlock, groups: Container[ir.GlobalVar]
) -> relax.BindingBlock:
    if not isinstance(block, relax.DataflowBlock):
        return block
    bindings: list[relax.Binding] = []
    for binding in block.bindings:
        value = binding.value
        if isinstance(value, relax.Call) and value.op in groups:
            func = mod[value.op]
            known = arguments_of(func, list(value.args))
            for inner in func.body.blocks[0].bindings:
                type_ = _substitute(inner.var.ty, known)
                var = relax.DataflowVar(inner.var.name, type_, value.span)
                bindings.append(relax.VarBinding(var, _value(inner.value, known)))
                known[inner.var] = var
            result = _substitute(func.body.body, known)
            bindings.append(relax.VarBinding(binding.var, result))
        else:
            bindings.append(binding)
    return relax.DataflowBlock(bindings)


def arguments_of(func: relax.Function, args: list[relax.Expr]) -> dict[ir.Var, ir.Expr]:
    """Map parameters, and symbolic variables that they define, to what a call passes."""
    known: dict[ir.Var, ir.Expr] = {}
    for param, arg in zip(func.params, args, strict=True):
        known[param] = arg
        if isinstance(param.ty, relax.ShapeType):
            known |= dict(zip(param.ty.values, arg.values, strict=True))
        if isinstance(param.ty, relax.TensorType):
            extents = zip(param.ty.shape.values, arg.ty.shape.values, strict=True)
            known |= {mine: theirs for mine, theirs in extents if isinstance(mine, ir.Var)}
    return known


def _value(value: relax.Expr, known: Mapping[ir.Var, ir.Expr]) -> relax.Expr:
    """Substitute in a member's value; the PrimFunc's name must stay the very same object."""
    if not isinstance(value, relax.Call):
        return _substitute(value, known)
    name, *args = value.args
    types = [_substitute(t, known) for t in value.ty_args]
    return relax.Call(value.op, [name, *(_substitute(a, known) for a in args)], value.attrs, types)


def _substitute(expr, known: Mapping[ir.Var, ir.Expr]):
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: known.get(v, v)), order="post")


# Merge groups that TVM's own FuseOps has made into PrimFuncs, as TVM's FuseTIR does.
def merge_primitives(mod: tvm.IRModule) -> tvm.IRModule:
    """Run FuseTIR where Primitive functions over ``call_tir`` are left, which no VM can call.

    Those for external code generators (Composite, Codegen) and those over anything else than
    PrimFuncs stay.
    """
    return relax.transform.FuseTIR()(mod) if any(map(_is_primitive(mod), mod.functions)) else mod


def _is_primitive(mod: tvm.IRModule) -> Any:
    def test(gvar: tvm.ir.GlobalVar) -> bool:
        func = mod[gvar]
        if not isinstance(func, relax.Function) or is_group(func) or is_external(func):
            return False
        return bool(func.attrs and func.attrs.get(PRIMITIVE, False)) and _calls_kernels(mod, func)

    return test


def _calls_kernels(mod: tvm.IRModule, func: relax.Function) -> bool:
    calls = [
        binding.value
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    return all(
        call.op == tvm.ir.Op.get("relax.call_tir")
        and isinstance(mod.functions.get(call.args[0]), tirx.PrimFunc)
        for call in calls
    )


@tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
class ScheduleKernels:
    """Make kernels of all groups for the current target, and schedule the other PrimFuncs.

    A template that cannot emit what it claimed loses that claim: the decision ``claim_broken`` is
    recorded, and the region is planned again without it. PrimFuncs that are scheduled already stay
    as they are. Groups that TVM's own FuseOps has made are merged by FuseTIR.

    Parameters
    ----------
    fuse : callable
        Makes the pass that plans operators again, given the claims not to be made again.
    tuned : callable
        Gives the configuration that was measured to be the fastest for a claim, or ``None``.
    describe : callable, optional
        Describes the kernels of a claim for the artifact.
    inspect : callable, optional
        Tells why a configuration's machine code is unfit; others are tried then.
    """

    def __init__(
        self,
        fuse: Callable[[frozenset[Ban]], Pass],
        tuned: Lookup = untuned,
        describe: Describe | None = None,
        inspect: Inspect | None = None,
    ) -> None:
        self._fuse = fuse
        self._tuned = tuned
        self._describe = describe
        self._inspect = inspect

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every group and to every unscheduled PrimFunc over SBlocks."""
        with naming(names_of_callees(mod)):
            return self._scheduled(mod)

    def _scheduled(self, mod: tvm.IRModule) -> tvm.IRModule:
        target = current_target("ScheduleKernels")
        banned: frozenset[Ban] = frozenset()
        while True:
            emitted, broken = emit_groups(mod, target, self._tuned, self._describe, self._inspect)
            mod = install(mod, emitted)
            if not broken:
                break
            again = banned & frozenset(broken.values())
            if again:
                raise RuntimeError(f"a banned claim was made again: {sorted(n for n, _ in again)}")
            banned |= frozenset(broken.values())
            mod = inline_groups(mod, broken)
            mod = Sequential([self._fuse(banned)])(mod)
        mod = relax.transform.DeadCodeElimination()(merge_primitives(mod))
        kinds, check = rules(target)
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, tirx.PrimFunc) and not is_scheduled(func) and has_blocks(func):
                mod.update_func(gvar, schedule_function(gvar.name_hint, func, target, kinds, check))
        return mod
