"""Products of fragments, which tensor cores multiply for the threads of a warp together.

The sums of a product may run over its terms in any order, so a thread gives the tensor cores the
vectors as they come: a fragment's terms are four elements of the thread's vector, not those that
the instruction numbers so. Half of an instruction's sixteen rows are zeros, which cost nothing.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

FRAGMENT = 4  # elements of a factor that a thread gives to one instruction
_SHORT = {"float16": "f16", "bfloat16": "bf16"}
_SOURCE = """
__device__ __forceinline__ void {name}(float* c, const void* a, const void* b) {{
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  float unused0, unused1;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%10, %11, %12, %13}};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(unused0), "=f"(unused1)
      : "r"(x[0]), "r"(0), "r"(x[1]), "r"(0), "r"(y[0]), "r"(y[1]),
        "f"(c[0]), "f"(c[1]), "f"(0.f), "f"(0.f));
}}
"""


def multiply(sums: ir.TensorLoad, left: ir.TensorLoad, right: ir.TensorLoad) -> tirx.Stmt:
    """Do ``c[row, column] += a[row, term] * b[term, column]``: 8 rows and columns, 16 terms.

    Parameters
    ----------
    sums : TensorLoad
        The first of a thread's two sums, in float32: row ``t // 4``, columns from ``t % 4 * 2`` on.
    left, right : TensorLoad
        The first of its four elements of each factor, of a half type: of row, or column, ``t // 4``
        those terms that the other factor's thread of the same ``t % 4`` has.
    """
    short = _SHORT[str(left.ty.dtype)]
    name = f"fragments_{short}"
    source = _SOURCE.format(name=name, short=short)
    places = (tirx.address_of(x) for x in (sums, left, right))
    return tirx.Evaluate(cuda_func_call(name, *places, source_code=source))
