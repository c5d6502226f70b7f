"""Rows of a product in groups of lengths known at run time, each with a matrix B of its own.

C[m, n] = sum over k of A[m, k] * B[group of m, k, n]      mixtures of experts, sorted by expert
"""

from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from ....core.tir.expressions import choice, load, loads, variables
from ....core.tir.loops import constant, index
from ....core.tir.ragged import is_of_group
from ....program.stage import Axis
from .sum_of_products import SumOfProducts

LEAST_GROUPS = 2  # an axis of extent 1 is none to GEMMs


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """The groups of a product's rows."""

    offsets: ir.Var  # where groups end: integers
    # The groups, and the rows of all of them and behind the last.
    groups: Axis
    rows: Axis

    def row_behind(self, group: ir.Expr) -> ir.Expr:
        """Return the end of the rows of a group that exists."""
        offset = tirx.Cast("int64", load(self.offsets, [group]))
        return tirx.min(tirx.max(offset, index(0)), index(self.rows.extent))


def ragged_rows(contraction: SumOfProducts) -> tuple[SumOfProducts, RaggedRows] | None:
    """Read a sum over groups, each with products of its own rows, as one product of ragged rows.

    Parameters
    ----------
    contraction
        Of which one operand is zero but for rows of a group (:mod:`....core.tir.ragged`).

    Returns
    -------
    (SumOfProducts, RaggedRows) or None
        The product of a row's own group, which is a free variable of B; ``None`` if groups are no
        part of the sum.
    """
    for name, other in (("left", "right"), ("right", "left")):
        operand = getattr(contraction, name)
        found = _of_groups(contraction, operand)
        if found is None:
            continue
        rows, inner = found
        stage = contraction.stage
        group = rows.groups.var
        if group in variables(inner) or group not in variables(getattr(contraction, other)):
            return None
        reduce = tuple(a for a in stage.reduce if a is not rows.groups)
        product = replace(contraction, **{name: inner})
        own = load(stage.targets[0], stage.indices[0])
        values = (own + (product.left * product.right).astype(contraction.dtype),)
        return replace(product, stage=replace(stage, reduce=reduce, values=values)), rows
    return None


def _of_groups(contraction: SumOfProducts, operand: ir.Expr) -> tuple[RaggedRows, ir.Expr] | None:
    """Find the groups whose rows alone an operand has, and what it is there."""
    dtypes = []
    while isinstance(operand, tirx.Cast):
        dtypes.append(str(operand.ty.dtype))
        operand = operand.value
    chosen = choice(operand)
    if chosen is None:
        return None
    condition, inner, zero = chosen
    if not isinstance(zero, tirx.FloatImm | tirx.IntImm) or float(zero.value) != 0:
        return None
    for offset in loads(condition):
        for groups in contraction.stage.reduce:
            if len(offset.indices) != 1 or not offset.indices[0].same_as(groups.var):
                continue
            if (constant(groups.extent) or 0) < LEAST_GROUPS:
                continue
            for rows in contraction.stage.axes:
                expected = is_of_group(_Offsets(offset.source), groups.var, rows.var)
                if not _is_same(condition, expected, groups):
                    continue
                for dtype in reversed(dtypes):
                    inner = tirx.Cast(dtype, inner)
                return RaggedRows(offset.source, groups, rows), inner
    return None


class _Offsets:
    """Offsets, indexed as TE's tensors are."""

    def __init__(self, buffer: ir.Var) -> None:
        self._buffer = buffer

    def __getitem__(self, group: ir.Expr) -> ir.Expr:
        return load(self._buffer, [group])


def _is_same(condition: ir.Expr, expected: ir.Expr, groups: Axis) -> bool:
    """Compare two conditions of positive groups, simplified."""
    analyzer = sym.Analyzer()
    analyzer.bind(groups.var, ir.Range.from_min_extent(index(0), index(groups.extent)))
    found = [analyzer.simplify(x) for x in (condition, expected)]
    return bool(tvm_ffi.structural_equal(*found))
