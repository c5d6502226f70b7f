"""Element-wise operators over operands that are broadcast to one another, as numpy does.

What TOPI writes otherwise:

* ``where`` casts the condition to int64 and compares it with zero. Written into one another, as
  masks of masks are, such comparisons take TVM's simplifier ten times longer a level.
* ``log_add_exp`` is ``log(exp(a) + exp(b))``: infinite for ``a = 90`` in float32, minus infinity
  for -110.
* TVM's tests for NaN and infinity do not take bfloat16.
"""

import math
from collections.abc import Callable, Sequence

from tvm import DataType, ir, relax, te, tirx

from ....core.tir.hyperbolic import DTYPES, atanh, cosh, sinh
from ..expand import Legalization


def elementwise(name: str, function: Callable[..., ir.Expr]) -> Legalization:
    """Make the legalization of an operator that is a function of scalars.

    Finite numbers without axes are part of the function: a kernel would wait for them as for any
    other input.
    """

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        numbers = [_number(arg) for arg in call.args]
        if all(number is not None for number in numbers):
            numbers = [None for _ in numbers]  # of which no kernel is made

        def compute(*tensors: te.Tensor) -> te.Tensor:
            rest = iter(tensors)
            operands = [next(rest) if number is None else number for number in numbers]
            return _broadcast(function, operands, f"T_{name}")

        tensors = [a for a, number in zip(call.args, numbers, strict=True) if number is None]
        return bb.call_te(compute, *tensors, primfunc_name_hint=name)

    return legalize


def _broadcast(
    function: Callable[..., ir.Expr], operands: Sequence[te.Tensor | ir.Expr], name: str
) -> te.Tensor:
    """Apply a function of scalars to numbers and elements that broadcasting brings together."""
    shape: list[ir.Expr] = []
    for tensor in operands:
        if not isinstance(tensor, te.Tensor):
            continue
        own = list(tensor.shape)
        missing = len(own) - len(shape)
        shape, own = [_ONE] * missing + shape, [_ONE] * -missing + own
        shape = [b if _is_one(a) else a for a, b in zip(shape, own, strict=True)]

    def value(*index: ir.Expr) -> ir.Expr:
        return function(*(_element(x, index) if isinstance(x, te.Tensor) else x for x in operands))

    return te.compute(shape, value, name=name)


_ONE = tirx.IntImm("int64", 1)


def _number(arg: ir.Expr) -> ir.Expr | None:
    """Return a scalar constant as an immediate; ``None`` if it is not a constant, or not finite."""
    if not isinstance(arg, ir.GenericConst) or len(arg.ty.shape.values):
        return None
    dtype = str(arg.ty.dtype)
    if DataType(dtype).bits % 8 and dtype != "bool":
        return None
    value = arg.value.numpy().item()
    return tirx.const(value, dtype) if math.isfinite(value) else None


def _element(tensor: te.Tensor, index: Sequence[ir.Expr]) -> ir.Expr:
    own = index[len(index) - len(tensor.shape) :]
    return tensor(*(0 if _is_one(d) else i for i, d in zip(own, tensor.shape, strict=True)))


def _is_one(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _log_add_exp(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """``max(a, b) + log(1 + exp(-|a - b|))``; ``a + log 2`` where both are the same, infinities."""
    dtype = str(x.ty.dtype)
    smaller = tirx.exp(tirx.const(0, dtype) - tirx.abs(x - y))
    different = tirx.max(x, y) + tirx.log(tirx.const(1, dtype) + smaller)
    return tirx.Select(x.equal(y), x + tirx.const(math.log(2), dtype), different)


def _finiteness(name: str, test: Callable[[ir.Expr], ir.Expr]) -> Legalization:
    """Test the same number in float32, which holds every one of bfloat16."""

    def value(x: ir.Expr) -> ir.Expr:
        return test(tirx.Cast("float32", x) if str(x.ty.dtype) == "bfloat16" else x)

    return elementwise(name, value)


def _hyperbolic(name: str, function: Callable[[ir.Expr], ir.Expr]) -> Legalization:
    of_every_element = elementwise(name, function)

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        is_known = str(call.args[0].ty.dtype.dtype) in DTYPES
        return of_every_element(bb, call) if is_known else call

    return legalize


ELEMENTWISE: dict[str, Legalization] = {
    "relax.where": elementwise("where", tirx.Select),
    "relax.log_add_exp": elementwise("log_add_exp", _log_add_exp),
    "relax.isnan": _finiteness("isnan", tirx.isnan),
    "relax.isinf": _finiteness("isinf", tirx.isinf),
    "relax.isfinite": _finiteness("isfinite", tirx.isfinite),
    "relax.cosh": _hyperbolic("cosh", cosh),
    "relax.sinh": _hyperbolic("sinh", sinh),
    "relax.atanh": _hyperbolic("atanh", atanh),
}
