"""Weights of narrow types along K: the only order in which tensor cores read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target

from ...core.constants.contiguous import contiguous
from ...core.constants.weight_names import derived
from ...core.tir.loops import constant
from ...device import device_of
from ...frontend.normalize.engine import Scope, op_name, rewrite
from ...frontend.tensor_types import dtype_of

FEW_ROWS = 8  # of GEMV, which reads weights in any order
# Types of B, by the device's name of what tensor cores multiply.
NARROW = {"float8_e4m3fn": "float8", "float8_e5m2": "float8", "int8": "int8", "uint8": "int8"}


@tvm.transform.module_pass(opt_level=0, name="TransposeNarrowWeights")
class TransposeNarrowWeights:
    """``x W = x transpose(W')``, with a constant ``W' = transpose(W)`` that is contiguous along K.

    ``wgmma`` reads operands of half types in any order, those of float8, int8 and tfloat32 along K
    alone, as ``ldmatrix`` does. The transposition is an index of the kernel.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function, for a target whose tensor cores want it."""
        target = Target.current()
        if target is None or target.kind.name != "cuda":
            return mod
        device = device_of(target)
        wanted = {name for name, dtype in NARROW.items() if device.has_matrix("mma.sync", dtype)}
        if device.rounds_to_tf32:
            wanted.add("float32")

        def product(value: Any, scope: Scope) -> Any:
            return _product(value, scope, wanted)

        return rewrite(mod, product) if wanted else mod


def _product(value: Any, scope: Scope, wanted: set[str]) -> Any:
    if op_name(value) != "relax.matmul" or value.args[0].ty.ndim < 2:
        return None
    x, operand = value.args
    casts = []
    while (cast := scope.call(operand, "relax.astype")) is not None:
        casts.append(dtype_of(cast))
        operand = cast.args[0]
    weight = scope.value(operand)
    if not isinstance(weight, GenericConst) or dtype_of(weight) not in wanted:
        return None
    rows = constant(x.ty.shape[-2]) if x.ty.shape is not None else None
    if weight.ty.ndim < 2 or (rows is not None and rows <= FEW_ROWS):
        return None
    stored = derived(_transposed([weight]), "permute_dims", [weight], _transposed)
    order = [*range(weight.ty.ndim - 2), weight.ty.ndim - 1, weight.ty.ndim - 2]
    made = scope.emit(relax.op.permute_dims(stored, order))
    for dtype in reversed(casts):
        made = scope.emit(relax.op.astype(made, dtype))
    return relax.op.matmul(x, made, out_dtype=value.attrs.out_dtype)


def _transposed(weights: Sequence[GenericConst]) -> GenericConst:
    (weight,) = weights
    return relax.const(contiguous(weight.value.numpy().swapaxes(-1, -2)), dtype_of(weight))
