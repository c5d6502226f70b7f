"""Concatenations as maps: which of their inputs is stored where.

Whoever computes an input may store it there instead: :mod:`tvm_fusion.deploy.memory.concat_parts`.
"""

from collections.abc import Iterator, Sequence

from tvm import ir

from ...core.tir.expressions import call_name
from ...core.tir.loops import constant, simplified
from ...program.stage import Stage

#: Attribute of a kernel that copies inputs side by side and does nothing else: the axis of its
#: output, then where each input begins, in the order of the parameters.
CONCAT = "tvm_fusion.concat"


def concat_of(stages: Sequence[Stage], inputs: Sequence[ir.Var]) -> list[int] | None:
    """Read a map as a concatenation of all inputs of static extents, each as a whole.

    Returns
    -------
    list of int
        As :data:`CONCAT` has it.
    """
    if len(stages) != 1 or len(stages[0].targets) != 1 or len(inputs) < 2:
        return None
    (stage,) = stages
    (target,), (indices,) = stage.targets, stage.indices
    found: dict[ir.Var, tuple[int, int]] = {}
    for part in _choices(stage.values[0]):
        if not isinstance(part, ir.TensorLoad) or part.source in found:
            return None
        place = _place(part, indices)
        if place is None:
            return None
        found[part.source] = place
    axes = {axis for axis, _ in found.values()}
    if set(found) != set(inputs) or len(axes - {-1}) != 1:
        return None
    (axis,) = axes - {-1}
    begins = [found[source][1] for source in inputs]
    end = 0
    for begin, source in sorted(zip(begins, inputs, strict=True), key=lambda pair: pair[0]):
        extent = constant(source.ty.shape[axis])
        if begin != end or extent is None:
            return None
        end += extent
    return [axis, *begins] if end == constant(target.ty.shape[axis]) else None


def _choices(value: ir.Expr) -> Iterator[ir.Expr]:
    """Yield what a value is one of."""
    if isinstance(value, ir.Call) and call_name(value) == "if_then_else":
        yield from (part for arm in value.args[1:] for part in _choices(arm))
    else:
        yield value


def _place(part: ir.TensorLoad, indices: Sequence[ir.Expr]) -> tuple[int, int] | None:
    """Find the axis along which an input is moved, -1 where none, and how far."""
    if len(part.indices) != len(indices):
        return None
    moved = [constant(simplified(i - j)) for i, j in zip(indices, part.indices, strict=True)]
    if any(by is None for by in moved):
        return None
    far = [(axis, by) for axis, by in enumerate(moved) if by]
    if len(far) > 1:
        return None
    return (far[0][0], far[0][1] or 0) if far else (-1, 0)
