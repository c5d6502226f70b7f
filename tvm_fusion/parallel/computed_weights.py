"""Parts of weights that are computed of constants: numbers of few bits with their scales.

A part of the weight is computed of parts of the constants. So a part is followed from the weight
back through what computes it, to axes of each constant:

    w = reshape((q - zero) * scale)        w's rows    q's rows, scale's rows
                                           w's columns whole blocks of both, or no part at all
"""

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from ..core.operand_axes import FOLLOWED, RESHAPES, operand_axes, tensors, with_operands
from ..core.shards import Shard
from .plan import nbytes
from .views import fixed, reshaped

Values = Mapping[relax.Var, relax.Call]


class ComputedWeights:
    """What variables of a function are computed of constants alone.

    Parameters
    ----------
    part_of
        Makes a worker's part of a constant.
    emit
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
        if getattr(call.op, "name", "") not in FOLLOWED:
            return
        operands = tensors(call)
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
                rest += tensors(self._values[one])
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
            for operand, place in zip(tensors(self._values[arg]), places, strict=True)
        )

    def part(self, arg: Any, shard: Shard | None) -> Any:
        """Compute a worker's part of a variable, or all of it."""
        if isinstance(arg, GenericConst):
            return arg if shard is None else self._part_of(arg, shard)
        if (arg, shard) not in self._made:
            call = self._values[arg]
            count = len(tensors(call))
            places = [None] * count if shard is None else self._places(arg, shard)
            assert places is not None
            parts = [self.part(o, p) for o, p in zip(tensors(call), places, strict=True)]
            self._made[arg, shard] = self._emit(self._again(call, parts, shard))
        return self._made[arg, shard]

    def _places(self, arg: relax.Var, shard: Shard) -> list[Shard | None] | None:
        """Follow a part to each operand; ``None`` for one that is whole, or for all if it ends."""
        call = self._values[arg]
        if call.op.name in RESHAPES:
            before, after = call.ty.shape.values, tensors(call)[0].ty.shape.values
            found = reshaped(list(before), list(after), shard, self._size)
            return None if found is None else [found]
        axes = operand_axes(call, shard.axis)
        if axes is None:
            return None
        return [None if axis is None else Shard(axis, shard.segments) for axis in axes]

    def _again(self, call: relax.Call, parts: list[Any], shard: Shard | None) -> relax.Call:
        """Compute the same of parts."""
        if call.op.name not in RESHAPES:
            return with_operands(call, parts)
        shape = list(call.ty.shape.values)
        if shard is not None:
            shape[shard.axis] = shard.extent // self._size
        return relax.op.reshape(parts[0], shape)


def _nbytes(const: GenericConst) -> int:
    return int(nbytes(fixed(const.ty.shape.values) or [], str(const.ty.dtype)))
