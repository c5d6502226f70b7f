"""What the axes of a contraction are to a tile: its rows, its columns, what runs around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import ir, tirx

from ...fusion.expressions import variables
from ...fusion.program import Axis
from ..address import conditional_loads
from ..loops import constant, index, substitute
from .column_split import Pieces
from .operands import SumOfProducts

NARROW = 4  # columns of which a vector would be mostly empty


@dataclass(frozen=True)
class Roles:
    """A contraction as a batch of matrix products, ``left[rows, reduce] * right[reduce, columns]``.

    Attributes
    ----------
    batch : tuple of Axis
        Axes of both factors.
    rows : tuple of Axis
        Axes of the left factor alone, the elements of which meet whole vectors.
    columns : tuple of Axis
        Axes of the right factor alone; vectors lie along the last of them.
    reduce : tuple of Axis
        What is summed over. Like the others, without axes of one trip.
    left, right : PrimExpr
        The factors.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    left: ir.Expr
    right: ir.Expr


def roles(contraction: SumOfProducts) -> Roles | None:
    """Tell rows from columns; ``None`` where vectors along the last axis meet no single elements.

    Factors with conditions, such as padded images, are none of a plain matrix product either.
    """
    stage = contraction.stage
    wide = [a for a in stage.axes if constant(a.extent) != 1]
    reduce = tuple(a for a in stage.reduce if constant(a.extent) != 1)
    if not wide or not reduce or not isinstance(contraction.term(), tirx.Mul):
        return None
    if any(conditional_loads(f) for f in (contraction.left, contraction.right)):
        return None
    narrow = {a.var: index(0) for a in (*stage.axes, *stage.reduce) if constant(a.extent) == 1}
    column = wide[-1]
    if (constant(column.extent) or NARROW) < NARROW:
        return None
    if constant(column.extent) is None and len(reduce) > 1:
        return None
    factors = [substitute(f, narrow) for f in (contraction.left, contraction.right)]
    having = [f for f in factors if column.var in variables(f)]
    if len(having) != 1:
        return None
    right = having[0]
    left = factors[0] if right is factors[1] else factors[1]
    used = variables(left), variables(right)
    if any(not any(a.var in u for u in used) for a in wide):
        return None

    def pick(in_left: bool, in_right: bool) -> tuple[Axis, ...]:
        wanted = (in_left, in_right)
        return tuple(a for a in wide if (a.var in used[0], a.var in used[1]) == wanted)

    return Roles(pick(True, True), pick(True, False), pick(False, True), reduce, left, right)


def side_by_side(roles: Roles, pieces: Pieces, width: int) -> Roles:
    """Count columns such that ``width`` of each piece follow each other, in panels of all pieces.

    Parameters
    ----------
    roles : Roles
        Of a contraction with pieces.
    pieces : Pieces
        The last column axes are its axes.
    width : int
        Columns of a piece in a panel; a divisor of the piece's.
    """
    panel = pieces.count * width
    column = tirx.Var("column", "int64")
    axis = Axis(column, index(pieces.count * pieces.width))
    place = {
        pieces.piece.var: tirx.floordiv(tirx.floormod(column, index(panel)), index(width)),
        pieces.position.var: tirx.floordiv(column, index(panel)) * width
        + tirx.floormod(column, index(width)),
    }
    outer = [a for a in roles.columns if a not in (pieces.piece, pieces.position)]
    return replace(roles, columns=(*outer, axis), right=substitute(roles.right, place))
