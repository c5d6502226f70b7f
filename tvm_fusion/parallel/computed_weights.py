"""Parts of weights that are computed of constants: numbers of few bits with their scales.

A part of the weight is computed of parts of the constants. So a part is followed from the weight
back through what computes it, to axes of each constant:

    w = reshape((q - zero) * scale)        w's rows    q's rows, scale's rows
                                           w's columns whole blocks of both, or no part at all
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from ..core.shards import Shard
from .plan import nbytes
from .views import extent, fixed, reshaped

_SAME = (
    "add astype bitwise_and bitwise_or bitwise_xor clip divide floor_divide floor_mod left_shift "
    "maximum minimum multiply negative right_shift subtract"
)
_ELEMENTWISE = {f"relax.{name}" for name in _SAME.split()}
_RESHAPES = {"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"}
Values = Mapping[relax.Var, relax.Call]


class ComputedWeights:
    """What variables of a function are computed of constants alone.

    Parameters
    ----------
    size : int
        Workers.
    part_of : callable
        Makes a worker's part of a constant.
    emit : callable
        Binds a value of the new function.
    """

    def __init__(
        self,
        size: int,
        part_of: Callable[[GenericConst, Shard], GenericConst],
        emit: Callable[[Any], relax.Var],
    ) -> None:
        self._size, self._part_of, self._emit = size, part_of, emit
        self._values: dict[relax.Var, relax.Call] = {}
        self._made: dict[tuple[relax.Var, Shard | None], Any] = {}

    def note(self, var: relax.Var, call: relax.Call) -> None:
        """Note a variable, if it is computed of constants by what a part is followed through."""
        name = getattr(call.op, "name", "")
        known = {*_ELEMENTWISE, *_RESHAPES, "relax.permute_dims", "relax.stack"}
        if name not in known | {"relax.concat", "relax.strided_slice"}:
            return
        operands = _tensors(call)
        if operands and all(isinstance(o, GenericConst) or o in self._values for o in operands):
            self._values[var] = call

    def constants(self, arg: Any) -> list[GenericConst]:
        """List the constants that a variable is computed of, those of few bits first.

        None where all have the variable's own type.
        """
        found: dict[GenericConst, None] = {}
        rest = [arg] if arg in self._values else []
        while rest:
            one = rest.pop()
            if isinstance(one, GenericConst):
                found[one] = None
            else:
                rest += _tensors(self._values[one])
        own = arg.ty.dtype if found else ""

        def rank(const: GenericConst) -> tuple[bool, int]:
            return const.ty.dtype != own, _nbytes(const)

        ordered = sorted(found, key=rank, reverse=True)
        return ordered if ordered and rank(ordered[0])[0] else []

    def can_part(self, arg: Any, shard: Shard) -> bool:
        """Whether a worker's part of a variable is computed of even parts of its constants."""
        if isinstance(arg, GenericConst):
            return all(segment % self._size == 0 for segment in shard.segments)
        places = self._places(arg, shard)
        return places is not None and all(
            place is None or self.can_part(operand, place)
            for operand, place in zip(_tensors(self._values[arg]), places, strict=True)
        )

    def part(self, arg: Any, shard: Shard | None) -> Any:
        """Compute a worker's part of a variable, or all of it."""
        if isinstance(arg, GenericConst):
            return arg if shard is None else self._part_of(arg, shard)
        if (arg, shard) not in self._made:
            call = self._values[arg]
            count = len(_tensors(call))
            places = [None] * count if shard is None else self._places(arg, shard)
            assert places is not None
            parts = [self.part(o, p) for o, p in zip(_tensors(call), places, strict=True)]
            self._made[arg, shard] = self._emit(self._again(call, parts, shard))
        return self._made[arg, shard]

    def _places(self, arg: relax.Var, shard: Shard) -> list[Shard | None] | None:
        """Follow a part to each operand; ``None`` for one that is whole, or for all if it ends."""
        call = self._values[arg]
        name, operands = call.op.name, _tensors(call)
        if name in _ELEMENTWISE:
            return [_broadcast(operand, call, shard) for operand in operands]
        if name in _RESHAPES:
            before, after = call.ty.shape.values, operands[0].ty.shape.values
            found = reshaped(list(before), list(after), shard, self._size)
            return None if found is None else [found]
        if name == "relax.permute_dims":
            return [Shard(_order(call)[shard.axis], shard.segments)]
        axis = int(getattr(call.attrs, "axis", None) or 0) % call.ty.ndim
        if name in ("relax.stack", "relax.concat"):
            if shard.axis == axis:
                return None
            moved = shard.axis - (name == "relax.stack" and shard.axis > axis)
            return [Shard(moved, shard.segments)] * len(operands)
        axes = [int(value) % call.ty.ndim for value in call.args[1]]
        return None if shard.axis in axes else [shard]

    def _again(self, call: relax.Call, parts: list[Any], shard: Shard | None) -> relax.Call:
        """Compute the same of parts."""
        name = call.op.name
        if name in ("relax.stack", "relax.concat"):
            return relax.Call(call.op, [relax.Tuple(parts)], call.attrs)
        if name in _RESHAPES:
            shape = list(call.ty.shape.values)
            if shard is not None:
                shape[shard.axis] = shard.extent // self._size
            return relax.op.reshape(parts[0], shape)
        rest = iter(parts)
        args = [next(rest) if _is_tensor(arg) else arg for arg in call.args]
        return relax.Call(call.op, args, call.attrs, call.ty_args)


def _tensors(call: relax.Call) -> list[Any]:
    first = call.args[0]
    if isinstance(first, relax.Tuple):
        return list(first.fields)
    return [arg for arg in call.args if _is_tensor(arg)]


def _is_tensor(arg: Any) -> bool:
    return isinstance(getattr(arg, "ty", None), relax.TensorType)


def _broadcast(operand: Any, call: relax.Call, shard: Shard) -> Shard | None:
    """Find the axis of an operand that becomes one of an elementwise result."""
    axis = operand.ty.ndim - (call.ty.ndim - shard.axis)
    if axis < 0 or extent(operand.ty.shape.values[axis]) == 1:
        return None
    return Shard(axis, shard.segments)


def _order(call: relax.Call) -> list[int]:
    ndim, axes = call.ty.ndim, call.attrs.axes
    return [a % ndim for a in map(int, axes)] if axes is not None else list(range(ndim))[::-1]


def _nbytes(const: GenericConst) -> int:
    return int(nbytes(fixed(const.ty.shape.values) or [], str(const.ty.dtype)))
