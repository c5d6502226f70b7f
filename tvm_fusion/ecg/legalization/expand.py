"""Legalize one operator on its own and splice the resulting bindings in its place.

Legalization functions add PrimFuncs to a module as they go. Here they run in a builder of their
own, so that what they made can be changed before it enters the module: the module's builder shares
equal PrimFuncs only if they are equal when they are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import ir, relax, s_tir, tirx

from ..._tvm.ir.structural import structural_map
from ...core.tir.loops import with_fields

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_LAYOUT_HINT = "layout_free_placeholders"  # of TVM's products, for its own weight layouts
_CALL_TIR = ir.Op.get("relax.call_tir")
# TVM computes products with the literal 0.0 and its quotients as 0, even of NaN, and refuses
# quotients by it.
_FOLDED_AT_ZERO = frozenset(
    f"relax.{name}"
    for name in ("add", "subtract", "multiply", "divide", "floor_divide", "floor_mod", "mod")
)


@dataclass(frozen=True)
class Expansion:
    """What a legalization made of one call."""

    # Stand-ins for the call's tensors, in order, and what they stand for.
    params: Mapping[relax.Var, relax.Expr]
    # Over the stand-ins; the last one's value takes the call's place.
    bindings: tuple[relax.Binding, ...]
    funcs: Mapping[ir.GlobalVar, ir.BaseFunc]  # functions that the bindings call

    @property
    def kernel(self) -> tuple[ir.GlobalVar, tirx.PrimFunc] | None:
        """The PrimFunc that computes the result; None if that cannot be told."""
        value = self.bindings[-1].value
        kernels = [(g, f) for g, f in self.funcs.items() if isinstance(f, tirx.PrimFunc)]
        if is_call_tir(value):
            kernels = [(g, f) for g, f in kernels if g.same_as(value.args[0])]
        return kernels[0] if len(kernels) == 1 else None

    def standing_for(self, params: Mapping[relax.Var, relax.Expr]) -> Expansion:
        """Apply to other tensors of the same types."""
        return replace(self, params=dict(zip(self.params, params.values(), strict=True)))

    def with_func(self, gvar: ir.GlobalVar, func: ir.BaseFunc) -> Expansion:
        """Exchange one function."""
        return replace(self, funcs={**self.funcs, gvar: func})


def is_call_tir(value: Any) -> bool:
    """Tell whether an expression is ``call_tir``."""
    return isinstance(value, relax.Call) and value.op == _CALL_TIR


def stand_in(
    call: relax.Call, builder: relax.BlockBuilder, dtype: Callable[[str], str] = lambda d: d
) -> tuple[relax.Call, dict[relax.Var, relax.Expr]]:
    """Rewrite a call over stand-ins for its variables.

    Parameters
    ----------
    call
        Its tuples may be variables; they are taken apart.
    dtype
        Element type of each tensor's stand-in. Constants get one too, but for finite scalars that
        keep their type: those become literals, except zeros of arithmetic.

    Returns
    -------
    relax.Call
        Without a type where that changed.
    dict
        The stand-ins, and what they stand for.
    """
    made: dict[int, relax.Var] = {}
    params: dict[relax.Var, relax.Expr] = {}
    takes_zero = str(call.op.name) not in _FOLDED_AT_ZERO

    def convert(expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([convert(field) for field in expr.fields])
        is_var = isinstance(expr, relax.Var)
        if is_var and isinstance(expr.ty, relax.TupleType):
            return convert(_unpacked(expr, builder))
        if is_var and isinstance(expr.ty, relax.ShapeType):
            bound = builder.lookup_binding(expr)
            if isinstance(bound, relax.ShapeExpr):
                return bound
        is_tensor = isinstance(expr.ty, relax.TensorType)
        if not is_tensor and not (is_var and isinstance(expr.ty, relax.ShapeType)):
            return expr
        ty = _with_dtype(expr.ty, dtype) if is_tensor else expr.ty
        if not is_var and ty.same_as(expr.ty) and _is_number(expr, takes_zero):
            return expr
        if hash(expr) not in made:
            made[hash(expr)] = relax.Var(expr.name if is_var else "constant", ty)
            params[made[hash(expr)]] = expr
        return made[hash(expr)]

    args = [convert(arg) for arg in call.args]
    return relax.Call(call.op, args, call.attrs, call.ty_args), params


def expand(
    call: relax.Call, params: Mapping[relax.Var, relax.Expr], legalization: Legalization
) -> Expansion | None:
    """Run a legalization on a call over stand-ins.

    Returns
    -------
    Expansion or None
        None if the legalization refused, which it says by returning the call.
    """
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        call = builder.normalize(call)
        result = legalization(builder, call)
        refused = result.same_as(call)
        builder.emit_func_output(builder.emit(result))
    return None if refused else _read(builder.get(), params)


def expand_by_pass(
    call: relax.Call, params: Mapping[relax.Var, relax.Expr], lowering: ir.transform.Pass
) -> Expansion:
    """Run a pass on a module that holds one call over stand-ins."""
    builder = relax.BlockBuilder()
    # A shape defines the variables that the stand-ins' types have inside of expressions only.
    extents = {v: None for p in params for v in relax.analysis.tir_vars_in_type(p.ty)}
    sizes = [relax.Var("sizes", relax.ShapeType([*extents]))] if extents else []
    with builder.function("main", [*params, *sizes]):
        builder.emit_func_output(builder.emit(call))
    return _read(lowering(builder.get()), params)


def splice(expansion: Expansion, builder: relax.BlockBuilder) -> relax.Expr:
    """Add an expansion's functions and bindings to a builder; returns the result, not yet bound."""
    exchanged: dict[int, relax.Expr] = {hash(p): v for p, v in expansion.params.items()}
    for gvar, func in expansion.funcs.items():
        exchanged[hash(gvar)] = builder.add_func(func, gvar.name_hint)
    *before, last = expansion.bindings
    for binding in before:
        value = _substitute(binding.value, exchanged)
        if isinstance(binding, relax.MatchCast):
            exchanged[hash(binding.var)] = builder.match_cast(value, binding.ty)
        else:
            exchanged[hash(binding.var)] = builder.emit(value)
    return _substitute(last.value, exchanged)


def _read(mod: tvm.IRModule, params: Mapping[relax.Var, relax.Expr]) -> Expansion:
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    # The function returns a variable: what it is bound to is the result, through aliases.
    result = main.body.body
    while bindings and bindings[-1].var.same_as(result):
        value = bindings[-1].value
        if not isinstance(value, relax.Var) or value in params:
            break
        bindings.pop()
        result = value
    funcs = {g: _unhinted(f) for g, f in mod.functions.items() if g.name_hint != "main"}
    standing = dict(zip(main.params, params.values(), strict=False))  # sizes stand for nothing
    return Expansion(standing, tuple(bindings), funcs)


def _unhinted(func: ir.BaseFunc) -> ir.BaseFunc:
    """Remove hints that name buffers inside: fused and inlined, these are declared nowhere."""

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        if _LAYOUT_HINT not in node.annotations:
            return node
        kept = {key: node.annotations[key] for key in node.annotations if key != _LAYOUT_HINT}
        return with_fields(node, annotations=kept)

    if not isinstance(func, tirx.PrimFunc):
        return func
    body = structural_map(func.body, (s_tir.SBlock, block))
    return func if body.same_as(func.body) else func.with_body(body)


def _substitute(expr: relax.Expr, exchanged: Mapping[int, relax.Expr]) -> relax.Expr:
    if isinstance(expr, (ir.Var, ir.GlobalVar)):
        return exchanged.get(hash(expr), expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_substitute(field, exchanged) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_substitute(expr.tuple_value, exchanged), expr.index)
    if isinstance(expr, relax.Call) and not ir.is_prim_expr(expr):
        args = [_substitute(arg, exchanged) for arg in expr.args]
        return relax.Call(_substitute(expr.op, exchanged), args, expr.attrs, expr.ty_args)
    return expr


def _unpacked(var: relax.Var, builder: relax.BlockBuilder) -> relax.Tuple:
    bound: Any = var
    while isinstance(bound, relax.Var):
        following = builder.lookup_binding(bound)
        if not isinstance(following, (relax.Var, relax.Tuple)):
            break
        bound = following
    if isinstance(bound, relax.Tuple):
        return bound
    items = [relax.TupleGetItem(bound, i) for i in range(len(var.ty.fields))]
    return relax.Tuple([builder.emit(item) for item in items])


def _is_number(expr: relax.Expr, takes_zero: bool) -> bool:
    """Whether a constant is a scalar that legalizations can write as a literal."""
    if not isinstance(expr, ir.GenericConst) or expr.ty.ndim != 0:
        return False
    number = expr.value.numpy().item()
    is_zero = isinstance(number, float) and number == 0
    return math.isfinite(number) and (takes_zero or not is_zero)


def _with_dtype(ty: relax.TensorType, dtype: Callable[[str], str]) -> relax.TensorType:
    old = str(ty.dtype.dtype) if ty.dtype is not None else ""
    new = dtype(old)
    return ty if new == old else relax.TensorType(ty.shape, new, ty.vdevice)
