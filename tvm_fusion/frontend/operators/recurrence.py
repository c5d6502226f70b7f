"""Recurrent layers in Relax: one GEMM projects the inputs of all steps, one call_tir runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax, tirx

from ...core.recurrent.buffers import declared
from ...core.recurrent.cell import Recurrence
from ...core.recurrent.reference import reference
from ..tensor_types import dtype_of

op = relax.op


def project(builder: Any, x: Any, weights: Any, bias: Any | None) -> Any:
    """Multiply the inputs of all steps by the weights of all directions and gates.

    Parameters
    ----------
    x : Expr
        Two axes of time and batch, and one of features.
    weights : Expr
        Directions, gates times units, features.
    """
    d, rows, features = (int(extent) for extent in weights.ty.shape)
    flat = builder.emit(op.reshape(weights, [d * rows, features]))
    projected = op.matmul(x, builder.emit(op.permute_dims(flat, [1, 0])))
    if bias is not None:
        projected = op.add(builder.emit(projected), builder.emit(op.reshape(bias, [d * rows])))
    return builder.emit(projected)


def run(builder: Any, layer: Recurrence, operands: Mapping[str, Any]) -> list[Any]:
    """Emit the recurrence.

    Parameters
    ----------
    operands : mapping of str to Expr
        By :attr:`Recurrence.operands`.

    Returns
    -------
    list of Var
        By :attr:`Recurrence.results`.
    """
    projected, weights = operands["projected"], operands["weights"]
    extents = dict(zip(layer.input_axes, projected.ty.shape, strict=False))
    hidden, dtype = int(weights.ty.shape[2]), dtype_of(projected)

    def own(axis: str) -> Any:
        extent = extents[axis]
        return extent if isinstance(extent, tirx.IntImm) else tirx.Var(axis, "int64")

    func = reference(layer, declared(layer, own("T"), own("B"), hidden, dtype))
    types = declared(layer, extents["T"], extents["B"], hidden, dtype)
    out = [relax.TensorType(list(types.buffers[n].shape), dtype) for n in layer.results]
    gvar = builder.add_func(func, layer.cell)
    call = op.call_tir(gvar, relax.Tuple([operands[n] for n in layer.operands]), out)
    result = builder.emit(call)
    return [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(out))]
