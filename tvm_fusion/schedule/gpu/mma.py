"""What a warp multiplies on tensor cores at once: ``c[16, 8] += a[16, 16] * b[16, 8]``.

Eight lines of four threads hold it: a line has two rows of ``a`` and a column of ``b``, of which
its threads have four terms each, and of ``c`` the same two rows, of which a thread has two columns.
Which terms the instruction calls its first and its last does not matter as long as both factors
agree, so that a thread gives it what it has read in a vector.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

LINES, SHARERS = 8, 4  # lines of a warp, threads of a line
CHUNK = 4  # terms that a thread gives to one instruction
SUMS = 4  # of a thread: two rows of ``a``, each with two columns of ``b``
_SHORT = {"float16": "f16", "bfloat16": "bf16"}
_NAME = "tvm_fusion_fragments_{}"
_SOURCE = """
__device__ __forceinline__ void {name}(
    float* c, const void* first, const void* second, const void* column) {{
  const unsigned* x = (const unsigned*)first;
  const unsigned* y = (const unsigned*)second;
  const unsigned* z = (const unsigned*)column;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(x[0]), "r"(y[0]), "r"(x[1]), "r"(y[1]), "r"(z[0]), "r"(z[1]));
}}
"""


def multiply(
    half: str,
    sums: ir.TensorLoad,
    rows: Sequence[ir.TensorLoad],
    column: ir.TensorLoad,
) -> tirx.Stmt:
    """Multiply fragments; all threads of a warp do at once.

    Parameters
    ----------
    half : str
        Type of both factors.
    sums : TensorLoad
        The first of a thread's sums, which lie side by side.
    rows : sequence of TensorLoad
        The first of a thread's terms of each of its line's rows.
    column : TensorLoad
        The first of its terms of its line's column.
    """
    name = _NAME.format(_SHORT[half])
    source = _SOURCE.format(name=name, short=_SHORT[half])
    addresses = [tirx.address_of(x) for x in (sums, *rows, column)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))
