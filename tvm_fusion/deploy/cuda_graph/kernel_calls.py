"""A function that launches kernels and nothing else: their calls, and where tensors come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
from tvm import ir, relax, tirx

from ...schedule.stage.launches import launches

CALL_TIR = ir.Op.get("relax.call_tir")
_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
_RESHAPE = ir.Op.get("relax.reshape")
_VIEWS = (ir.Var, ir.Tuple, ir.TupleGetItem, ir.GenericConst, ir.Call)


@dataclass
class KernelCalls:
    """What a function does that launches kernels and nothing else.

    Attributes
    ----------
    kernels : dict of Var to int
        Launches of the ``call_tir`` that binds a variable.
    values : dict of Var to Expr
        By variable, in order.
    """

    kernels: dict[ir.Var, int] = field(default_factory=dict)
    values: dict[ir.Var, relax.Expr] = field(default_factory=dict)

    @classmethod
    def of(cls, mod: tvm.IRModule, func: relax.Function) -> KernelCalls | None:
        """Read a function; ``None`` if something else is in it, or a shape is not known."""
        if len(func.body.blocks) != 1 or not all(_is_static(p.ty) for p in func.params):
            return None
        found = cls()
        for binding in func.body.blocks[0].bindings:
            value = binding.value
            if not isinstance(binding, relax.VarBinding) or not _is_static(binding.var.ty):
                return None
            if isinstance(value, ir.Call) and value.op != _RESHAPE:
                callee = mod[value.args[0]] if value.op in (CALL_TIR, _IN_PLACE) else None
                if not isinstance(callee, tirx.PrimFunc) or len(value.args) != 2:
                    return None
                found.kernels[binding.var] = launches(callee)
            elif not isinstance(value, _VIEWS):
                return None
            found.values[binding.var] = value
        return found

    def origin(self, expr: relax.Expr) -> relax.Expr:
        """Follow views to the variable of their kernel, to a parameter or to a constant."""
        while True:
            if isinstance(expr, ir.TupleGetItem):
                whole = self.origin(expr.tuple_value)
                expr = whole.fields[expr.index] if isinstance(whole, ir.Tuple) else whole
            if isinstance(expr, ir.Call):
                expr = expr.args[0]
            if expr not in self.values or expr in self.kernels:
                return expr
            expr = self.values[expr]

    def origins(self, kernel: ir.Var) -> list[relax.Expr]:
        """List where the arguments of a kernel are from."""
        return [self.origin(arg) for arg in self.values[kernel].args[1].fields]

    def is_written(self, origin: relax.Expr) -> bool:
        """Whether a tensor is a kernel's, in memory that is not a caller's."""
        return origin in self.kernels and self.values[origin].op != _IN_PLACE

    def leaves(self, expr: relax.Expr) -> list[relax.Expr]:
        """List the tensors of a result, as variables where they have some."""
        whole = self.values.get(expr, expr) if isinstance(expr, ir.Var) else expr
        if isinstance(whole, ir.Tuple):
            return [leaf for item in whole.fields for leaf in self.leaves(item)]
        if isinstance(expr.ty, relax.TupleType):
            fields = [relax.TupleGetItem(expr, i) for i in range(len(expr.ty.fields))]
            return [leaf for item in fields for leaf in self.leaves(item)]
        return [expr]

    def ordered(self, kernels: Sequence[ir.Var]) -> list[ir.Var]:
        """Order all variables as the kernels are, the others as soon as they are known."""
        others = [var for var in self.values if var not in self.kernels]
        found: dict[ir.Var, None] = {}
        for kernel in (None, *kernels):
            if kernel is not None:
                found[kernel] = None
            for var in others:
                used = relax.analysis.free_vars(self.values[var])
                if all(v in found or v not in self.values for v in used):
                    found.setdefault(var)
        return list(found)


def _is_static(ty: ir.Type) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(_is_static(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    return all(isinstance(extent, tirx.IntImm) for extent in ty.shape.values)
