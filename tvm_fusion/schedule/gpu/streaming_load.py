"""Reads of what a multiprocessor reads once: the first cache is left to what it reads again."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

BYTES = 16  # of a read
READ = "read_once"
_READ = f"""
__device__ __forceinline__ void {READ}(void* to, const void* from) {{
  unsigned* words = (unsigned*)to;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(from));
}}
"""


def read_once(to: ir.TensorLoad, element: ir.TensorLoad) -> tirx.Stmt:
    """Read the vector from an element on into registers; both begin where vectors may."""
    places = (tirx.address_of(to), tirx.address_of(element))
    return tirx.Evaluate(cuda_func_call(READ, *places, source_code=_READ))
