"""Emit kernels of tasks with loops and local variables (:mod:`tvm_fusion.core.task_kernel`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.script.ir_builder import tirx as script

from ...core.task_kernel import Extents, store, task_kernel
from ..registry import Unsupported
from ..tensor_types import dtype_of
from .call import Call


def _check(own: Extents, types: Sequence[tuple[list[Any], str]]) -> None:
    """Refuse a variable that no buffer has as an extent: nothing tells its value."""
    told = [e for shape, _ in types for e in shape]
    for var in own.variables.values():
        if not any(var.same_as(e) for e in told):
            raise Unsupported("on a symbolic extent", "give the dimension a fixed extent")


def emit_kernel(
    call: Call,
    name: str,
    tasks: Sequence[int],
    inputs: Sequence[Any],
    outputs: Sequence[tuple[Sequence[int], str]],
    body: Callable[..., None],
) -> list[Any]:
    """Emit a kernel.

    Symbolic extents are variables of its own, read from its buffers' shapes: where a body asks for
    an extent, it asks a buffer.

    Parameters
    ----------
    call : Call
        The operator that it computes.
    name : str
        Of the function in TensorIR.
    tasks : sequence of int or tirx.PrimExpr
        Extents of the tasks that run in parallel.
    inputs : sequence of relax.Expr
        Tensors to read.
    outputs : sequence of (shape, dtype)
        Tensors that the tasks write, each element of them by one task.
    body : callable
        Called with the task's indices, then the buffers of inputs and outputs; writes a task by
        :func:`store`, :func:`loop`, :func:`when` and :class:`Local`.

    Returns
    -------
    list of relax.Expr
        The outputs.
    """
    own = Extents()
    types = [(own.of(x.ty.shape), dtype_of(x)) for x in inputs]
    written = [(own.of(shape), dtype) for shape, dtype in outputs]
    _check(own, types)
    func = task_kernel(name, own.of(tasks), types, written, body)
    gvar = call.importer.block_builder.add_func(func, name)
    made = [relax.TensorType(list(shape), dtype) for shape, dtype in outputs]
    result = call.emit(
        relax.call_tir(gvar, list(inputs), out_ty=made if len(made) > 1 else made[0])
    )
    return [call.emit(result[i]) for i in range(len(made))] if len(made) > 1 else [result]


def emit_map(
    call: Call,
    name: str,
    tensors: Sequence[Any],
    dtype: str,
    body: Callable[..., Any],
) -> Any:
    """Emit a map whose elements are found by loops.

    Parameters
    ----------
    tensors : sequence of relax.Expr
        Operands, which are broadcast to the result's shape.
    dtype : str
        Of the result.
    body : callable
        From the operands' elements to the result's; it may open loops.
    """
    from .call import static

    shape = static(call.out.shape)
    size = math.prod(shape)
    if size == 0:
        return relax.op.zeros(shape, dtype)
    flat = [
        call.emit(relax.op.reshape(call.emit(relax.op.broadcast_to(x, shape)), [size]))
        for x in tensors
    ]

    def task(i: Any, *buffers: Any) -> None:
        *read, written = buffers
        elements = [script.bind(buffer[i]) for buffer in read]
        store(written, [i], body(*elements))

    (result,) = emit_kernel(call, name, [size], flat, [([size], dtype)], task)
    return call.emit(relax.op.reshape(result, shape))
