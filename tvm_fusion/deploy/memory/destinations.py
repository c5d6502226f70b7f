"""Functions that write results into their caller's memory: destinations are further parameters.

A function ``main(inputs, weights)`` allocates its results. Beside it stands

    main.into(inputs, weights, destinations)

with the same kernels, in which each result that a kernel writes into memory of its own is a
parameter instead (destination passing). What a function returns in another way, an input, a
constant or the same tensor twice, is no destination, and is returned as before.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir.transform import PassContext
from tvm.target import Target

from ...core.tir.expressions import variables
from ..runtime.artifact.manifest import INTO

DESTINATIONS = "tvm_fusion.destinations"  # attribute: the results that are parameters, ascending
_WANTED = "tvm_fusion.takes_destinations"
_ALLOC = ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = ir.Op.get("relax.reshape")


def add_destinations(mod: tvm.IRModule, functions: Collection[str]) -> tvm.IRModule:
    """Add copies of functions that are to take destinations.

    Parameters
    ----------
    mod
        Functions before they are lowered; not changed. On other devices than the CPU, where
        launches may be captured with their addresses, nothing is added.
    """
    target = Target.current()
    if target is None or target.kind.name != "llvm":
        return mod
    mod = mod.clone()
    for name in functions:
        if _allocates(mod[name]):
            continue
        func = relax.utils.copy_with_new_vars(mod[name])
        attrs = {"global_symbol": name + INTO, _WANTED: True}
        mod.update_func(ir.GlobalVar(name + INTO), func.with_attrs(attrs))
    return mod


def _allocates(func: relax.Function) -> bool:
    """Whether a function allocates before it is lowered.

    The copy would have the same call, as it is without variables, and TVM 0.27's
    StaticPlanBlockMemory plans a call once for a whole module.
    """
    found: list[Any] = []
    relax.analysis.post_order_visit(func, found.append)
    return any(isinstance(expr, ir.Call) and expr.op == _ALLOC for expr in found)


def destinations(mod: tvm.IRModule, function: str) -> list[int]:
    """List the results of a lowered function that its copy takes as parameters, in their order."""
    names = {gvar.name_hint for gvar in mod.functions}
    if function + INTO not in names:
        return []
    return [int(i) for i in mod[function + INTO].attrs[DESTINATIONS]]


@tvm.transform.module_pass(opt_level=0, name="PassDestinations")
class PassDestinations:
    """Turn allocations of results into parameters of the functions that are to have them.

    Runs behind CallTIRRewrite, which writes the allocations, and before memory is planned. A
    function of which no result can be passed is removed.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to the copies that :func:`add_destinations` made."""
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if not (func.attrs and func.attrs.get(_WANTED, False)):
                continue
            passed = _Passing(func).function()
            if passed is None:
                del mod[gvar]
            else:
                mod.update_func(gvar, passed.without_attr(_WANTED))
        return mod


class _Passing:
    """One function, and which of its allocations can be parameters."""

    def __init__(self, func: relax.Function) -> None:
        self._func = func
        self._bindings = [b for block in func.body.blocks for b in block.bindings]
        self._values = {b.var: b.value for b in self._bindings}

    def function(self) -> relax.Function | None:
        """Write it with parameters; ``None`` if no result can be one."""
        leaves = self._leaves(self._func.body.body)
        chosen: dict[ir.Var, int] = {}
        for number, leaf in enumerate(leaves):
            alloc = self._allocation(leaf) if self._is_told(leaf.ty) else None
            if alloc is not None and alloc not in chosen and self._is_only_for_kernels(alloc):
                chosen[alloc] = number
        if not chosen:
            return None
        pairs = sorted((number, alloc) for alloc, number in chosen.items())
        params = {a: relax.Var(f"destination{n}", leaves[n].ty) for n, a in pairs}
        blocks = [
            type(block)([self._bound(b, params) for b in block.bindings])
            for block in self._func.body.blocks
        ]
        body = relax.SeqExpr(blocks, self._func.body.body)
        attrs = {**dict(self._func.attrs), DESTINATIONS: [number for number, _ in pairs]}
        result = relax.Function(
            [*self._func.params, *params.values()], body, self._func.ret_ty, self._func.is_pure
        )
        return result.with_attrs(attrs)

    def _is_told(self, ty: Any) -> bool:
        """Whether extents that are computed are so from extents of inputs.

        TVM 0.27 checks shapes of parameters first, where what is read from data is not known yet.
        """
        extents = [] if not isinstance(ty, relax.TensorType) or ty.shape is None else ty.shape
        computed = [e for e in extents if not isinstance(e, ir.Var)]
        return all(var in self._symbols for extent in computed for var in variables(extent))

    @cached_property
    def _symbols(self) -> set[ir.Var]:
        """Symbols that a caller's tensors show."""
        shapes = [
            param.ty.shape if isinstance(param.ty, relax.TensorType) else param.ty
            for param in self._func.params
            if isinstance(param.ty, relax.TensorType | relax.ShapeType)
        ]
        extents = [shape.values or () for shape in shapes if shape is not None]
        return {e for values in extents for e in values if isinstance(e, ir.Var)}

    @staticmethod
    def _bound(binding: relax.Binding, params: dict[ir.Var, ir.Var]) -> relax.Binding:
        """Bind an allocation to the parameter, in the shape that kernels write."""
        param = params.get(binding.var)
        if param is None:
            return binding
        if tvm_ffi.structural_equal(param.ty, binding.var.ty):
            return relax.VarBinding(binding.var, param)
        view = relax.op.reshape(param, binding.var.ty.shape)
        return relax.VarBinding(binding.var, view)

    def _leaves(self, expr: relax.Expr) -> list[relax.Expr]:
        """List the tensors of a result in order."""
        if not isinstance(expr.ty, relax.TupleType):
            return [expr]
        whole = self._value(expr)
        if isinstance(whole, relax.Tuple):
            return [leaf for field in whole.fields for leaf in self._leaves(field)]
        return [expr] * _count(expr.ty)  # of an unknown origin, but each has its number

    def _allocation(self, leaf: relax.Expr) -> ir.Var | None:
        """Find the variable of the allocation that is a result's memory, through views."""
        if not isinstance(leaf.ty, relax.TensorType) or leaf.ty.shape is None:
            return None
        while True:
            value = self._values.get(leaf) if isinstance(leaf, ir.Var) else leaf
            if isinstance(value, ir.Call) and value.op == _ALLOC:
                return leaf
            if isinstance(value, ir.Call) and value.op == _RESHAPE:
                leaf = value.args[0]
            elif isinstance(value, ir.TupleGetItem):
                whole = self._value(value.tuple_value)
                if not isinstance(whole, relax.Tuple):
                    return None
                leaf = whole.fields[value.index]
            elif isinstance(value, ir.Var):
                leaf = value
            else:
                return None

    def _value(self, expr: relax.Expr) -> relax.Expr:
        while isinstance(expr, ir.Var) and expr in self._values:
            expr = self._values[expr]
        return expr

    def _is_only_for_kernels(self, alloc: ir.Var) -> bool:
        """Whether only kernels of the module get it: others may want aligned memory."""
        if not isinstance(alloc.ty.shape, relax.ShapeExpr):
            return False
        aliases = {alloc}
        for binding in self._bindings:
            if not aliases.intersection(_variables(binding.value)):
                continue
            value = binding.value
            if isinstance(value, ir.Call) and value.op != _RESHAPE:
                if not isinstance(value.op, ir.GlobalVar):
                    return False
            elif isinstance(value, (relax.If, relax.SeqExpr)):
                return False
            else:
                aliases.add(binding.var)
        return True


def _variables(value: Any) -> Sequence[ir.Var]:
    return relax.analysis.free_vars(value)


def _count(ty: ir.Type) -> int:
    return sum(map(_count, ty.fields)) if isinstance(ty, relax.TupleType) else 1
