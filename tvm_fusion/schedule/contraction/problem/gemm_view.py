"""A contraction viewed as a batch of GEMMs: which of its axes are M, N and K."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ....core.tir.expressions import variables
from ....core.tir.loops import constant, index, product, substitute
from ....program.stage import Axis
from ...index.address import conditional_loads
from .column_split import ColumnSplit
from .sum_of_products import SumOfProducts

LEAST_N = 4  # with fewer columns a vector would be mostly empty


@dataclass(frozen=True)
class GemmView:
    """A contraction as a batch of GEMMs, ``C[m, n] = sum over k of A[m, k] * B[k, n]``."""

    batch: tuple[Axis, ...]  # axes of A, B and C
    m_axes: tuple[Axis, ...]  # axes of A and C; single elements of A are broadcast
    n_axes: tuple[Axis, ...]  # axes of B and C; vectors lie along the last of them
    # The reduction axes. Like the others, without axes of extent 1.
    k_axes: tuple[Axis, ...]
    # The operands.
    a: ir.Expr
    b: ir.Expr


def gemm_view(
    contraction: SumOfProducts, allows_conditions: bool = False, allows_symbolic: bool = False
) -> GemmView | None:
    """View a contraction as GEMMs; ``None`` where the last axis is not one of exactly one operand.

    Operands with conditions, such as padded images, are refused as well unless they are allowed,
    and so are symbolic columns of a window, such as those of images.
    """
    stage = contraction.stage
    wide = [a for a in stage.axes if constant(a.extent) != 1]
    reduce = tuple(a for a in stage.reduce if constant(a.extent) != 1)
    if not wide or not reduce or not isinstance(contraction.term(), tirx.Mul):
        return None
    operands = [contraction.left, contraction.right]
    if not allows_conditions and any(map(conditional_loads, operands)):
        return None
    narrow = {a.var: index(0) for a in (*stage.axes, *stage.reduce) if constant(a.extent) == 1}
    column = wide[-1]
    if (constant(column.extent) or LEAST_N) < LEAST_N:
        return None
    if constant(column.extent) is None and len(reduce) > 1 and not allows_symbolic:
        return None
    operands = [substitute(f, narrow) for f in operands]
    return view_of(wide, reduce, operands)


def view_of(
    axes: Sequence[Axis], k_axes: tuple[Axis, ...], operands: Sequence[ir.Expr]
) -> GemmView | None:
    """Tell M from N: the last axis is one of N, so that B is the operand that has it.

    ``None`` where both operands or none have the last axis, or none has another.
    """
    with_last = [x for x in operands if axes[-1].var in variables(x)]
    if len(with_last) != 1:
        return None
    b = with_last[0]
    a = operands[0] if b is operands[1] else operands[1]
    in_a, in_b = variables(a), variables(b)

    def pick(is_of_a: bool, is_of_b: bool) -> tuple[Axis, ...]:
        wanted = (is_of_a, is_of_b)
        return tuple(x for x in axes if (x.var in in_a, x.var in in_b) == wanted)

    if pick(False, False):
        return None
    return GemmView(pick(True, True), pick(True, False), pick(False, True), k_axes, a, b)


def static_extent(axes: Sequence[Axis]) -> int:
    """Multiply the extents of axes, none of which is symbolic."""
    return int(product([a.extent for a in axes]))


def interleave_parts(view: GemmView, split: ColumnSplit, width: int) -> GemmView:
    """Interleave the parts of a column split: ``width`` columns of each make up a panel.

    Parameters
    ----------
    view
        Of a contraction with a column split.
    split
        The last axes of N are its axes; the axis of its parts may be left out.
    width
        Columns of a part in a panel; if it is no divisor of the part's width, the last panel
        repeats the last column of each part.
    """
    panel = split.count * width
    panels = -(-split.width // width)
    column = tirx.Var("column", "int64")
    axis = Axis(column, index(panel * panels))
    position = tirx.floordiv(column, index(panel)) * width + tirx.floormod(column, index(width))
    if split.width % width:
        position = tirx.min(position, index(split.width - 1))
    place = {
        split.part.var: tirx.floordiv(tirx.floormod(column, index(panel)), index(width)),
        split.position.var: position,
    }
    outer = [a for a in view.n_axes if a not in (split.part, split.position)]
    return replace(view, n_axes=(*outer, axis), b=substitute(view.b, place))
