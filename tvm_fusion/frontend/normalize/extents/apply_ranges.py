"""Simplify extents and slices by the ranges of symbolic dimensions."""

from collections.abc import Iterable
from typing import Any

from tvm import ir, relax, sym, tirx

from ..engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ApplyRanges(value: Any, scope: Scope) -> Any:
    """``table[:n]`` of 512 rows has ``n`` rows, not ``min(n, 512)``, where ``n`` is at most 512.

    The ranges are those of the function's ``tir_var_upper_bound`` and ``tir_var_lower_bound``.
    Slices are marked as inbound, and shapes are simplified; what follows can then be broadcast
    against other tensors of ``n`` rows.
    """
    if not isinstance(value, relax.Call) or not _ranges(scope, "upper"):
        return None
    if op_name(value) == "relax.strided_slice":
        return _inbound(value, scope)
    args = [_simplified(arg, scope) for arg in value.args]
    if all(new is old for new, old in zip(args, value.args, strict=True)):
        return None
    return relax.Call(value.op, args, value.attrs, value.ty_args)


def _simplified(arg: Any, scope: Scope) -> Any:
    if not isinstance(arg, relax.ShapeExpr):
        return arg
    if all(isinstance(extent, ir.Var | tirx.IntImm) for extent in arg.values):
        return arg
    analyzer = ranged_analyzer(arg.values, scope)
    extents = [analyzer.simplify(extent) for extent in arg.values]
    is_same = all(new.same_as(old) for new, old in zip(extents, arg.values, strict=True))
    return arg if is_same else relax.ShapeExpr(extents)


def _inbound(value: relax.Call, scope: Scope) -> Any:
    """Mark a slice whose begin and end are proved to be within the tensor."""
    data, *lists = value.args
    if value.attrs.assume_inbound or not all(isinstance(part, relax.Tuple) for part in lists):
        return None
    axes, begins, ends, *strides = [list(part.fields) for part in lists]
    shape = data.ty.shape
    is_plain = all(isinstance(s, tirx.IntImm) and int(s) > 0 for part in strides for s in part)
    is_static = all(isinstance(axis, tirx.IntImm) for axis in axes)
    if not isinstance(shape, relax.ShapeExpr) or not is_plain or not is_static:
        return None
    bounds = [*begins, *ends]
    if all(isinstance(bound, tirx.IntImm) for bound in bounds):
        return None
    analyzer = ranged_analyzer([*bounds, *shape.values], scope)
    for axis, begin, end in zip(axes, begins, ends, strict=True):
        within = (begin >= 0, begin <= end, end <= shape.values[int(axis)])
        if not all(analyzer.can_prove(condition) for condition in within):
            return None
    return relax.op.strided_slice(data, axes, begins, ends, *strides, assume_inbound=True)


def ranged_analyzer(exprs: Iterable[Any], scope: Scope) -> sym.Analyzer:
    """Make an analyzer that knows the ranges of the variables in some expressions."""
    highs, lows = _ranges(scope, "upper"), _ranges(scope, "lower")
    analyzer = sym.Analyzer()
    for var in {v for expr in exprs for v in tirx.analysis.undefined_vars(expr)}:
        if var.name in highs:
            low = lows.get(var.name, 1)
            size = tirx.IntImm("int64", highs[var.name] - low + 1)
            analyzer.bind(var, ir.Range.from_min_extent(tirx.IntImm("int64", low), size))
    return analyzer


def _ranges(scope: Scope, end: str) -> dict[str, int]:
    found = (scope.func.attrs or {}).get(f"tir_var_{end}_bound", {})
    return {str(name): int(limit) for name, limit in found.items()}
