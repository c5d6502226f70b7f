"""Batches of matrices as kernels take them, and loops that several kernels share."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx

from .....core.decisions import Decision, record
from .....core.tir.loops import index
from .....core.tir.task_kernel import Local, loop, store, when
from ....tensor_types import dtype_of
from ...call import Call, static
from ...kernel import emit_kernel

op = relax.op


class Batch:
    """The batch axes of a call's matrices, taken as one."""

    def __init__(self, call: Call, shape: Sequence[int]):
        self.call, self.shape = call, static(shape)
        self.count = math.prod(self.shape)

    def flat(self, x: Any, *matrix: int) -> Any:
        """Broadcast a tensor over the batch and flatten its batch axes."""
        if 0 in (self.count, *matrix):
            return self.call.emit(op.zeros([self.count, *matrix], dtype_of(x)))
        whole = self.call.emit(op.broadcast_to(x, [*self.shape, *matrix]))
        return self.call.emit(op.reshape(whole, [self.count, *matrix]))

    def emit(
        self,
        name: str,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[Sequence[int], str]],
        body: Callable[..., None],
    ) -> list[Any]:
        """Emit a kernel with a task for each matrix; outputs get their batch axes back."""
        call, made = self.call, [([self.count, *shape], dtype) for shape, dtype in outputs]
        if any(0 in shape for shape, _ in made):
            return [call.emit(op.zeros([*self.shape, *s], dtype)) for s, dtype in outputs]
        results = emit_kernel(call, name, [self.count], inputs, made, body)
        return [
            call.emit(op.reshape(result, [*self.shape, *shape]))
            for result, (shape, _) in zip(results, outputs, strict=True)
        ]


def tell_unchecked(call: Call) -> None:
    """Record that singular matrices raise no error where the result about them is not used."""
    if not call.is_used(len(call.out) - 1):
        name = call.node.target.__name__.split(".")[0]
        sentence = f"{name} does not check its matrices: of singular ones results are not finite."
        record(Decision(call.node.name, "", "refused", "assertion", sentence))


def copy(source: Any, target: Any, b: Any, rows: Any, columns: Any) -> None:
    """Copy a matrix."""
    with loop(0, rows) as i, loop(0, columns) as j:
        store(target, [b, i, j], source[b, i, j])


def swap_rows(matrix: Any, b: Any, one: Any, other: Any, columns: int, dtype: str) -> None:
    """Exchange two rows."""
    with loop(0, columns) as j:
        kept = Local(dtype, matrix[b, one, j])
        store(matrix, [b, one, j], matrix[b, other, j])
        store(matrix, [b, other, j], kept.value)


def triangular_solve(
    read: Callable[[Any, Any], Any],
    x: Any,
    b: Any,
    n: int,
    columns: int,
    dtype: str,
    *,
    is_lower: bool,
    is_unit: bool,
) -> None:
    """Solve ``T x = x`` in place.

    Parameters
    ----------
    read
        From row and column to an element of the triangle.
    """
    with loop(0, columns) as j, loop(0, n) as step:
        i = step if is_lower else index(n - 1) - step
        total = Local(dtype, x[b, i, j])
        with loop(0, step) as k:
            place = k if is_lower else index(n - 1) - k
            total.set(total.value - read(i, place) * x[b, place, j])
        store(x, [b, i, j], total.value if is_unit else total.value / read(i, i))


def place_of_largest(matrix: Any, b: Any, column: Any, start: Any, rows: int, dtype: str) -> Local:
    """Find the row of the largest magnitude in a column, from ``start`` on."""
    best, size = Local("int64", start), Local(dtype, tirx.abs(matrix[b, start, column]))
    with loop(0, rows) as i:
        current = tirx.abs(matrix[b, i, column])
        with when(tirx.all(i > start, current > size.value)):
            best.set(i)
            size.set(current)
    return best
