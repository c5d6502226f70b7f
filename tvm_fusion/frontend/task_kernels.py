"""Write kernels with loops and local variables, for what is no map, reduction or scan.

    for each task, in parallel:
        body(task)          # any loops, over buffers in global memory and local variables

Such a kernel is not fused with others; the fallback schedules its tasks over threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from ..core.expressions import substitute
from .registry import Unsupported
from .tensor_types import dtype_of


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


class _Extents:
    """Extents over variables of a kernel's own."""

    def __init__(self) -> None:
        self._variables: dict[Any, tirx.Var] = {}

    def of(self, extents: Sequence[Any]) -> list[Any]:
        """Write extents over the kernel's variables; numbers stay."""
        return [int(e) if isinstance(e, int | tirx.IntImm) else self._own(e) for e in extents]

    def _own(self, extent: Any) -> Any:
        for var in tirx.analysis.undefined_vars(extent):
            self._variables.setdefault(var, tirx.Var(var.name, "int64"))
        return substitute(extent, self._variables)

    def check(self, types: Sequence[tuple[list[Any], str]]) -> None:
        """Refuse a variable that no buffer has as an extent: nothing tells its value."""
        told = [e for shape, _ in types for e in shape]
        for var in self._variables.values():
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
    own = _Extents()
    types = [(own.of(x.ty.shape), dtype_of(x)) for x in inputs]
    written = [(own.of(shape), dtype) for shape, dtype in outputs]
    own.check(types)
    # A buffer without axes, or without elements, is none to most of TVM's passes.
    with IRBuilder() as written_by, script.prim_func(is_private=True, s_tir=True):
        script.func_name(name)
        script.func_attr({"tir.noalias": True})
        buffers = [
            script.arg(f"b{i}", script.buffer(tuple(shape), dtype, layout=None))
            for i, (shape, dtype) in enumerate([*types, *written])
        ]
        extents = [as_expr(e, "int64") for e in own.of(tasks)] or [tirx.IntImm("int64", 1)]
        with script.grid(*extents) as loops:
            loops = [loops] if isinstance(loops, tirx.Var) else list(loops)
            with script.sblock(name):
                axes = [script.axis.spatial(e, v) for e, v in zip(extents, loops, strict=True)]
                script.reads(
                    *(b[tuple(slice(0, e) for e in b.shape)] for b in buffers[: len(types)])
                )
                script.writes(
                    *(b[tuple(slice(0, e) for e in b.shape)] for b in buffers[len(types) :])
                )
                body(*axes[: len(tasks)], *buffers)
    gvar = builder.add_func(written_by.get(), name)
    made = [relax.TensorType(list(shape), dtype) for shape, dtype in outputs]
    result = builder.emit(
        relax.call_tir(gvar, list(inputs), out_ty=made if len(made) > 1 else made[0])
    )
    return [builder.emit(result[i]) for i in range(len(made))] if len(made) > 1 else [result]
