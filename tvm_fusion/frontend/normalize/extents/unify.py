"""Give an extent that is read from a tensor the name of the extent that it has to equal.

``x[n] + arange(k)``, of a length k that is known only when the model runs, is bound in a shape of n
elements. TVM 0.27's CanonicalizeBindings writes n for k and drops that match_cast, but not in
operands that are numbers (the end of an arange, of a slice): types that are deduced from these have
k again, and the sum no known shape.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ....core.untouched import is_rewritable


@tvm.transform.module_pass(opt_level=0, name="UnifyExtents")
class UnifyExtents:
    """Write one name for extents that a match_cast compares; it is compared where it is read."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite all of our functions."""
        for gvar, func in mod.functions.items():
            if not is_rewritable(func) or not isinstance(func.body, relax.SeqExpr):
                continue
            equal = _equal_extents(func)
            if equal:
                mod = mod.clone()
                mod[gvar] = _substituted(func, equal)
        return mod


def _substituted(func: relax.Function, values: dict[Any, Any]) -> relax.Function:
    return tvm_ffi.structural_map(func, [(ir.Var, lambda var: values.get(var, var))], order="post")


def _equal_extents(func: relax.Function) -> dict[Any, Any]:
    """Find, of variables that a match_cast of a shape defines, those that a tensor names otherwise.

    The other extent is a number, or over variables that are there before.
    """
    signature = (relax.analysis.definable_tir_vars_in_type(p.ty) for p in func.params)
    known = {var for found in signature for var in found}
    read: set[Any] = set()
    equal: dict[Any, Any] = {}
    for block in func.body.blocks:
        for binding in block.bindings:
            if not isinstance(binding, relax.MatchCast):
                continue
            if isinstance(binding.ty, relax.ShapeType):
                read |= {e for e in binding.ty.values or [] if isinstance(e, ir.Var)} - known
                continue
            for own, wanted in _pairs(binding):
                is_known = set(tirx.analysis.undefined_vars(wanted)) <= known
                if isinstance(own, ir.Var) and own in read and own not in equal and is_known:
                    equal[own] = wanted
    return equal


def _pairs(binding: relax.MatchCast) -> list[tuple[Any, Any]]:
    own, wanted = (getattr(ty, "shape", None) for ty in (binding.value.ty, binding.ty))
    if not isinstance(own, relax.ShapeExpr) or not isinstance(wanted, relax.ShapeExpr):
        return []
    return list(zip(own.values, wanted.values, strict=True))
