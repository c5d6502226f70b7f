"""Write kernels with loops and local variables, for what is no map, reduction or scan.

    for each task, in parallel:
        body(task)          # any loops, over buffers in global memory and local variables

Such a kernel is not fused with others; the fallback schedules its tasks over threads.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from .expressions import substitute


class Local:
    """A variable of a kernel's task."""

    def __init__(self, dtype: str, value: Any):
        # Of one element TVMScript would print assignments that it does not read back.
        self._buffer = script.sblock_alloc_buffer((2,), dtype, scope="local", layout=None)
        self.dtype = dtype
        self.set(value)

    def set(self, value: Any) -> None:
        """Assign."""
        script.buffer_store(self._buffer, as_expr(value, self.dtype), [0])

    @property
    def value(self) -> Any:
        """The current value, read where the expression stands."""
        return self._buffer[0]


def as_expr(value: Any, dtype: str) -> Any:
    """Make an expression of a number."""
    return tirx.const(value, dtype) if isinstance(value, bool | int | float) else value


def store(buffer: Any, index: Sequence[Any], value: Any) -> None:
    """Write an element."""
    script.buffer_store(buffer, as_expr(value, str(buffer.dtype)), list(index))


def loop(start: Any, end: Any) -> AbstractContextManager[Any]:
    """Open a serial loop from ``start`` up to ``end``, which gives its variable."""
    return script.serial(as_expr(start, "int64"), as_expr(end, "int64"))


def repeat_while(condition: Any) -> AbstractContextManager[Any]:
    """Open a loop that ends when a condition no longer holds."""
    return script.While(condition)


class when:
    """Open what is done where a condition holds."""

    def __init__(self, condition: Any):
        self._frames = (script.If(condition), script.Then())

    def __enter__(self) -> None:
        for frame in self._frames:
            frame.__enter__()

    def __exit__(self, *exception: Any) -> None:
        for frame in reversed(self._frames):
            frame.__exit__(*exception)


class Extents:
    """Extents over variables of a kernel's own, which are read from its buffers' shapes."""

    def __init__(self) -> None:
        self.variables: dict[Any, tirx.Var] = {}

    def of(self, extents: Sequence[Any]) -> list[Any]:
        """Write extents over the kernel's variables; numbers stay."""
        return [int(e) if isinstance(e, int | tirx.IntImm) else self._own(e) for e in extents]

    def _own(self, extent: Any) -> Any:
        for var in tirx.analysis.undefined_vars(extent):
            self.variables.setdefault(var, tirx.Var(var.name, "int64"))
        return substitute(extent, self.variables)


def task_kernel(
    name: str,
    tasks: Sequence[Any],
    inputs: Sequence[tuple[Sequence[Any], str]],
    outputs: Sequence[tuple[Sequence[Any], str]],
    body: Callable[..., None],
) -> tirx.PrimFunc:
    """Write the kernel.

    Parameters
    ----------
    tasks : sequence of int or tirx.PrimExpr
        Extents of the tasks that run in parallel; of none there is one task.
    inputs, outputs : sequence of (shape, dtype)
        Buffers that tasks read, and that they write, each element by one task.
    body
        Called with the task's indices, then the buffers; writes a task.
    """
    # A buffer without axes, or without elements, is none to most of TVM's passes.
    with IRBuilder() as builder, script.prim_func(is_private=True, s_tir=True):
        script.func_name(name)
        script.func_attr({"tir.noalias": True})
        buffers = [
            script.arg(f"b{i}", script.buffer(tuple(shape), dtype, layout=None))
            for i, (shape, dtype) in enumerate([*inputs, *outputs])
        ]
        extents = [as_expr(e, "int64") for e in tasks] or [tirx.IntImm("int64", 1)]
        with script.grid(*extents) as loops:
            loops = [loops] if isinstance(loops, tirx.Var) else list(loops)
            with script.sblock(name):
                axes = [script.axis.spatial(e, v) for e, v in zip(extents, loops, strict=True)]
                script.reads(*map(_whole, buffers[: len(inputs)]))
                script.writes(*map(_whole, buffers[len(inputs) :]))
                body(*axes[: len(tasks)], *buffers)
    return builder.get()


def _whole(buffer: Any) -> Any:
    return buffer[tuple(slice(0, extent) for extent in buffer.shape)]
