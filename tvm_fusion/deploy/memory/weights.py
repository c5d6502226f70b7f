"""Lift tensor constants to parameters, whose data are stored next to the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import tvm
from tvm import ir, relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...core.untouched import is_lowered, is_rewritable

WEIGHTS = "tvm_fusion.weights"  # attribute of a function: the first weight's position, how many
MIN_BYTES = 1024  # smaller constants stay in the code, where they cost no argument


@dataclass(frozen=True)
class Lifted:
    """A module without large constants."""

    mod: tvm.IRModule  # functions with their constants as further parameters, behind their own
    # By function, the constants that those parameters stand for, in order.
    weights: dict[str, list[GenericConst]]


def lift_constants(mod: tvm.IRModule, min_bytes: int = 0) -> Lifted:
    """Turn the tensor constants of functions into parameters of the public ones.

    Parameters
    ----------
    mod
        Any Relax module; not changed.
    min_bytes
        Constants below this many bytes stay, as do scalars; but not those that a function
        returns, for its callers could write to them.

    Returns
    -------
    Lifted
        The same constant used twice is one parameter.
    """

    def is_weight(constant: GenericConst) -> bool:
        return _is_tensor(constant) and _nbytes(constant) >= min_bytes

    mod, weights = hoist_constants(mod, is_weight).clone(), {}
    for gvar, func in list(mod.functions.items()):
        if not isinstance(func, relax.Function) or not (func.attrs or {}).get("global_symbol"):
            continue
        lifter = _Lifter(mod, min_bytes, _returned(func))
        body = lifter.visit_expr(func.body)
        if not lifter.parameters:
            continue
        count = len(func.params)
        weights_at = [count, len(lifter.parameters)]
        attrs = {**dict(func.attrs), "num_input": count, WEIGHTS: weights_at}
        params = [*func.params, *lifter.parameters.values()]
        lifted = relax.Function(params, body, func.ret_ty, func.is_pure)
        mod.update_func(gvar, lifted.with_attrs(attrs))
        weights[gvar.name_hint] = list(lifter.parameters)
    return Lifted(mod, weights)


@mutator
class _Lifter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, min_bytes: int, returned: set[GenericConst]):
        super().__init__(mod)
        self.min_bytes, self.returned = min_bytes, returned
        self.parameters: dict[GenericConst, relax.Var] = {}

    def visit_generic_const_(self, constant: GenericConst) -> relax.Expr:
        small = not _is_tensor(constant) or _nbytes(constant) < self.min_bytes
        if small and constant not in self.returned:
            return constant
        if constant not in self.parameters:
            name = f"weight{len(self.parameters)}"
            self.parameters[constant] = relax.Var(name, constant.ty)
        return self.parameters[constant]


def _returned(func: relax.Function) -> set[GenericConst]:
    """Find the constants that a function returns as they are."""
    values = relax.analysis.get_var2val(func)
    found: set[GenericConst] = set()

    def follow(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var) and expr in values:
            follow(values[expr])
        elif isinstance(expr, relax.Tuple):
            for field in expr.fields:
                follow(field)
        elif isinstance(expr, relax.SeqExpr):
            follow(expr.body)
        elif isinstance(expr, relax.If):
            follow(expr.true_branch)
            follow(expr.false_branch)
        elif isinstance(expr, GenericConst) and isinstance(expr.ty, relax.TensorType):
            found.add(expr)

    follow(func.body)
    return found


def _is_tensor(constant: GenericConst) -> bool:
    """Whether a constant is a tensor with at least one axis; others print as they are."""
    return isinstance(constant.ty, relax.TensorType) and constant.ty.ndim > 0


def _nbytes(constant: GenericConst) -> int:
    bits = tvm.DataType(constant.ty.dtype).bits
    return math.prod(constant.value.shape) * ((bits + 7) // 8)


# Pass the weights of private functions, such as bodies of loops, in from those that call them.
#
# Only public functions take weights from the file next to the library; what a private one keeps
# would lie in the library itself.
def hoist_constants(mod: tvm.IRModule, is_weight: Callable[[GenericConst], bool]) -> tvm.IRModule:
    """Turn constants of private functions into parameters, and pass them where those are called.

    Parameters
    ----------
    mod
        Any Relax module; not changed.

    Returns
    -------
    tvm.IRModule
        The same object where there are none. A function that nothing calls, or that is used other
        than by a call, keeps its constants.
    """
    functions = {g: f for g, f in mod.functions.items() if isinstance(f, relax.Function)}
    private = {
        gvar
        for gvar, func in functions.items()
        if is_rewritable(func) and not is_lowered(func) and not func.attrs.get("global_symbol")
    }
    if not private:
        return mod
    read = {gvar: _Reads(func, is_weight) for gvar, func in functions.items()}
    for reads in read.values():
        private -= reads.used
    private &= _reached(read, [gvar for gvar in functions if gvar not in private])
    needed = {gvar: dict.fromkeys(read[gvar].constants) for gvar in private}
    changes = True
    while changes:  # through functions that call others, or themselves
        before = sum(map(len, needed.values()))
        for gvar, constants in needed.items():
            for called in read[gvar].called & private:
                constants.update(needed[called])
        changes = sum(map(len, needed.values())) > before
    needed = {gvar: constants for gvar, constants in needed.items() if constants}
    if not needed:
        return mod
    result, renamed = mod.clone(), {}
    for gvar, constants in needed.items():
        renamed[gvar] = ir.GlobalVar(gvar.name_hint)
        func = functions[gvar]
        types = [*(p.ty for p in func.params), *(c.ty for c in constants)]
        ty = relax.FuncType(types, func.ret_ty, func.is_pure)
        relax.expr._update_type(renamed[gvar], ty)
    for gvar, func in functions.items():
        if gvar not in needed and not read[gvar].called & needed.keys():
            continue
        own = needed.get(gvar, {})
        params = {const: relax.Var(f"weight{i}", const.ty) for i, const in enumerate(own)}
        body = _Passer(mod, params, needed, renamed).visit_expr(func.body)
        whole = relax.Function(
            [*func.params, *params.values()], body, func.ret_ty, func.is_pure, func.attrs
        )
        if gvar in needed:
            del result[gvar]
        result[renamed.get(gvar, gvar)] = whole
    return result


def _reached(
    read: Mapping[ir.GlobalVar, _Reads], roots: Iterable[ir.GlobalVar]
) -> set[ir.GlobalVar]:
    found: set[ir.GlobalVar] = set()
    rest = list(roots)
    while rest:
        gvar = rest.pop()
        if gvar not in found and gvar in read:
            found.add(gvar)
            rest += read[gvar].called
    return found


class _Reads:
    """Constants and functions in a function's body."""

    def __init__(self, func: relax.Function, is_weight: Callable[[GenericConst], bool]):
        self.constants: dict[GenericConst, None] = {}
        self.called: set[ir.GlobalVar] = set()
        self.used: set[ir.GlobalVar] = set()  # other than as what a call calls

        def visit(expr: ir.Expr) -> None:
            if isinstance(expr, GenericConst) and is_weight(expr):
                self.constants[expr] = None
            elif isinstance(expr, ir.Call):
                if isinstance(expr.op, ir.GlobalVar):
                    self.called.add(expr.op)
                self.used.update(arg for arg in expr.args if isinstance(arg, ir.GlobalVar))
            elif isinstance(expr, relax.Tuple):
                self.used.update(item for item in expr.fields if isinstance(item, ir.GlobalVar))
            elif isinstance(expr, relax.SeqExpr):
                values = [binding.value for block in expr.blocks for binding in block.bindings]
                self.used.update(v for v in (*values, expr.body) if isinstance(v, ir.GlobalVar))

        relax.analysis.post_order_visit(func.body, visit)


@mutator
class _Passer(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        params: dict[GenericConst, relax.Var],
        needed: dict[ir.GlobalVar, dict[GenericConst, None]],
        renamed: dict[ir.GlobalVar, ir.GlobalVar],
    ):
        super().__init__(mod)
        self.params, self.needed, self.renamed = params, needed, renamed

    def visit_generic_const_(self, constant: GenericConst) -> relax.Expr:
        return self.params.get(constant, constant)

    def visit_call_(self, call: ir.Call) -> relax.Expr:
        args = [self.visit_expr(arg) for arg in call.args]
        if isinstance(call.op, ir.GlobalVar) and call.op in self.needed:
            args += [self.params.get(const, const) for const in self.needed[call.op]]
            return relax.Call(self.renamed[call.op], args, call.attrs, call.ty_args)
        op = call.op if isinstance(call.op, (ir.Op, ir.GlobalVar)) else self.visit_expr(call.op)
        return relax.Call(op, args, call.attrs, call.ty_args)
