"""Kernels with loops and variables for PyTorch's operators: :mod:`..operators.task_kernels`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.script.ir_builder import tirx as script

from ...core.tir.task_kernel import store
from ..operators import task_kernels
from .call import Call


def emit_kernel(
    call: Call,
    name: str,
    tasks: Sequence[int],
    inputs: Sequence[Any],
    outputs: Sequence[tuple[Sequence[int], str]],
    body: Callable[..., None],
) -> list[Any]:
    """Emit a kernel where a call's importer is: :func:`..operators.task_kernels.emit_kernel`."""
    return task_kernels.emit_kernel(call.importer.block_builder, name, tasks, inputs, outputs, body)


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
    body
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
