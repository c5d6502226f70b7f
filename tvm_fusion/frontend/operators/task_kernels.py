"""Emit kernels of tasks with loops and local variables (:mod:`tvm_fusion.core.tir.task_kernel`)."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ...core.tir.task_kernel import Extents, task_kernel
from ..registry import Unsupported
from ..tensor_types import dtype_of


def _check(own: Extents, types: Sequence[tuple[list[Any], str]]) -> None:
    """Refuse a variable that no buffer has as an extent: nothing tells its value."""
    told = [e for shape, _ in types for e in shape]
    for var in own.variables.values():
        if not any(var.same_as(e) for e in told):
            raise Unsupported("on a symbolic extent", "give the dimension a fixed extent")


def emit_kernel(
    builder: Any,
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
    builder : tvm.relax.BlockBuilder
        Where the call is emitted.
    name
        Of the function in TensorIR.
    tasks : sequence of int or tirx.PrimExpr
        Extents of the tasks that run in parallel.
    outputs : sequence of (shape, dtype)
        Tensors that the tasks write, each element of them by one task.
    body
        Called with the task's indices, then the buffers of inputs and outputs; writes a task by
        what :mod:`tvm_fusion.core.tir.task_kernel` has.

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
    gvar = builder.add_func(func, name)
    made = [relax.TensorType(list(shape), dtype) for shape, dtype in outputs]
    result = builder.emit(
        relax.call_tir(gvar, list(inputs), out_ty=made if len(made) > 1 else made[0])
    )
    return [builder.emit(result[i]) for i in range(len(made))] if len(made) > 1 else [result]
