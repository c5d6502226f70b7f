"""Keep half-type numbers packed in registers, two in 32 bits, from one pass over them to the next.

CUDA's compiler takes the conversion to float32 of one pass for that of the next and keeps its
result: twice the registers, which spill. An empty ``asm`` that may change the words makes it
convert again, one instruction an element.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

KEEP_PACKED = "tvm_fusion_keep_packed"
_SOURCE = """
__device__ __forceinline__ void {name}(void* row) {{
  unsigned* words = (unsigned*)row;
  asm("// packed" : {operands});
}}
"""


def keep_packed(first: ir.TensorLoad, words: int) -> tirx.Stmt:
    """Hide the values of 32-bit words of a register buffer from the compiler (an ``asm`` barrier).

    Parameters
    ----------
    first : TensorLoad
        The first element.
    """
    name = f"{KEEP_PACKED}_{words}"
    operands = ", ".join(f'"+r"(words[{i}])' for i in range(words))
    source = _SOURCE.format(name=name, operands=operands)
    return tirx.Evaluate(cuda_func_call(name, tirx.address_of(first), source_code=source))
