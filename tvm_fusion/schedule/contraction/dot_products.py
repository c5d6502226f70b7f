"""Products of narrow elements: instructions that add several neighbouring terms of a lane at once.

AVX512-VNNI multiplies four bytes of each lane of one vector by four of the other and adds them to
an int32; AVX512-BF16 does so with two bfloat16 and a float32. To a tile, such a group of terms is
one term of 32 bits, which is broadcast from the left factor and packed or copied from the right one
like any other element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm
from tvm import ir, tirx
from tvm.target import Target

from ..._tvm_buffer import declare
from ...fusion.expressions import load
from ...fusion.program import Axis
from ..loops import ceildiv, constant, index, loop, sequence, substitute
from ..register_tile import Element
from .operands import SumOfProducts
from .roles import Roles

WORD = 32  # bits of a group of terms, and of a lane of sums
BYTES = ("int8", "uint8")
SIGNS = -0x7F7F7F80  # the sign bits of a word's bytes: 0x80808080
_VNNI = {16: "avx512vnni", 8: "avxvnni"}  # by lanes of a vector


@dataclass(frozen=True)
class DotProduct:
    """An instruction for the groups of a product of bytes.

    The instruction takes unsigned bytes of one factor and signed ones of the other. Where both are
    of a kind, the right one's sign bits are flipped when it is packed or copied: its bytes become
    128 larger, or smaller, and each row of sums starts from as much less, or more, than zero times
    the sum of the left factor's row. All of that is exact, as int32 wraps around.

    Attributes
    ----------
    lanes : int
        Of a vector of sums.
    terms : int
        Of a group.
    left, right : str
        Types of the factors' elements.
    axis : Axis
        The reduction axis that is cut into groups.
    factor : PrimExpr
        The left factor, a term at a time, in the type of the sum.
    """

    lanes: int
    terms: int
    left: str
    right: str
    axis: Axis
    factor: ir.Expr

    @property
    def offset(self) -> int:
        """What to add for every element of a row of the left factor."""
        if self.left != self.right:
            return 0
        return -128 if self.left == "int8" else 128

    def groups(self, roles: Roles) -> Roles:
        """Count groups instead of terms; a group of either factor is a word.

        Terms beyond the last one are zeros of the left factor.
        """
        axis = Axis(tirx.Var("group", "int64"), ceildiv(self.axis.extent, self.terms))
        left = self._word(bare(roles.left), axis.var)
        right = self._word(bare(roles.right), axis.var)
        if self.offset:
            right = tirx.bitwise_xor(right, tirx.const(SIGNS, "int32"))
        return replace(roles, reduce=(*roles.reduce[:-1], axis), left=left, right=right)

    def accumulate(
        self, sums: ir.Var, extent: ir.Expr | int, left: Element, right: Element
    ) -> tirx.Stmt:
        """Add all groups below an extent to a tile; like :func:`register_tile.accumulate`."""
        rows, columns = (int(d) for d in sums.ty.shape)

        def add(i: ir.Expr, k: ir.Expr, start: int) -> tirx.Stmt:
            where = [i, tirx.Ramp(index(start), index(1), self.lanes)]
            word = tirx.Broadcast(left(i, k), self.lanes)
            value = self._add(load(sums, where), word, right(k, where[-1]))
            return tirx.BufferStore(sums, value, where)

        def row(i: ir.Expr, k: ir.Expr) -> tirx.Stmt:
            return sequence([add(i, k, start) for start in range(0, columns, self.lanes)])

        return loop(
            "k", extent, lambda k: loop("i", rows, lambda i: row(i, k), tirx.ForKind.UNROLLED)
        )

    def _add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Add the products of a vector of words; the unsigned operand comes first."""
        count = self.lanes * self.terms
        words = [(self.left, left), (self.right, right)]
        if self.left == "int8":
            words.reverse()
        dtypes = (f"uint8x{count}", f"int8x{count}")
        operands = [tirx.reinterpret(d, w) for d, (_, w) in zip(dtypes, words, strict=True)]
        name = f"llvm.x86.avx512.vpdpbusd.{WORD * self.lanes}"
        return tirx.call_llvm_pure_intrin(f"int32x{self.lanes}", name, sums, *operands)

    def _word(self, factor: ir.Expr, group: ir.Var) -> ir.Expr:
        """Join the terms of a group, the first in the lowest bits."""
        extent = index(self.axis.extent)

        def join(count: int, inside: Callable[[ir.Expr], ir.Expr] | None = None) -> ir.Expr:
            word: ir.Expr | None = None
            for j in range(count):
                term = group * self.terms + j
                part: ir.Expr = substitute(factor, {self.axis.var: term})
                part = tirx.Cast("int32", tirx.reinterpret(f"uint{WORD // self.terms}", part))
                if j:
                    part = tirx.shift_left(part, tirx.const(j * WORD // self.terms, "int32"))
                if inside is not None:
                    part = tirx.if_then_else(inside(term), part, tirx.const(0, "int32"))
                word = part if word is None else tirx.bitwise_or(word, part)
            return tirx.const(0, "int32") if word is None else word

        size = constant(extent)
        whole = join(self.terms)
        if size is not None and size % self.terms == 0:
            return whole
        if size is not None:
            rest = join(size % self.terms)
        else:
            rest = join(self.terms, lambda term: term < extent)
        full = tirx.floordiv(extent, index(self.terms))
        return tirx.if_then_else(group < full, whole, rest)


class RowSums:
    """Where sums start: from a multiple of the sums of the left factor's rows, kept by a task.

    Parameters
    ----------
    dot : DotProduct
        With an offset.
    roles : Roles
        Of the contraction.
    rows : int
        Rows of a task.
    """

    def __init__(self, dot: DotProduct, roles: Roles, rows: int) -> None:
        self._dot, self._reduce, self._rows = dot, (*roles.reduce[:-1], dot.axis), rows
        self.buffer = declare([index(max(rows, 2))], "int32", "row_sums", "local")

    def fill(self, place: Callable[[ir.Expr], dict[ir.Var, ir.Expr]]) -> tirx.Stmt:
        """Sum up the rows; ``place`` tells the axes of a row that exists."""
        buffer, factor = self.buffer, self._dot.factor

        def add(i: ir.Expr, reduced: dict[ir.Var, ir.Expr]) -> tirx.Stmt:
            value = substitute(factor, {**place(i), **reduced}) * self._dot.offset
            return tirx.BufferStore(buffer, load(buffer, [i]) + value, [i])

        def axes(i: ir.Expr, depth: int, reduced: dict[ir.Var, ir.Expr]) -> tirx.Stmt:
            if depth == len(self._reduce):
                return add(i, reduced)
            axis = self._reduce[depth]
            return loop(
                axis.var.name,
                axis.extent,
                lambda k: axes(i, depth + 1, {**reduced, axis.var: k}),
            )

        def row(i: ir.Expr) -> tirx.Stmt:
            zero = tirx.BufferStore(buffer, tirx.const(0, "int32"), [i])
            return sequence([zero, axes(i, 0, {})])

        return loop("i", self._rows, row)


def dot_product(contraction: SumOfProducts, roles: Roles, target: Target) -> DotProduct | None:
    """Choose the target's instruction for a product; ``None`` where it has none."""
    features = {str(f) for f in tvm.get_global_func("target.llvm_get_cpu_features")(target)}
    lanes = next((n for n, feature in _VNNI.items() if feature in features), None)
    left, right = (str(bare(f).ty.dtype) for f in (roles.left, roles.right))
    terms = constant(roles.reduce[-1].extent)
    if lanes is None or contraction.dtype != "int32" or {left, right} - set(BYTES):
        return None
    if terms is not None and terms < WORD // 8:
        return None
    return DotProduct(lanes, WORD // 8, left, right, roles.reduce[-1], roles.left)


def bare(factor: ir.Expr) -> ir.Expr:
    """Take off casts of bytes that keep every value."""
    core = factor
    while isinstance(core, tirx.Cast) and str(core.ty.dtype) in ("int16", "int32"):
        core = core.value
    return core if str(core.ty.dtype) in BYTES else factor
