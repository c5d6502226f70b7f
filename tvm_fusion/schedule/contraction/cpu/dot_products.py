"""Dot-product instructions of CPUs: each lane adds several products of adjacent k.

AVX512-VNNI multiplies four bytes of each lane of one vector by four of the other and adds them to
an int32; AVX512-BF16 does so with two bfloat16 and a float32. To a register tile, such a group of k
is one element of 32 bits, which is broadcast from A and packed or copied from B.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ...._tvm.ir.bf16 import with_dot_bf16
from ....core.tir.expressions import load
from ....core.tir.loops import (
    ceildiv,
    constant,
    index,
    loop,
    product,
    sequence,
    substitute,
    unrolled,
)
from ....device import Device
from ....program.stage import Axis
from ...cpu.register_tile import Element, VectorUnit, with_prefetch
from ...instructions.cpu import WORD, dot_of, multiply
from ...instructions.table import find
from ...math.half_math import HALF_TYPES
from ..problem.gemm_view import GemmView
from ..problem.sum_of_products import SumOfProducts

BYTES = ("int8", "uint8")
THIN = 4  # rows whose operands are widened in registers
SIGNS = -0x7F7F7F80  # the sign bits of a word's bytes: 0x80808080


@dataclass(frozen=True)
class WordProduct:
    """An instruction that multiplies groups of k, for a GEMM."""

    lanes: int  # of a vector of accumulators
    # Types of the operands' elements.
    a_dtype: str
    b_dtype: str
    axis: Axis  # the axis of K that is split into groups
    a: ir.Expr  # A, cast to the accumulators' type

    @property
    def group(self) -> int:
        """Number of k in a group."""
        return WORD // tirx.const(0, self.a_dtype).ty.dtype.bits

    @property
    def offset(self) -> int:
        """The compensation for every element of a row of A."""
        return 0

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Wrap a kernel's body in the declarations that the instruction needs."""
        return body

    def groups(self, view: GemmView) -> GemmView:
        """View K in groups; a group of A or of B is one word, padded with zeros."""
        axis = Axis(tirx.Var("group", "int64"), ceildiv(self.axis.extent, self.group))
        a = self.word(uncast(view.a), axis.var)
        b = self.word(uncast(view.b), axis.var)
        return replace(view, k_axes=(*view.k_axes[:-1], axis), a=a, b=b)

    def word(self, operand: ir.Expr, group: ir.Var) -> ir.Expr:
        """Join a group of an operand, its first k in the lowest bits; zeros beyond the last."""
        extent = index(self.axis.extent)

        def join(count: int, inside: Callable[[ir.Expr], ir.Expr] | None = None) -> ir.Expr:
            word: ir.Expr | None = None
            for j in range(count):
                term = group * self.group + j
                part: ir.Expr = substitute(operand, {self.axis.var: term})
                part = tirx.Cast("int32", tirx.reinterpret(f"uint{WORD // self.group}", part))
                if j:
                    part = tirx.shift_left(part, tirx.const(j * WORD // self.group, "int32"))
                if inside is not None:
                    part = tirx.if_then_else(inside(term), part, tirx.const(0, "int32"))
                word = part if word is None else tirx.bitwise_or(word, part)
            return tirx.const(0, "int32") if word is None else word

        size = constant(extent)
        whole = join(self.group)
        if size is not None and size % self.group == 0:
            return whole
        if size is not None:
            rest = join(size % self.group)
        else:
            rest = join(self.group, lambda term: term < extent)
        full = tirx.floordiv(extent, index(self.group))
        return tirx.if_then_else(group < full, whole, rest)


@dataclass(frozen=True)
class DotProduct(WordProduct, ABC):
    """An instruction of vectors: a word of A is broadcast."""

    @abstractmethod
    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Add a word of A times a vector of words of B to accumulators."""

    def groups(self, view: GemmView) -> GemmView:
        """View K in groups; sign bits of B are flipped where that is compensated."""
        view = super().groups(view)
        if not self.offset:
            return view
        return replace(view, b=tirx.bitwise_xor(view.b, tirx.const(SIGNS, "int32")))

    def accumulate(
        self,
        sums: ir.Var,
        extent: ir.Expr | int,
        left: Element,
        right: Element,
        prefetched: Callable[[ir.Expr], ir.Expr | None] = lambda k: None,
    ) -> tirx.Stmt:
        """Add all groups below an extent to a tile, like :func:`register_tile.accumulate`."""
        rows, columns = (int(d) for d in sums.ty.shape)

        def add(i: ir.Expr, k: ir.Expr, start: int) -> tirx.Stmt:
            where = [i, tirx.Ramp(index(start), index(1), self.lanes)]
            value = self.add(load(sums, where), left(i, k), right(k, where[-1]))
            return tirx.BufferStore(sums, value, where)

        def row(i: ir.Expr, k: ir.Expr) -> tirx.Stmt:
            return sequence([add(i, k, start) for start in range(0, columns, self.lanes)])

        def step(k: ir.Expr) -> tirx.Stmt:
            rows_ = unrolled("i", rows, lambda i: row(i, k))
            return with_prefetch(prefetched(k), rows_)

        return loop("k", extent, step)


class VnniDot(DotProduct):
    """Bytes, added to int32: vpdpbusd.

    It multiplies unsigned by signed bytes. Where A and B are both signed or both unsigned, B's sign
    bits are flipped when it is packed or copied, which adds or subtracts 128. The accumulators of a
    row start from the compensation: -128 or 128 times the sum of A's row. int32 wraps around, so
    that this is exact.
    """

    @property
    def offset(self) -> int:
        """The compensation of flipped sign bits."""
        if self.a_dtype != self.b_dtype:
            return 0
        return -128 if self.a_dtype == "int8" else 128

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Call the instruction; the unsigned operand comes first."""
        unsigned, signed = tirx.Broadcast(left, self.lanes), right
        if self.a_dtype == "int8":
            unsigned, signed = signed, unsigned
        return multiply(dot_of("uint8", "int8", self.lanes), unsigned, signed, sums)


class Bf16Dot(DotProduct):
    """Pairs of bfloat16, added to float32: vdpbf16ps."""

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Call the instruction."""
        row = dot_of("bfloat16", "bfloat16", self.lanes)
        return multiply(row, tirx.Broadcast(left, self.lanes), right, sums)

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Define what is called."""
        return with_dot_bf16(body, self.lanes)


class EmulatedBf16Dot(DotProduct):
    """Pairs of bfloat16 without an instruction: each is the upper half of a float32."""

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Multiply and add twice."""
        row = dot_of("float32", "float32", self.lanes)
        for half in (self._low, self._high):
            sums = multiply(row, tirx.Broadcast(half(left), self.lanes), half(right), sums)
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


def dot_product(
    contraction: SumOfProducts, view: GemmView, is_packed: bool, device: Device
) -> DotProduct | None:
    """Choose a CPU's instruction for a product; ``None`` where it has none.

    Parameters
    ----------
    is_packed
        Whether B is a packed constant. Panels that a task copies cannot hold K of several axes.
        Without an instruction for bfloat16 they are copied as float32; of a packed constant, which
        is half as large, pairs are taken apart in registers where few rows read them once, else
        widened for many (computed_a.py).
    """
    if len(view.k_axes) > 1 and not is_packed:
        return None
    a, b = (str(uncast(x).ty.dtype) for x in (view.a, view.b))
    given = a, b, view.k_axes[-1], view.a
    if contraction.dtype == "int32" and a in BYTES and b in BYTES:
        row = find(device, "dot", "uint8", "int8")
        found: DotProduct | None = None if row is None else VnniDot(row.n, *given)
    elif contraction.dtype == "float32" and a == b == "bfloat16":
        lanes = VectorUnit.of(device).lanes
        found = EmulatedBf16Dot(lanes, *given) if is_packed and is_thin(view) else None
        if (row := find(device, "dot", a, b)) is not None:
            found = Bf16Dot(row.n, *given)
    else:
        return None
    k = constant(view.k_axes[-1].extent)
    return None if found is None or (k is not None and k < found.group) else found


def is_thin(view: GemmView) -> bool:
    """Whether a product has as few rows as one register tile."""
    rows = constant(product([a.extent for a in view.m_axes]))
    return rows is not None and rows <= THIN


def uncast(operand: ir.Expr) -> ir.Expr:
    """Take lossless casts of bytes and of half types off an operand."""
    core = operand
    while isinstance(core, tirx.Cast) and str(core.ty.dtype) in ("int16", "int32", "float32"):
        core = core.value
    dtype, narrow = str(operand.ty.dtype), str(core.ty.dtype)
    keeps = narrow in BYTES if dtype == "int32" else narrow in HALF_TYPES
    return core if keeps else operand


# Dot products of pairs of int16 on x86: pmaddwd, for bytes where there is no VNNI.
#
#     pairs = pmaddwd(a, b)        a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1], of products of int16
#     sums += pairs
#
# Of bytes both are exact. It takes as many instructions as float32 takes for the same products, and
# a quarter of those of products of int32, which are two or three of Intel's each.
class Int16Dot(DotProduct):
    """Pairs of int16, added to int32."""

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Multiply and add pairs, and add them."""
        row = dot_of(self.a_dtype, self.b_dtype, self.lanes)
        return multiply(row, tirx.Broadcast(left, self.lanes), right, sums)
