"""The loop over the tasks of a convolution, whose coordinates are variables with ranges.

for task in parallel:
    image, channels, band = coordinates of task
    body
"""

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ....core.tir.loops import coordinates, product, sequence, tasks
from ....program.stage import Axis
from ...cpu.schedule import PARALLEL_WORK, pays_threads
from ...index.index_ranges import Ranges


def task_loop(
    axes: Sequence[Axis],
    products: Sequence[ir.Expr | int],
    ranges: Ranges,
    body: Callable[[], tirx.Stmt],
    least: int = PARALLEL_WORK,
) -> tirx.For:
    """Write the loop; it is parallel where there is enough work.

    Parameters
    ----------
    axes
        The coordinates of a task, bound in its body.
    products
        Multiply to the products of a task.
    body
        Writes a task, after that.
    least
        Products that are worth a second thread.
    """
    extents = [a.extent for a in axes]

    def task(number: ir.Expr) -> tirx.Stmt:
        for axis in axes:
            ranges.bind(axis.var, axis.extent)
        stmt = body()
        places = coordinates(number, extents)
        for axis, value in reversed(list(zip(axes, places, strict=True))):
            stmt = sequence([tirx.Bind(axis.var, value), stmt])
        return stmt

    return tasks(product(extents), task, pays_threads([*extents, *products], least))


def fresh(axes: Sequence[Axis]) -> list[Axis]:
    """Copy axes with new variables, for the coordinates of a task."""
    return [Axis(ir.Var(a.var.name, a.var.ty), a.extent) for a in axes]
