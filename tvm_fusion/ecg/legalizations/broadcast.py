"""Element-wise operators over operands that are broadcast to one another, as numpy does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, relax, te, tirx

from ..expand import Legalization


def elementwise(name: str, function: Callable[..., ir.Expr]) -> Legalization:
    """Make the legalization of an operator that is a function of scalars."""

    def compute(*tensors: te.Tensor) -> te.Tensor:
        return _broadcast(function, tensors, f"T_{name}")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return bb.call_te(compute, *call.args, primfunc_name_hint=name)

    return legalize


def _broadcast(
    function: Callable[..., ir.Expr], tensors: Sequence[te.Tensor], name: str
) -> te.Tensor:
    """Apply a function of scalars to the elements that broadcasting brings together."""
    shape: list[ir.Expr] = []
    for tensor in tensors:
        own = list(tensor.shape)
        missing = len(own) - len(shape)
        shape, own = [_ONE] * missing + shape, [_ONE] * -missing + own
        shape = [b if _is_one(a) else a for a, b in zip(shape, own, strict=True)]

    def value(*index: ir.Expr) -> ir.Expr:
        return function(*(_element(tensor, index) for tensor in tensors))

    return te.compute(shape, value, name=name)


_ONE = tirx.IntImm("int64", 1)


def _element(tensor: te.Tensor, index: Sequence[ir.Expr]) -> ir.Expr:
    own = index[len(index) - len(tensor.shape) :]
    return tensor(*(0 if _is_one(d) else i for i, d in zip(own, tensor.shape, strict=True)))


def _is_one(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
