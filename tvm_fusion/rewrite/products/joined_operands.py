"""Operands joined along an axis by joining constants: those that they are, or are computed of.

    [f(A) | f(B)] = f([A | B])

So weights of few bits stay packed, each with its scales.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import prod
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GenericConst

from ...core.operand_axes import FOLLOWED, RESHAPES, is_tensor, operand_axes, tensors, with_operands
from ...frontend.normalize.engine import op_name

Constants: TypeAlias = tuple[GenericConst, ...]
#: Makes what constants are that lie one behind the other along an axis.
Concatenate: TypeAlias = Callable[[Constants, int], relax.Expr]


class OfConstants:
    """What a function computes of constants alone, by operators that axes are followed through."""

    def __init__(self, func: relax.Function) -> None:
        self._calls: dict[int, relax.Call] = {}
        for block in blocks(func):
            for binding in block.bindings:
                value = binding.value
                if isinstance(binding, relax.VarBinding) and op_name(value) in FOLLOWED:
                    operands = tensors(value)
                    if operands and all(map(self.knows, operands)):
                        self._calls[hash(binding.var)] = value

    def knows(self, expr: relax.Expr) -> bool:
        """Whether an operand is a constant or computed of some."""
        return isinstance(expr, GenericConst) or hash(expr) in self._calls

    def kind(self, expr: relax.Expr) -> Hashable:
        """Return what operands have in common that can be joined: how they are computed."""
        call = self._calls.get(hash(expr))
        if call is None:
            return str(expr.ty.dtype)
        attrs = None if call.attrs is None else tvm_ffi.structural_hash(call.attrs)
        return call.op.name, attrs, *map(self.kind, tensors(call))

    def joined(
        self, parts: Sequence[relax.Expr], axis: int | None, concatenate: Concatenate
    ) -> relax.Expr | None:
        """Write some operands as one.

        Parameters
        ----------
        parts
            Operands of one kind.
        axis
            Along which they lie one behind the other; None where they are to be one and the same.

        Returns
        -------
        Expr or None
            Not normalized; ``None`` where it is no function of joined constants.
        """
        first = parts[0]
        if isinstance(first, GenericConst):
            if axis is not None:
                return concatenate(tuple(parts), axis)
            return first if all(_is_same(first, part) for part in parts) else None
        calls = [self._calls[hash(part)] for part in parts]
        call = calls[0]
        is_reshape = call.op.name in RESHAPES
        if axis is None:
            axes: list[int | None] | None = [None] * len(tensors(call))
        else:
            found = [_reshaped(c, axis) if is_reshape else operand_axes(c, axis) for c in calls]
            axes = found[0] if all(f == found[0] for f in found) else None
            if axes is not None and set(axes) == {None}:  # an axis of one element
                return None
        if axes is None or not all(_is_alike(call, other, axis) for other in calls):
            return None
        operands = []
        for place, several in zip(axes, zip(*map(tensors, calls), strict=True), strict=True):
            is_joined = _fit(several, place)
            operand = self.joined(several, place, concatenate) if is_joined else None
            if operand is None:
                return None
            operands.append(operand)
        if call.op.name != "relax.reshape":
            return with_operands(call, operands)
        shape = list(call.ty.shape.values)
        if axis is not None:
            shape[axis] = sum(int(c.ty.shape.values[axis]) for c in calls)
        return relax.op.reshape(operands[0], shape)


def still_read(mod: tvm.IRModule, unread: Sequence[relax.Expr]) -> set[int]:
    """Find constants that are read when some operands of calls no longer are.

    Parameters
    ----------
    unread
        Once for each call.
    """
    reads: Counter[int] = Counter()
    operands: dict[int, list[Any]] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var | GenericConst):
            reads[hash(expr)] += 1

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
            for block in blocks(func):
                for binding in block.bindings:
                    if op_name(binding.value) in FOLLOWED:
                        operands[hash(binding.var)] = tensors(binding.value)
    rest = list(unread)
    while rest:
        expr = rest.pop()
        reads[hash(expr)] -= 1
        if not reads[hash(expr)]:
            rest += operands.get(hash(expr), [])
    return set(+reads)


def in_several(joins: Sequence[Sequence[Constants]]) -> set[int]:
    """Find constants that different joins would hold."""
    holders: dict[int, set[Hashable]] = defaultdict(set)
    for join in joins:
        key = tuple(tuple(map(hash, constants)) for constants in join)
        for part in {part for constants in key for part in constants}:
            holders[part].add(key)
    return {part for part, keys in holders.items() if len(keys) > 1}


def blocks(func: relax.Function) -> Iterator[relax.BindingBlock]:
    """Yield the blocks of a function, those of branches too."""
    found: list[relax.BindingBlock] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.SeqExpr):
            found.extend(expr.blocks)

    relax.analysis.post_order_visit(func.body, visit)
    yield from found


def _is_same(one: GenericConst, other: GenericConst) -> bool:
    return one.same_as(other) or tvm_ffi.structural_equal(one, other)


def _is_alike(one: relax.Call, other: relax.Call, axis: int | None) -> bool:
    """Whether two calls of one kind differ in tensors alone, and in an extent along an axis."""
    if one.op.name in RESHAPES:
        shapes = [[*call.ty.shape.values] for call in (one, other)]
        if axis is not None and len(shapes[0]) == len(shapes[1]):
            del shapes[0][axis], shapes[1][axis]
        return shapes[0] == shapes[1]
    plain = [
        call.args[1:] if isinstance(call.args[0], relax.Tuple) else call.args
        for call in (one, other)
    ]
    pairs = zip(*plain, strict=True)
    return all(is_tensor(a) or tvm_ffi.structural_equal(a, b) for a, b in pairs)


def _fit(parts: Sequence[relax.Expr], axis: int | None) -> bool:
    """Whether the extents of some tensors are the same, but for an axis."""
    shapes = [list(part.ty.shape.values) for part in parts]
    if axis is not None:
        shapes = [[*shape[:axis], *shape[axis + 1 :]] for shape in shapes]
    return all(shape == shapes[0] for shape in shapes)


def _reshaped(call: relax.Call, axis: int) -> list[int | None] | None:
    """Find the axis whose outermost steps are those of one of a reshape's result."""
    before, after = tensors(call)[0].ty.shape.values, call.ty.shape.values
    if not all(isinstance(extent, tirx.IntImm) for extent in (*before, *after)):
        return None
    outer = prod(map(int, after[:axis]))
    for own in reversed(range(len(before))):
        if prod(map(int, before[:own])) == outer:
            return [own]
    return None
