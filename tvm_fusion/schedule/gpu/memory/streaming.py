"""Vectors that pass through the caches once: loads without a line in L1, evict-first stores.

What is larger than L2 is not found there again, and evicts what would be.
"""

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

STREAMED_BYTES = 16
STREAMED, STORED = "tvm_fusion_load_streamed", "tvm_fusion_store_streamed"
_LOAD = f"""
__device__ __forceinline__ void {STREAMED}(void* to, const void* from) {{
  unsigned* words = (unsigned*)to;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(from));
}}
"""
_STORE = """
__device__ __forceinline__ void {name}(void* to, const void* from) {{
  const unsigned* words = (const unsigned*)from;
  asm volatile("st.global.cs.v{count}.u32 [%0], {{{places}}};" :: "l"(to), {words} : "memory");
}}
"""
STORED_WORDS = (4, 2)  # of 4 bytes, of a store


def load_streamed(to: ir.TensorLoad, element: ir.TensorLoad) -> tirx.Stmt:
    """Load the vector that starts at an element into registers, without a line in L1."""
    return _copy(STREAMED, to, element, _LOAD)


def store_streamed(element: ir.TensorLoad, held: ir.TensorLoad, words: int) -> tirx.Stmt:
    """Store so many words of registers to the vector that starts at an element; evict it first."""
    name, numbers = f"{STORED}_{words}", range(words)
    source = _STORE.format(
        name=name,
        count=words,
        places=", ".join(f"%{i + 1}" for i in numbers),
        words=", ".join(f'"r"(words[{i}])' for i in numbers),
    )
    return _copy(name, element, held, source)


def _copy(name: str, to: ir.TensorLoad, origin: ir.TensorLoad, source: str) -> tirx.Stmt:
    places = tirx.address_of(to), tirx.address_of(origin)
    return tirx.Evaluate(cuda_func_call(name, *places, source_code=source))
