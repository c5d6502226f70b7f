"""Pairs of half-type numbers in words of 32 bits, and bytes of two words.

byte_perm(a, b, selector)    byte i is byte ``selector >> 4 i & 7`` of a (0 to 3) and b (4 to 7)
fma(x, factor, summand)      of both halves, each rounded once
pair_of(number)              it twice

TVM's codegen writes both halves of a vector one by one.
"""

import struct

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...instructions.nvidia import PTX_TYPES

_BYTE_PERM = """
__forceinline__ __device__ unsigned {name}(unsigned a, unsigned b, unsigned selector) {{
  unsigned y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}}
"""
_FMA = """
__forceinline__ __device__ unsigned {name}(unsigned x, unsigned factor, unsigned summand) {{
  unsigned y;
  asm("fma.rn.{short}x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(factor), "r"(summand));
  return y;
}}
"""
_PAIR_OF = """
__forceinline__ __device__ unsigned {name}({kind} number) {{
  unsigned y;
  asm("mov.b32 %0, {{%1, %1}};" : "=r"(y) : "h"(*(const unsigned short*)&number));
  return y;
}}
"""
_KINDS = {"float16": "half", "bfloat16": "nv_bfloat16"}


def byte_perm(a: ir.Expr, b: ir.Expr, selector: int) -> ir.Expr:
    """Choose four bytes of two words."""
    return _call("tvm_fusion_byte_perm", _BYTE_PERM, a, b, tirx.const(selector, "uint32"))


def fma(dtype: str, x: ir.Expr, factor: ir.Expr, summand: ir.Expr) -> ir.Expr:
    """Multiply and add both halves of words."""
    short = PTX_TYPES[dtype]
    return _call(f"tvm_fusion_fma_{short}x2", _FMA, x, factor, summand, short=short)


def pair_of(number: ir.Expr) -> ir.Expr:
    """Broadcast a half number to both halves of a word."""
    dtype = str(number.ty.dtype)
    name = f"tvm_fusion_pair_of_{PTX_TYPES[dtype]}"
    return _call(name, _PAIR_OF, number, kind=_KINDS[dtype])


def constant_pair(dtype: str, value: float) -> ir.Expr:
    """Return the word that holds a half constant twice."""
    if dtype == "float16":
        (bits,) = struct.unpack("<H", struct.pack("<e", value))
    else:
        bits = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    return tirx.const(bits << 16 | bits, "uint32")


def _call(name: str, source: str, *arguments: ir.Expr, **given: str) -> ir.Expr:
    text = source.format(name=name, **given)
    return cuda_func_call(name, *arguments, source_code=text, return_type="uint32")
