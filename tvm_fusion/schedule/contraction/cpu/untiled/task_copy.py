"""Padded operands that a task copies for itself: the plane of an image of a depthwise convolution.

for line:  zeros on the left, elements, zeros on the right
lines in the padding: zeros
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import call_name, variables
from .....core.tir.loops import block, constant, find, index, loop, sequence, substitute
from .....program.stage import Axis
from ....cpu.vector_loops import by_vectors
from ...problem.epilogue.cut_axis import cut, cuts_of
from ...problem.functions.prim_func import MaterializedOperand
from ...problem.sum_of_products import SumOfProducts

MOST_BYTES = 1 << 17  # of a copy, which is to stay in the level-2 cache
LEAST_TASKS = 8


@dataclass(frozen=True, eq=False)
class TaskCopy:
    """A materialized operand of which each task computes its own part."""

    # Over the dimensions within a task; its value is over the tasks' axes as well.
    operand: MaterializedOperand

    def fill(self, place: dict[ir.Var, ir.Expr], lanes: int) -> tirx.Stmt:
        """Copy the part of a task.

        Parameters
        ----------
        place
            The task, by the contraction's axes.
        lanes
            Elements of vectors.
        """
        operand = self.operand
        stage = replace(operand.stage, values=(substitute(operand.value, place),))
        last = operand.axes[-1]
        places = cuts_of(stage.values[0], [last]).get(last.var, [])
        *outer, _ = operand.axes

        def line(done: list[ir.Expr]) -> tirx.Stmt:
            if len(done) < len(outer):
                axis = outer[len(done)]
                return loop(axis.var.name, axis.extent, lambda i: line([*done, i]))
            stmts = []
            for part in cut(stage, last, places):
                *before, column = part.axes
                here = dict(zip((a.var for a in before), done, strict=True))
                stmts.append(self._part(part.values[0], part.indices[0], here, column, lanes))
            return sequence(stmts)

        return line([])

    def _part(
        self,
        value: ir.Expr,
        indices: Sequence[ir.Expr],
        here: dict[ir.Var, ir.Expr],
        column: Axis,
        lanes: int,
    ) -> tirx.Stmt:
        """Copy a part of a line, by vectors; what holds for all of it is asked once."""
        if isinstance(value, ir.Call) and call_name(value) == "if_then_else":
            condition, then, otherwise = value.args
            if column.var not in variables(condition):
                both = [self._part(x, indices, here, column, lanes) for x in (then, otherwise)]
                return tirx.IfThenElse(substitute(condition, here), *both)

        def element(i: ir.Expr) -> tirx.Stmt:
            where = {**here, column.var: i}
            at = [substitute(x, where) for x in indices]
            return tirx.BufferStore(self.operand.buffer, substitute(value, where), at)

        def vector(first: ir.Expr, width: int) -> tirx.Stmt:
            kind = tirx.ForKind.VECTORIZED
            return loop("lane", width, lambda lane: element(first + lane), kind)

        return by_vectors(constant(column.extent) or 0, lanes, vector)


def task_copies(
    contraction: SumOfProducts, operands: Sequence[MaterializedOperand]
) -> tuple[int, list[TaskCopy]] | None:
    """Divide a contraction into tasks that copy what they read of padded operands.

    Returns
    -------
    (int, list of TaskCopy) or None
        How many outer axes make the tasks, and the copies. ``None`` where they are too few, or
        tasks would copy elements of each other.
    """
    if not operands:
        return None
    tasks, count = 1, 0
    for axis in contraction.stage.axes[:-1]:
        if tasks >= LEAST_TASKS:
            break
        tasks *= constant(axis.extent) or LEAST_TASKS
        count += 1
    outer = contraction.stage.axes[:count]
    shared = [a.var for a in outer if constant(a.extent) != 1]
    if tasks < LEAST_TASKS:
        return None
    found = [_task_copy(x, shared) for x in operands]
    copies = [x for x in found if x is not None]
    return (count, copies) if len(copies) == len(found) else None


def _task_copy(operand: MaterializedOperand, shared: Sequence[ir.Var]) -> TaskCopy | None:
    pairs = list(zip(operand.axes, operand.place, strict=True))
    outer = {a.var: p for a, p in pairs if any(p.same_as(v) for v in shared)}
    inner = [(a, p) for a, p in pairs if a.var not in outer]
    if not inner or len(outer) < len(shared) or any(variables(p) & set(shared) for _, p in inner):
        return None
    if any(find(p, tirx.FloorMod) for _, p in inner):
        return None  # columns of a stride: vectors would branch at the borders
    shape = [index(a.extent) for a, _ in inner]
    elements = math.prod(constant(d) or MOST_BYTES for d in shape)
    if elements * DataType(str(operand.buffer.ty.dtype)).itemsize > MOST_BYTES:
        return None
    buffer = declare(shape, str(operand.buffer.ty.dtype), operand.buffer.name, "local")
    axes, places = zip(*inner, strict=True)
    value = substitute(operand.value, outer)
    return TaskCopy(replace(operand, buffer=buffer, axes=axes, value=value, place=places))


def in_task(copies: Sequence[TaskCopy], stmt: tirx.Stmt) -> tirx.Stmt:
    """Allocate the buffers of a task's copies."""
    return block("task", stmt, [x.operand.buffer for x in copies])
