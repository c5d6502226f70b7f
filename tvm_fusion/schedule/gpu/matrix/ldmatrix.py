"""``ldmatrix``: load 16x16 fragments of a half type from shared memory, four 8x8 matrices at once.

Lane 8 * i + r of a warp passes the address of row r of matrix i, 16 bytes. Each thread gets of
every matrix the two elements of row ``lane // 4`` from column ``lane % 4 * 2`` on; with ``.trans``,
of the transposed matrix. Rows of eight lanes must lie in different banks to be read at once.
"""

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ....core.tir.loops import index

# ``movmatrix``: transpose an 8x8 fragment of a half type across the threads of a warp.
#
# An accumulator fragment of ``mma`` holds neighbouring columns in a thread; a B fragment of the
# next ``mma`` holds neighbouring rows. The transpose turns the one into the other.


MOVMATRIX = "movmatrix_trans"
_MOVMATRIX = f"""
__device__ __forceinline__ void {MOVMATRIX}(void* to, const void* from) {{
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(*(unsigned*)to) : "r"(*(const unsigned*)from));
}}
"""


def movmatrix(to: ir.TensorLoad, pair: ir.TensorLoad) -> tirx.Stmt:
    """Transpose an 8x8 fragment; all threads of a warp take part.

    Parameters
    ----------
    to, pair
        The first of a thread's two elements of row ``t // 4``, from column ``t % 4 * 2`` on.
    """
    addresses = (tirx.address_of(to), tirx.address_of(pair))
    return tirx.Evaluate(cuda_func_call(MOVMATRIX, *addresses, source_code=_MOVMATRIX))


ELEMENTS = 8  # of a thread: two of each matrix

_SOURCE = """
__device__ __forceinline__ void {name}(void* to, const void* row) {{
  unsigned* word = (unsigned*)to;
  unsigned place = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3]) : "r"(place));
}}
"""


def ldmatrix_x4(to: ir.TensorLoad, row: ir.TensorLoad, is_transposed: bool) -> tirx.Stmt:
    """Load four 8x8 matrices; a whole warp executes it together.

    Parameters
    ----------
    to
        The first of a thread's 8 elements, in registers: two of each matrix.
    row
        Where the row of this lane lies in shared memory.
    is_transposed
        Whether the matrices are transposed on the way.
    """
    name = "tvm_fusion_ldmatrix_x4" + ("_trans" if is_transposed else "")
    source = _SOURCE.format(name=name, trans=".trans" if is_transposed else "")
    addresses = (tirx.address_of(to), tirx.address_of(row))
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


def row_major_lane(lane: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Return a thread's row of 16 and half of 16 columns, of two fragments along columns.

    Of A of mma.m16n8k16, ``[m, k]``: registers 0, 1 are of rows 0 to 7, registers 2, 3 of the
    others. Of B in memory ``[n, k]``: each pair of registers is a fragment of eight n.
    """
    row = tirx.floordiv(lane, index(16)) * 8 + tirx.floormod(lane, index(8))
    return row, tirx.floormod(tirx.floordiv(lane, index(8)), index(2))


def transposed_lane(lane: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Return a thread's row of 16 and half of 16 columns, of B in memory ``[k, n]``.

    Loaded transposed, each pair of registers is a fragment of eight n.
    """
    return tirx.floormod(lane, index(16)), tirx.floordiv(lane, index(16))
