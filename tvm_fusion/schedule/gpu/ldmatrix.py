"""``ldmatrix``: load fragments of mma operands from shared memory.

One instruction loads four 8x8 matrices of 16-bit elements. Thread ``t`` of the warp gives the
address of row ``t % 8`` of matrix ``t // 8``, 16 aligned bytes, and gets of each matrix the two
elements of row ``t // 4`` from column ``t % 4 * 2`` on; transposed, those of that column.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...core.loops import index

ELEMENTS = 8  # of a thread: two of each matrix
ROW = 8  # elements of a row of a matrix
_SOURCE = """
__device__ __forceinline__ void {name}(void* to, const void* row) {{
  unsigned* d = (unsigned*)to;
  unsigned place = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(place));
}}
"""


def ldmatrix_x4(to: ir.TensorLoad, row: ir.TensorLoad, transposed: bool = False) -> tirx.Stmt:
    """Load four matrices; all threads of a warp take part.

    Parameters
    ----------
    to : TensorLoad
        The first of the :data:`ELEMENTS` registers of a thread, two for each matrix in order.
    row : TensorLoad
        The first element in shared memory of the row whose address the thread gives.
    transposed : bool
        Whether to transpose each matrix.
    """
    name = "tvm_fusion_ldmatrix_x4" + ("_trans" if transposed else "")
    source = _SOURCE.format(name=name, trans=".trans" if transposed else "")
    addresses = (tirx.address_of(to), tirx.address_of(row))
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


def row_major_lane(lane: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Give a thread's row of 16 and its half of 16 columns, of two fragments along the columns.

    Of A of mma.m16n8k16, ``[m, k]``: registers 0, 1 are of rows 0 to 7, registers 2, 3 of the
    others. Of B in memory ``[n, k]``: each pair of registers is a fragment of eight n.
    """
    row = tirx.floordiv(lane, index(16)) * 8 + tirx.floormod(lane, index(8))
    return row, tirx.floormod(tirx.floordiv(lane, index(8)), index(2))


def transposed_lane(lane: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Give a thread's row of 16 and its half of 16 columns, of B in memory ``[k, n]``.

    Loaded transposed, each pair of registers is a fragment of eight n.
    """
    return tirx.floormod(lane, index(16)), tirx.floordiv(lane, index(16))
