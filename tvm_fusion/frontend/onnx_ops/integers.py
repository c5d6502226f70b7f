"""Integer powers, for which TVM has no operator."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx, topi

from .node import Node
from .registry import register


@register("Pow")
def power(node: Node) -> Any:
    """Convert Pow; the result has the type of the base.

    Where the base is an integer, by repeated squaring over the bits of the exponent; a negative
    exponent gives zero unless the base is one or minus one.
    """
    base, exponent = node.dtype(0), node.dtype(1)
    if "int" not in base:
        if base == exponent:
            return None
        return node.emit_te(
            lambda x, y: topi.power(x, topi.cast(y, base)), *node.inputs, primfunc_name_hint="power"
        )
    if "int" not in exponent:
        wide = "float64" if exponent == "float64" else "float32"
        return node.emit_te(
            lambda x, y: topi.cast(topi.power(topi.cast(x, wide), topi.cast(y, wide)), base),
            *node.inputs,
            primfunc_name_hint="power",
        )

    def squaring(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        x, y = _broadcast(x, y)

        def element(*at: Any) -> Any:
            value, times = x(*at), y(*at)
            one = tirx.const(1, base)
            result, square = one, value
            for bit in range(6):  # 2**63 is past every integer type
                odd = tirx.bitwise_and(tirx.shift_right(times, tirx.const(bit, exponent)), 1)
                result = tirx.Select(odd != 0, result * square, result)
                square = square * square
            inverse = tirx.Select(
                value == 1,
                one,
                tirx.Select(value == -1, tirx.Select(times % 2 == 0, one, -one), one - 1)
                if base.startswith("int")
                else one - 1,
            )
            return tirx.Select(times < 0, inverse, result) if exponent[0] == "i" else result

        return te.compute(x.shape, element, name="power", tag=topi.tag.ELEMWISE)

    return node.emit_te(squaring, *node.inputs, primfunc_name_hint="power")


def _broadcast(x: te.Tensor, y: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    shape = topi.utils.get_const_tuple(topi.add(x, topi.cast(y, x.dtype)).shape)
    return topi.broadcast_to(x, shape), topi.broadcast_to(y, shape)
