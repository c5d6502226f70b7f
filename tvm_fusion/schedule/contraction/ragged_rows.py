"""Rows of a product in groups of lengths known at run time, each with a matrix B of its own.

C[m, n] = sum over k of A[m, k] * B[group of m, k, n]      mixtures of experts, sorted by expert

A tile has rows of one group, from its first on. Each thread finds them among the offsets:
  left, start = tile, 0
  for group, end in offsets:
    count = ceil((end - start) / block_m)
    if 0 <= left < count:  first = start + left * block_m;  found group, first, end
    left -= count;  start = end
Rows behind the last offset are a group more, without products: their sums are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from ...core.expressions import choice, load, loads, variables
from ...core.loops import index, local, loop, sequence, simplified
from ...core.ragged import is_of_group
from ...program.stage import Axis
from .operands import SumOfProducts

TOTAL, LEFT, START, GROUP, FIRST, END = range(6)  # registers


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """The groups of a product's rows.

    Attributes
    ----------
    offsets : Var
        Where groups end: integers.
    groups, rows : Axis
        The groups, and the rows of all of them and behind the last.
    registers : Var
        Of a thread: what it found.
    """

    offsets: ir.Var
    groups: Axis
    rows: Axis
    registers: ir.Var

    def most_tiles(self, block_m: int) -> ir.Expr:
        """Bound the tiles of rows: each group has one at most that is not full."""
        rest = (index(self.groups.extent) + 1) * (block_m - 1)
        return simplified(tirx.floordiv(index(self.rows.extent) + rest, index(block_m)))

    @property
    def tiles(self) -> ir.Expr:
        """The tiles of rows that :meth:`count` counted."""
        return tirx.Cast("int64", self._at(TOTAL))

    @property
    def group(self) -> ir.Expr:
        """The group of the tile that was found."""
        return tirx.Cast("int64", self._at(GROUP))

    @property
    def first(self) -> ir.Expr:
        """The first row of the tile."""
        return tirx.Cast("int64", self._at(FIRST))

    @property
    def end(self) -> ir.Expr:
        """The row behind the last one of the group."""
        return tirx.Cast("int64", self._at(END))

    @property
    def is_tile(self) -> ir.Expr:
        """Whether there is a tile: of numbers beyond the last there is none."""
        return self._at(FIRST) < self._rows

    @property
    def has_products(self) -> ir.Expr:
        """Whether the tile's rows are of a group, and not behind the last."""
        return self.group < index(self.groups.extent)

    @property
    def copied_first(self) -> ir.Expr:
        """The first row that TMA copies: for rows of no group zeros, from behind all rows."""
        return tirx.Select(self.has_products, self.first, index(self.rows.extent))

    def count(self, block_m: int) -> tirx.Stmt:
        """Count the tiles of rows."""
        own = self._at(TOTAL)

        def each(_: ir.Expr, count: ir.Expr, __: ir.Expr) -> list[tirx.Stmt]:
            return [self._set(TOTAL, own + count)]

        rest = _tiles(self._rows - self._at(START), block_m)
        stmts = [self._set(TOTAL, 0), self._over(block_m, each), self._set(TOTAL, own + rest)]
        return sequence(stmts)

    def find(self, tile: ir.Expr, block_m: int) -> tirx.Stmt:
        """Find the group of a tile, and its rows."""
        left = self._at(LEFT)
        first = self._at(START) + left * block_m

        def where(is_own: ir.Expr, group: ir.Expr, end: ir.Expr) -> list[tirx.Stmt]:
            found = {GROUP: tirx.Cast("int32", group), FIRST: first, END: end}
            return [self._set(n, tirx.Select(is_own, x, self._at(n))) for n, x in found.items()]

        def each(group: ir.Expr, count: ir.Expr, end: ir.Expr) -> list[tirx.Stmt]:
            is_own = tirx.all(left >= 0, left < count)
            return [*where(is_own, group, end), self._set(LEFT, left - count)]

        return sequence(
            [
                *(self._set(n, 0) for n in (GROUP, FIRST, END)),
                self._set(LEFT, tirx.Cast("int32", tile)),
                self._over(block_m, each),
                *where(left >= 0, index(self.groups.extent), self._rows),
            ]
        )

    def _over(
        self, block_m: int, body: Callable[[ir.Expr, ir.Expr, ir.Expr], list[tirx.Stmt]]
    ) -> tirx.Stmt:
        """Loop over groups: number, tiles and end; the register START has the first row."""
        start, end = self._at(START), tirx.Var("end", "int32")

        def one(group: ir.Expr) -> tirx.Stmt:
            offset = tirx.Cast("int32", load(self.offsets, [group]))
            bound = tirx.min(tirx.max(offset, start), self._rows)
            stmts = body(group, _tiles(end - start, block_m), end)
            return sequence([tirx.Bind(end, bound), *stmts, self._set(START, end)])

        return sequence([self._set(START, 0), loop("group", self.groups.extent, one)])

    @property
    def _rows(self) -> ir.Expr:
        return tirx.Cast("int32", index(self.rows.extent))

    def _at(self, register: int) -> ir.Expr:
        return load(self.registers, [index(register)])

    def _set(self, register: int, value: ir.Expr | int) -> tirx.Stmt:
        value = tirx.const(value, "int32") if isinstance(value, int) else value
        value = value if str(value.ty.dtype) == "int32" else tirx.Cast("int32", value)
        return tirx.BufferStore(self.registers, value, [register])


def ragged_rows(contraction: SumOfProducts) -> tuple[SumOfProducts, RaggedRows] | None:
    """Read a sum over groups, each with products of its own rows, as one product of ragged rows.

    Parameters
    ----------
    contraction : SumOfProducts
        Of which one operand is zero but for rows of a group (:mod:`....core.ragged`).

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
            for rows in contraction.stage.axes:
                expected = is_of_group(_Offsets(offset.source), groups.var, rows.var)
                if not _is_same(condition, expected, groups):
                    continue
                for dtype in reversed(dtypes):
                    inner = tirx.Cast(dtype, inner)
                registers = local("rows", [END + 1], "int32")
                return RaggedRows(offset.source, groups, rows, registers), inner
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


def _tiles(rows: ir.Expr, block_m: int) -> ir.Expr:
    return tirx.floordiv(rows + (block_m - 1), tirx.const(block_m, "int32"))
