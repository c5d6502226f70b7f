"""Fold constant subexpressions with numpy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ...core.evaluate import evaluate, knows
from ...core.numpy_types import numpy_dtype, result_dtype, result_shape
from ...core.untouched import is_rewritable
from ...core.weight_names import derived
from ..tensor_types import dtype_of
from .engine import Scope, op_name, rewrite

#: A result may be that many bytes larger than the constants that it replaces.
GROWTH_LIMIT = 1 << 20


@tvm.transform.module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """Replace operators on constants by their results.

    Unlike TVM's ``FoldConstant`` nothing is compiled. A result that is more than a mebibyte larger
    than the constants that it does away with stays an operator: a broadcast of a scalar must not
    become a large constant, nor a tied embedding be stored twice. So does a cast of a tensor of
    float8, which tensor cores multiply as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fold in every rewritable function."""
        readers = _readers(mod)
        folded: dict[tuple, GenericConst] = {}

        def fold(value: Any, _scope: Scope) -> Any:
            if op_name(value) == "relax.shape_of":
                return value.args[0].ty.shape  # None, or a ShapeExpr if the rank is known
            if not knows(op_name(value)) or not _all_constant(value) or _widens_float8(value):
                return None
            key = _key(value)
            if key in folded:
                return folded[key]
            sources = list(_constants(value))
            freed = sum(_nbytes(c) for c in sources if len(readers[hash(c)] | {key}) == 1)
            shape = result_shape(value)
            if shape is None or 0 in shape:  # see ConcatEmpty
                return None
            result_bytes = math.prod(shape) * result_dtype(value).itemsize
            if result_bytes > freed + GROWTH_LIMIT:
                return None
            array = evaluate(value)
            if array is None:
                return None
            how = op_name(value).removeprefix("relax.")
            dtype = dtype_of(value)
            # relax.const copies what it casts, even to the same type.
            data = tvm.runtime.tensor(array) if str(array.dtype) == dtype else array
            del array
            folded[key] = derived(relax.const(data, dtype), how, sources)
            return folded[key]

        return rewrite(mod, fold)


def _widens_float8(call: relax.Call) -> bool:
    """Whether a call casts a matrix of float8."""
    if op_name(call) != "relax.astype":
        return False
    given = call.args[0]
    return dtype_of(given).startswith("float8") and given.ty.ndim > 1


def _readers(mod: tvm.IRModule) -> dict[int, set[tuple]]:
    """Map each constant to the distinct calls that read it."""
    readers: dict[int, set[tuple]] = defaultdict(set)

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            for const in _constants(expr):
                readers[hash(const)].add(_key(expr))

    for func in mod.functions.values():
        if is_rewritable(func):
            relax.analysis.post_order_visit(func, visit)
    return readers


def _key(call: relax.Call) -> tuple:
    """Identify a call: equal keys mean equal results, given constant operands."""
    operands = tuple(
        tuple(map(_leaf_key, arg.fields)) if isinstance(arg, relax.Tuple) else _leaf_key(arg)
        for arg in call.args
    )
    return (op_name(call), operands, str(call.attrs), str(call.ty))


def _leaf_key(arg: Any) -> Any:
    return hash(arg) if isinstance(arg, (GenericConst, relax.Var)) else str(arg)


def _constants(call: relax.Call) -> Iterator[GenericConst]:
    for arg in call.args:
        for leaf in arg.fields if isinstance(arg, relax.Tuple) else [arg]:
            if isinstance(leaf, GenericConst):
                yield leaf


def _all_constant(call: relax.Call) -> bool:
    leaves = [
        leaf
        for arg in call.args
        for leaf in (arg.fields if isinstance(arg, relax.Tuple) else [arg])
    ]
    return not any(isinstance(leaf, (relax.Var, relax.Call)) for leaf in leaves)


def _nbytes(const: GenericConst) -> int:
    tensor = const.value
    return int(np.prod(tensor.shape, dtype=np.int64)) * numpy_dtype(tensor.dtype).itemsize
