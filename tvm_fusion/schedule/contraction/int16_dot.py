"""Dot products of pairs of int16 on x86: pmaddwd, for bytes where there is no VNNI.

    pairs = pmaddwd(a, b)        a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1], of products of int16
    sums += pairs

Of bytes both are exact. It takes as many instructions as float32 takes for the same products, and a
quarter of those of products of int32, which are two or three of Intel's each.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ...device import Device
from .dot_products import WORD, DotProduct

#: LLVM's name by the width of vectors.
INTRINSICS = {
    128: "llvm.x86.sse2.pmadd.wd",
    256: "llvm.x86.avx2.pmadd.wd",
    512: "llvm.x86.avx512.pmaddw.d.512",
}


@dataclass(frozen=True)
class Int16Dot(DotProduct):
    """Pairs of int16, added to int32."""

    def add(self, sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """Multiply and add pairs, and add them."""
        pairs = f"int16x{self.lanes * self.group}"
        products = tirx.call_llvm_pure_intrin(
            f"int32x{self.lanes}",
            INTRINSICS[self.lanes * WORD],
            tirx.reinterpret(pairs, tirx.Broadcast(left, self.lanes)),
            tirx.reinterpret(pairs, right),
        )
        return sums + products


def has_int16_dot(device: Device, lanes: int) -> bool:
    """Whether a CPU has the instruction for vectors of so many int32."""
    bits = lanes * WORD
    return bits in INTRINSICS and bits <= (device.int16_dot_bits or 0)
