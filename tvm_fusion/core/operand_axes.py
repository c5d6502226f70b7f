"""Axes of operands that become an axis of an operator's result, each index from one of theirs.

A part of the result along such an axis is computed of parts of the operands; several results that
lie one behind the other, of operands that do.
"""

from typing import Any

from tvm import relax, tirx

_NAMES = (
    "add astype bitwise_and bitwise_or bitwise_xor clip divide floor_divide floor_mod left_shift "
    "maximum minimum multiply negative right_shift subtract"
)
ELEMENTWISE = frozenset(f"relax.{name}" for name in _NAMES.split())
RESHAPES = frozenset(f"relax.{name}" for name in ("reshape", "expand_dims", "squeeze", "flatten"))
FOLLOWED = (
    *(ELEMENTWISE | RESHAPES),
    *("relax.permute_dims", "relax.stack", "relax.concat", "relax.strided_slice"),
)


def tensors(call: relax.Call) -> list[Any]:
    """List the operands that are tensors, those of a tuple one by one."""
    first = call.args[0]
    if isinstance(first, relax.Tuple):
        return list(first.fields)
    return [arg for arg in call.args if is_tensor(arg)]


def is_tensor(arg: Any) -> bool:
    """Whether an argument is a tensor rather than a shape or an attribute."""
    return isinstance(getattr(arg, "ty", None), relax.TensorType)


def operand_axes(call: relax.Call, axis: int) -> list[int | None] | None:
    """Find the axes that become one of the result.

    Parameters
    ----------
    call
        Of an operator in :data:`FOLLOWED` that is no reshape: these depend on what parts there are.

    Returns
    -------
    list of int or None
        One for each tensor, ``None`` for one that is read whole; ``None`` where there are none.
    """
    name, operands = call.op.name, tensors(call)
    if name in ELEMENTWISE:
        return [_broadcast(operand, call, axis) for operand in operands]
    if name == "relax.permute_dims":
        return [_order(call)[axis]]
    if name in ("relax.stack", "relax.concat"):
        own = int(getattr(call.attrs, "axis", None) or 0) % call.ty.ndim
        moved = axis - (name == "relax.stack" and axis > own)
        return None if axis == own else [moved] * len(operands)
    cut = [int(value) % call.ty.ndim for value in call.args[1]]
    return None if axis in cut else [axis]


def with_operands(call: relax.Call, operands: list[Any]) -> relax.Call:
    """Compute the same of other operands; not a reshape."""
    if isinstance(call.args[0], relax.Tuple):
        return relax.Call(call.op, [relax.Tuple(operands)], call.attrs)
    rest = iter(operands)
    args = [next(rest) if is_tensor(arg) else arg for arg in call.args]
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _broadcast(operand: Any, call: relax.Call, axis: int) -> int | None:
    """Find the axis of an operand that becomes one of an elementwise result."""
    own = operand.ty.ndim - (call.ty.ndim - axis)
    if own < 0:
        return None
    extent = operand.ty.shape.values[own]
    return None if isinstance(extent, tirx.IntImm) and int(extent) == 1 else own


def _order(call: relax.Call) -> list[int]:
    ndim, axes = call.ty.ndim, call.attrs.axes
    return [a % ndim for a in map(int, axes)] if axes is not None else list(range(ndim))[::-1]
