"""Check extents that the model computes before tensors of them are allocated.

64 bits hold each such number, but not their product: a tensor of 2^40 x 2^40 elements seems to have
none, and kernels would write 2^80. Extents of inputs are those of real arrays.
"""

from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext

from ...core.tir.whole_extents import steps_of

MOST_BYTES = 2.0**50  # of a tensor; more than any memory holds
_TENSOR = ir.Op.get("relax.builtin.alloc_tensor")


@tvm.transform.module_pass(opt_level=0, name="CheckComputedExtents")
class CheckComputedExtents:
    """Let a match_cast fail where a tensor of computed extents has none, or is too large.

    Runs behind the memory plan, which leaves allocations to these tensors.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function."""
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, relax.Function):
                checks = _Checks(func)
                checked = checks.visit_expr(func)
                if checks.has_any:
                    mod.update_func(gvar, checked)
        return mod


@relax.expr_functor.mutator
class _Checks(relax.PyExprMutator):
    """Emit checks in front of allocations, once for each shape of a block."""

    def __init__(self, func: relax.Function) -> None:
        super().__init__()
        steps = steps_of(func)
        self._given = {
            v
            for param in func.params
            for v in getattr(getattr(param.ty, "shape", None), "values", None) or ()
        }
        shapes = [p.ty.values or () for p in func.params if isinstance(p.ty, relax.ShapeType)]
        self._given.update(
            v for values in shapes for v in values if isinstance(v, tirx.Var) and v.name in steps
        )
        self._seen: set[Any] = set()
        self.has_any = False

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """Forget what was checked elsewhere, such as in the other branch."""
        outer, self._seen = self._seen, set(self._seen)
        result = super().visit_binding_block_(block)
        self._seen = outer
        return result

    def visit_call_(self, call: ir.Call) -> relax.Expr:
        """Check the shape of an allocation."""
        call = super().visit_call_(call)
        if call.op != _TENSOR:
            return call
        extents = list(call.args[0].values)
        used = {v for extent in extents for v in tirx.analysis.undefined_vars(extent)}
        key = (*map(str, extents), str(call.args[1].value))
        if used <= self._given or key in self._seen:
            return call
        self._seen.add(key)
        self.has_any = True
        kind = tvm.DataType(str(call.args[1].value))
        bytes_: Any = tirx.const((kind.bits * kind.lanes + 7) / 8, "float64")
        conditions: list[Any] = []
        for extent in map(_real, extents):
            conditions.append(extent >= tirx.const(0.0, "float64"))
            bytes_ = bytes_ * tirx.max(extent, tirx.const(1.0, "float64"))
        fits = tirx.all(*conditions, bytes_ <= tirx.const(MOST_BYTES, "float64"))
        # Bound on its own: TVM 0.27 finds no slot for expressions in the value of a MatchCast.
        shape = relax.ShapeExpr(
            [tirx.Select(fits, tirx.IntImm("int64", 1), tirx.IntImm("int64", 0))]
        )
        shape = self.builder_.emit(shape)
        self.builder_.match_cast(shape, relax.ShapeType([tirx.IntImm("int64", 1)]))
        return call


def _real(extent: Any) -> Any:
    """Compute an extent in float64, which does not wrap; quotients are not rounded."""
    if isinstance(extent, tirx.Add):
        return _real(extent.a) + _real(extent.b)
    if isinstance(extent, tirx.Sub):
        return _real(extent.a) - _real(extent.b)
    if isinstance(extent, tirx.Mul):
        return _real(extent.a) * _real(extent.b)
    if isinstance(extent, tirx.FloorDiv):
        return _real(extent.a) / _real(extent.b)
    if isinstance(extent, tirx.Min):
        return tirx.min(_real(extent.a), _real(extent.b))
    if isinstance(extent, tirx.Max):
        return tirx.max(_real(extent.a), _real(extent.b))
    return tirx.Cast("float64", extent)
