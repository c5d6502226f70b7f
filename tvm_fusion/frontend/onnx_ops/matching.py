"""Tensors that an operator joins must have equal extents: by proof, or by a check at run time.

ONNX says of ``Add(x, y)`` that extents are equal or one. Where neither follows from arithmetic, as
of ``h`` and ``2*((h + 1)//2)``, the tensors are bound in one shape: what the ranges of dimensions
prove costs nothing, and what they leave open is checked at the call.
"""

from collections.abc import Sequence
from typing import Any

import onnx
import tvm
from tvm import ir, relax

from ...signature import EqualExtents
from ..dimensions.extents import from_tir
from ..registry import Unsupported
from ..shape_values import Facts
from ..shape_values.facts import as_expr, variables_of
from ..tensor_types import dtype_of, static

#: Operators that broadcast all of their inputs.
BROADCAST = {
    *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
    *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow"),
    *("PRelu", "Sub", "Sum", "Where", "Xor"),
}


class Matcher:
    """Match the extents of operators' inputs, so that TVM can prove them equal.

    Parameters
    ----------
    facts
        What is known about the symbolic dimensions.
    """

    def __init__(self, bb: Any, facts: Facts):
        self._bb, self._facts = bb, facts
        self._plain = tvm.sym.Analyzer()  # proves what TVM's own type inference does
        #: Whether what is converted runs in every call.
        self.is_sure = True
        #: What is checked at the call.
        self.required: list[EqualExtents] = []

    def joined(self, node: onnx.NodeProto, inputs: Sequence[Any], title: str) -> list[Any]:
        """Return the inputs of a node that joins tensors, with extents that are equal."""
        shapes = [_shape(value) for value in inputs]
        if not any(shape and any(static(e) is None for e in shape) for shape in shapes):
            return list(inputs)
        if node.op_type in BROADCAST:
            rank = max(len(shape) for shape in shapes if shape is not None)
            axes = list(range(-rank, 0))
        elif node.op_type == "Concat":
            rank = max(len(shape) for shape in shapes if shape is not None)
            along = next((a.i for a in node.attribute if a.name == "axis"), 0) % rank
            axes = [axis for axis in range(-rank, 0) if axis + rank != along]
        elif node.op_type == "MatMul":
            return self._product(inputs, shapes, title)
        else:
            return list(inputs)
        wanted = [None if shape is None else list(shape) for shape in shapes]
        for axis in axes:
            here = [s for s in wanted if s is not None and len(s) >= -axis]
            group = [s for s in here if node.op_type == "Concat" or static(s[axis]) != 1]
            if len(group) > 1:
                best = min((s[axis] for s in group), key=_length)
                for shape in group:
                    shape[axis] = best
        return [
            value if shape is None else self.match(value, shape, title)
            for value, shape in zip(inputs, wanted, strict=True)
        ]

    def _product(self, inputs: Sequence[Any], shapes: Sequence[Any], title: str) -> list[Any]:
        one, other = shapes
        if one is None or other is None or len(one) < 2 or len(other) < 2:
            return list(inputs)
        one, other = list(one), list(other)
        one[-1] = other[-2] = min((one[-1], other[-2]), key=_length)
        for axis in range(-min(len(one), len(other)), -2):
            if 1 not in (static(one[axis]), static(other[axis])):
                one[axis] = other[axis] = min((one[axis], other[axis]), key=_length)
        pairs = zip(inputs, (one, other), strict=True)
        return [self.match(value, shape, title) for value, shape in pairs]

    def match(self, value: Any, shape: Sequence[Any], title: str) -> Any:
        """Bind a tensor in a shape that it has to have.

        Raises
        ------
        Unsupported
            Where an extent is another one for all sizes in the ranges.
        """
        have = _shape(value)
        assert have is not None
        axes, is_checked = [], True
        for axis, (own, wanted) in enumerate(zip(have, shape, strict=True)):
            if self._is_plain(own, wanted):
                continue
            axes.append(axis)
            if self._facts.equal(own, wanted):
                continue
            is_checked &= self.is_sure and self._facts.knows(own, wanted)
            one, other = from_tir(as_expr(own)), from_tir(as_expr(wanted))
            if self._facts.decide(as_expr(own) == as_expr(wanted)) is False:
                raise Unsupported(
                    f"joins extents {one} and {other}, which differ for all sizes in the ranges",
                    "correct the model, or give other ranges",
                )
            found = EqualExtents(str(one), str(other), title)
            is_checked &= "T." not in f"{one}{other}"  # what a signature can say
            if self.is_sure and found not in self.required:
                self.required.append(found)
        if not axes:
            return value
        if is_checked:
            # The elements below the extent, which are all of them: a slice is fused like any other
            # operator. TVM 0.27 recurses without end over a MatchCast of ``2*((h + 1)//2)`` to h.
            ends = [as_expr(shape[axis]) for axis in axes]
            zeros = [0] * len(axes)
            return self._bb.emit(
                relax.op.strided_slice(value, axes, zeros, ends, assume_inbound=True)
            )
        for axis in axes:
            own = {var.name for var in variables_of(as_expr(have[axis]))}
            if own & {var.name for var in variables_of(as_expr(shape[axis]))}:
                one, other = from_tir(as_expr(have[axis])), from_tir(as_expr(shape[axis]))
                raise Unsupported(
                    f"joins extents {one} and {other} in a branch or over sizes known at run time",
                    "give ranges with a step, by which they are equal",
                )
        ty = relax.TensorType([as_expr(extent) for extent in shape], dtype_of(value))
        return self._bb.match_cast(self._bb.emit(value), ty)

    def _is_plain(self, own: Any, wanted: Any) -> bool:
        if static(own) is not None and static(wanted) is not None:
            return static(own) == static(wanted)
        return bool(self._plain.can_prove_equal(as_expr(own), as_expr(wanted)))


def _length(extent: Any) -> tuple[bool, int]:
    """Order extents: numbers, then short expressions."""
    return static(extent) is None, len(str(from_tir(as_expr(extent))))


def _shape(value: Any) -> list[Any] | None:
    ty = getattr(value, "ty", None)
    if not isinstance(value, ir.Expr) or not isinstance(ty, relax.TensorType):
        return None
    return list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else None
