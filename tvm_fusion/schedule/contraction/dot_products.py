"""Products of narrow elements: instructions that add several neighbouring terms of a lane at once.

AVX512-VNNI multiplies four bytes of each lane of one vector by four of the other and adds them to
an int32; AVX512-BF16 does so with two bfloat16 and a float32. To a tile, such a group of terms is
one term of 32 bits, which is broadcast from the left factor and packed or copied from the right one
like any other element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm
from tvm import ir, tirx
from tvm.target import Target

from ..._tvm_bf16 import dot_bf16, with_dot_bf16
from ..._tvm_buffer import declare
from ...fusion.expressions import load
from ...fusion.program import Axis
from ..loops import ceildiv, constant, index, loop, sequence, substitute, unrolled
from ..register_tile import Element, VectorUnit, asking
from .gemm_view import Roles
from .operands import SumOfProducts

WORD = 32  # bits of a group of terms, and of a lane of sums
BYTES = ("int8", "uint8")
SIGNS = -0x7F7F7F80  # the sign bits of a word's bytes: 0x80808080
_VNNI = {16: "avx512vnni", 8: "avxvnni"}  # by lanes of a vector


@dataclass(frozen=True)
class DotProduct(ABC):
    """How to add groups of terms.

    Attributes
    ----------
    lanes : int
        Of a vector of sums.
    left, right : str
        Types of the factors' elements.
    axis : Axis
        The reduction axis that is cut into groups.
    factor : PrimExpr
        The left factor, a term at a time, in the type of the sum.
    """

    lanes: int
    left: str
    right: str
    axis: Axis
    factor: ir.Expr

    @property
    def terms(self) -> int:
        """Terms of a group."""
        return WORD // tirx.const(0, self.left).ty.dtype.bits

    @property
    def offset(self) -> int:
        """What to add for every element of a row of the left factor."""
        return 0

    @abstractmethod
    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Add a word of the left factor times a vector of words of the right one to sums."""

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Put around a kernel's body what the instruction needs there."""
        return body

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
        self,
        sums: ir.Var,
        extent: ir.Expr | int,
        left: Element,
        right: Element,
        ahead: Callable[[ir.Expr], ir.Expr | None] = lambda k: None,
    ) -> tirx.Stmt:
        """Add all groups below an extent to a tile; like :func:`register_tile.accumulate`."""
        rows, columns = (int(d) for d in sums.ty.shape)

        def add(i: ir.Expr, k: ir.Expr, start: int) -> tirx.Stmt:
            where = [i, tirx.Ramp(index(start), index(1), self.lanes)]
            value = self.add(load(sums, where), left(i, k), right(k, where[-1]))
            return tirx.BufferStore(sums, value, where)

        def row(i: ir.Expr, k: ir.Expr) -> tirx.Stmt:
            return sequence([add(i, k, start) for start in range(0, columns, self.lanes)])

        def step(k: ir.Expr) -> tirx.Stmt:
            rows_ = unrolled("i", rows, lambda i: row(i, k))
            return asking(ahead(k), rows_)

        return loop("k", extent, step)

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


class BytesByFour(DotProduct):
    """Bytes, added to int32: vpdpbusd.

    It takes unsigned bytes of one factor and signed ones of the other. Where both are of a kind,
    the right one's sign bits are flipped when it is packed or copied: its bytes become 128 larger,
    or smaller, and each row of sums starts from as much less, or more, than zero times the sum of
    the left factor's row. All of that is exact, as int32 wraps around.
    """

    @property
    def offset(self) -> int:
        """Undo the flip."""
        if self.left != self.right:
            return 0
        return -128 if self.left == "int8" else 128

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Call the instruction; the unsigned operand comes first."""
        operands = [tirx.Broadcast(left, self.lanes), right]
        if self.left == "int8":
            operands.reverse()
        count = self.lanes * self.terms
        unsigned, signed = (f"{dtype}x{count}" for dtype in ("uint8", "int8"))
        return tirx.call_llvm_pure_intrin(
            f"int32x{self.lanes}",
            f"llvm.x86.avx512.vpdpbusd.{WORD * self.lanes}",
            sums,
            tirx.reinterpret(unsigned, operands[0]),
            tirx.reinterpret(signed, operands[1]),
        )


class HalvesByTwo(DotProduct):
    """Pairs of bfloat16, added to float32: vdpbf16ps."""

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Call the instruction."""
        return dot_bf16(sums, tirx.Broadcast(left, self.lanes), right)

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Define what is called."""
        return with_dot_bf16(body, self.lanes)


class HalvesOneByOne(DotProduct):
    """Pairs of bfloat16 without an instruction for them: each half is half of a float32."""

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Multiply and add twice."""
        for half in (self._low, self._high):
            sums = sums + tirx.Broadcast(half(left), self.lanes) * half(right)
        return sums

    def _low(self, word: ir.Expr) -> ir.Expr:
        return self._float(tirx.shift_left(word, _like(word, 16)))

    def _high(self, word: ir.Expr) -> ir.Expr:
        return self._float(tirx.bitwise_and(word, _like(word, -0x10000)))

    def _float(self, word: ir.Expr) -> ir.Expr:
        return tirx.reinterpret(str(word.ty.dtype).replace("int", "float"), word)


def _like(word: ir.Expr, value: int) -> ir.Expr:
    lanes = word.ty.dtype.lanes
    number = tirx.const(value, "int32")
    return number if lanes == 1 else tirx.Broadcast(number, lanes)


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


def dot_product(
    contraction: SumOfProducts, roles: Roles, is_packed: bool, target: Target
) -> DotProduct | None:
    """Choose the target's instruction for a product; ``None`` where it has none.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    roles : Roles
        Of its axes.
    is_packed : bool
        Whether the right factor is a constant. Panels that a task copies cannot be as long as all
        terms of several axes; and without an instruction for bfloat16 they had better be copied as
        float32 (measured: 5 to 12 % faster), while a packed constant of half the size pays.
    target : Target
        What to make it for.
    """
    if len(roles.reduce) > 1 and not is_packed:
        return None
    features = {str(f) for f in tvm.get_global_func("target.llvm_get_cpu_features")(target)}
    left, right = (str(bare(f).ty.dtype) for f in (roles.left, roles.right))
    what = left, right, roles.reduce[-1], roles.left
    if contraction.dtype == "int32" and left in BYTES and right in BYTES:
        lanes = next((n for n, feature in _VNNI.items() if feature in features), None)
        found: DotProduct | None = None if lanes is None else BytesByFour(lanes, *what)
    elif contraction.dtype == "float32" and left == right == "bfloat16":
        lanes = VectorUnit.of(target).lanes
        found = HalvesOneByOne(lanes, *what) if is_packed else None
        if "avx512bf16" in features:
            found = HalvesByTwo(lanes, *what)
    else:
        return None
    terms = constant(roles.reduce[-1].extent)
    return None if found is None or (terms is not None and terms < found.terms) else found


def bare(factor: ir.Expr) -> ir.Expr:
    """Take off casts of bytes and of bfloat16 that keep every value."""
    core = factor
    while isinstance(core, tirx.Cast) and str(core.ty.dtype) in ("int16", "int32", "float32"):
        core = core.value
    dtype, narrow = str(factor.ty.dtype), str(core.ty.dtype)
    keeps = narrow in BYTES if dtype == "int32" else narrow == "bfloat16"
    return core if keeps else factor
