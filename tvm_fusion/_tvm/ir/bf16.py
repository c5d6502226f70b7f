"""The dot product of bfloat16 pairs that AVX512-BF16 has.

LLVM's intrinsic takes vectors of bfloat, a type that TVM 0.27 has no name for: its passes turn
bfloat16 into float32 or uint16, and its code generator crashes on what they leave. A function in
LLVM's own language takes vectors of int32 instead; LLVM puts it in the place of each call.
"""

from tvm import ir, tirx

_NAME = "tvm_fusion_dot_bf16_{lanes}"
_SOURCE = """
declare <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
    <{lanes} x float>, <{halves} x bfloat>, <{halves} x bfloat>)

define linkonce_odr <{lanes} x float> @tvm_fusion_dot_bf16_{lanes}(
    <{lanes} x float> %sums, <{lanes} x i32> %left, <{lanes} x i32> %right) alwaysinline {{
  %a = bitcast <{lanes} x i32> %left to <{halves} x bfloat>
  %b = bitcast <{lanes} x i32> %right to <{halves} x bfloat>
  %added = call <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
      <{lanes} x float> %sums, <{halves} x bfloat> %a, <{halves} x bfloat> %b)
  ret <{lanes} x float> %added
}}
"""


def dot_bf16(sums: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
    """Add products of pairs, ``sums + low(left) low(right) + high(left) high(right)``.

    Parameters
    ----------
    sums
        A vector of float32.
    left, right
        Vectors of int32 of as many lanes; each half of a lane is a bfloat16.
    """
    lanes = sums.ty.dtype.lanes
    return tirx.call_pure_extern(f"float32x{lanes}", _NAME.format(lanes=lanes), sums, left, right)


def with_dot_bf16(body: tirx.Stmt, lanes: int) -> tirx.Stmt:
    """Define :func:`dot_bf16` for a statement that uses it."""
    source = _SOURCE.format(lanes=lanes, halves=2 * lanes, bits=32 * lanes)
    return tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", ir.StringImm(source), body)
