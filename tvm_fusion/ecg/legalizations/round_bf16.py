"""Casts of float32 to bfloat16 on CPUs that round, whatever becomes of the result.

TVM 0.27's pass ``BF16ComputeLegalize`` computes bfloat16 in float32, and drops a cast to bfloat16
whose result stays in a register: a cast there and back gives the argument. The pass leaves a
``reinterpret`` of bits as it is.
"""

from __future__ import annotations

from tvm import ir, relax, te, tirx
from tvm.target import Target


def _rounded(x: ir.Expr) -> ir.Expr:
    """Round to nearest, ties to even, in the bits: the upper half of a float32 is a bfloat16."""
    bits = tirx.reinterpret("uint32", x)
    one, half = tirx.const(1, "uint32"), tirx.const(0x7FFF, "uint32")
    odd = tirx.bitwise_and(tirx.shift_right(bits, tirx.const(16, "uint32")), one)
    upper = tirx.shift_right(bits + half + odd, tirx.const(16, "uint32"))
    quiet = tirx.const(0x7FC0, "uint32")  # The sum might turn a NaN's bits into infinity's.
    upper = tirx.Select(tirx.isnan(x), quiet, upper)
    return tirx.reinterpret("bfloat16", upper.astype("uint16"))


def round_to_bf16(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``relax.astype`` from float32 to bfloat16 for CPUs; other casts are TVM's."""
    target = Target.current(allow_none=True)
    x = call.args[0]
    # The cast's own type: its attribute prints as what made it.
    result = bb.normalize(call).ty.dtype
    dtypes = (str(x.ty.dtype.dtype), str(result.dtype))
    if target is None or target.kind.name != "llvm" or dtypes != ("float32", "bfloat16"):
        return ir.Op.get("relax.astype").get_attr("FLegalize")(bb, call)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *index: _rounded(x(*index)), name="round_bf16")

    return bb.call_te(compute, x, primfunc_name_hint="round_bf16")
