"""Eliminate common subexpressions, without hashing all weights where there is none.

TVM's pass compares constants by their elements: 0.45 s for the weights of BERT, per run. Two
bindings can be equal only if they have the same operator, operands and attributes, which is seen
without a look at all elements of a constant.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import GenericConst
from tvm.ir.transform import PassContext

from ..core.untouched import is_rewritable

_SAMPLE = 16  # elements of a constant in the key that finds equal ones


@tvm.transform.module_pass(opt_level=0, name="CommonSubexpr")
class CommonSubexpr:
    """Run TVM's EliminateCommonSubexpr where two bindings may be equal."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Leave a module as it is where all bindings differ."""
        functions = [f for f in mod.functions.values() if is_rewritable(f)]
        if all(map(_all_differ, functions)):
            return mod
        return relax.transform.EliminateCommonSubexpr()(mod)


def _all_differ(func: relax.Function) -> bool:
    """Whether no two bindings look alike; False where a value holds bindings of its own."""
    seen: set[Hashable] = set()
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If | relax.SeqExpr | relax.Function):
                return False
            outline = _outline(value)
            if outline in seen:
                return False
            seen.add(outline)
    return True


def _outline(value: ir.Expr) -> Hashable:
    """Give equal values equal outlines; different ones may have equal outlines, too."""
    if isinstance(value, relax.Call):
        attrs = None if value.attrs is None else tvm_ffi.structural_hash(value.attrs)
        return _operand(value.op), attrs, *map(_operand, value.args)
    if isinstance(value, relax.TupleGetItem):
        return _operand(value.tuple_value), value.index
    return _operand(value)


def _operand(expr: ir.Expr) -> Hashable:
    if isinstance(expr, relax.Var | ir.GlobalVar | ir.Op):
        return hash(expr)
    if isinstance(expr, relax.Tuple):
        return tuple(map(_operand, expr.fields))
    if isinstance(expr, tirx.IntImm | tirx.FloatImm | ir.StringImm):
        return expr.value
    if isinstance(expr, GenericConst):
        return str(expr.ty), _sample(expr)
    return type(expr).__name__


def _sample(const: GenericConst) -> bytes:
    """Read some of a constant's elements; a constant may be a type, too."""
    if not hasattr(const.value, "__dlpack__"):
        return str(const.value).encode()
    try:
        elements = np.from_dlpack(const.value).reshape(-1)
    except (BufferError, RuntimeError):  # types that numpy lacks
        return b""
    return elements[:: elements.size // _SAMPLE + 1].tobytes()
