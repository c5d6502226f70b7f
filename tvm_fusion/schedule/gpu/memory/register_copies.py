"""Copies to shared memory through registers, where there is no cp.async (compute capability 7.5).

for each step:
    load(step + 1) into registers      on its way while this step is multiplied
    multiply this step
    store(step + 1) to shared memory   before the barrier of the block
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

_VECTORS = {4: ("unsigned", "*"), 8: ("uint2", "xy"), 16: ("uint4", "xyzw")}


def load_or_zero(
    to: ir.TensorLoad, source: ir.TensorLoad, size: int, is_loaded: ir.Expr
) -> tirx.Stmt:
    """Load 4, 8 or 16 aligned bytes of global memory into registers, or zeros.

    Parameters
    ----------
    to
        The first element of registers.
    source
        The first element in memory; it is not read where the condition does not hold.
    size
        Bytes.
    """
    kind, fields = _VECTORS[size]
    words = [f"word[{i}] = value{'' if f == '*' else '.' + f};" for i, f in enumerate(fields)]
    zero = "0" if size == 4 else f"make_{kind}({', '.join('0' * len(fields))})"
    name = f"tvm_fusion_load_or_zero_{size}"
    code = f"""
__device__ __forceinline__ void {name}(void* to, const void* source, bool is_loaded) {{
  unsigned* word = (unsigned*)to;
  {kind} value = {zero};
  if (is_loaded) value = *(const {kind}*)source;
  {" ".join(words)}
}}
"""
    places = tirx.address_of(to), tirx.address_of(source)
    return tirx.Evaluate(cuda_func_call(name, *places, is_loaded, source_code=code))
