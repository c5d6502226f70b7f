"""Slices that the ranges of symbolic dimensions keep within their tensors."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, sym, tirx

from .engine import Scope, op_name, rewrite


@tvm.transform.module_pass(opt_level=0, name="AssumeInbound")
class AssumeInbound:
    """``table[:n]`` of 512 rows has ``n`` rows, not ``min(n, 512)``, where ``n`` is at most 512.

    The ranges are those of the function's ``tir_var_upper_bound`` and ``tir_var_lower_bound``. With
    the shorter extent, what follows can be broadcast against other tensors of ``n`` rows.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every function that is ours."""
        return rewrite(mod, _assume)


def _assume(value: Any, scope: Scope) -> Any:
    if op_name(value) != "relax.strided_slice" or value.attrs.assume_inbound:
        return None
    data, *lists = value.args
    if not all(isinstance(part, relax.Tuple) for part in lists):
        return None
    axes, begins, ends, *strides = [list(part.fields) for part in lists]
    shape = data.ty.shape
    is_plain = all(isinstance(s, tirx.IntImm) and int(s) > 0 for part in strides for s in part)
    if not isinstance(shape, relax.ShapeExpr) or not is_plain or not all(map(_is_int, axes)):
        return None
    highs, lows = (
        {str(name): int(limit) for name, limit in (scope.func.attrs or {}).get(key, {}).items()}
        for key in ("tir_var_upper_bound", "tir_var_lower_bound")
    )
    mentioned = {v for e in (*begins, *ends, *shape) for v in tirx.analysis.undefined_vars(e)}
    if not any(var.name in highs for var in mentioned):
        return None
    analyzer = sym.Analyzer()
    for var in mentioned:
        low = lows.get(var.name, 1)
        if var.name in highs:
            extent = tirx.IntImm("int64", highs[var.name] - low + 1)
            analyzer.bind(var, tvm.ir.Range.from_min_extent(tirx.IntImm("int64", low), extent))
    for axis, begin, end in zip(axes, begins, ends, strict=True):
        extent = shape.values[int(axis)]
        within = (begin >= 0, begin <= end, end <= extent)
        if not all(analyzer.can_prove(condition) for condition in within):
            return None
    return relax.op.strided_slice(data, axes, begins, ends, *strides, assume_inbound=True)


def _is_int(axis: Any) -> bool:
    return isinstance(axis, tirx.IntImm)
