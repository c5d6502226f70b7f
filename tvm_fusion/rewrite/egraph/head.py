"""Operators without their operands: what nodes of an e-graph are labelled with."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import GenericConst

from ...core.constants.weight_names import of_no_weight
from ...ecg.record import describe


@dataclass(frozen=True, eq=False)
class Head:
    """An operator with its attributes and the operands that are no tensors; or a leaf.

    One object stands for equal heads of an e-graph, so they are compared by identity.
    """

    name: str  # Relax name; of a leaf ``leaf``
    key: tuple = field(repr=False)  # equal for heads that compute the same of the same operands
    call: relax.Call | None = field(repr=False)  # a call that it was read from; None for a leaf

    def apply(self, operands: Sequence[ir.Expr]) -> relax.Call:
        """Write the call of the operator on other tensors, not normalised."""
        if self.call is None:
            raise ValueError("a leaf is not an operator")
        given = iter(operands)

        def place(arg: Any) -> Any:
            if is_tensor(arg):
                return next(given)
            if isinstance(arg, relax.Tuple):
                return relax.Tuple([place(f) for f in arg.fields])
            return arg

        args = [place(arg) for arg in self.call.args]
        return relax.Call(self.call.op, args, self.call.attrs, self.call.ty_args)


class Heads:
    """Heads of one search, one object for equal ones.

    Attributes
    ----------
    values : dict of Head to GenericConst
        The small constants among the leaves.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Head] = {}
        self.values: dict[Head, GenericConst] = {}

    def of(self, call: relax.Call) -> Head:
        """Find the head of a call; ways to write one list of axes give one head."""
        call = _with_plain_axes(call)
        key = (describe(call).to_json(), tuple(_shape_of(arg) for arg in call.args))
        if key not in self._known:
            self._known[key] = Head(str(call.op.name), key, call)
        return self._known[key]

    def leaf(self, kind: str, index: int) -> Head:
        """Find the head of a region's leaf: an ``input``, or a large ``constant``."""
        return self._leaf((kind, index))

    def value(self, array: np.ndarray, dtype: str) -> Head:
        """Find the head of a small constant."""
        head = self._leaf(("value", dtype, array.shape, array.tobytes()))
        if head not in self.values:
            self.values[head] = of_no_weight(relax.const(array, dtype))
        return head

    def _leaf(self, key: tuple) -> Head:
        return self._known.setdefault(key, Head("leaf", key, None))


def operands(call: relax.Call) -> list[ir.Expr]:
    """List the tensors that a call reads, those in tuples included."""
    found: list[ir.Expr] = []

    def visit(arg: Any) -> None:
        if is_tensor(arg):
            found.append(arg)
        elif isinstance(arg, relax.Tuple):
            for part in arg.fields:
                visit(part)

    for arg in call.args:
        visit(arg)
    return found


def is_tensor(expr: Any) -> bool:
    """Whether an operand is a tensor."""
    return isinstance(expr, relax.Var | GenericConst | relax.Call) and isinstance(
        expr.ty, relax.TensorType
    )


def type_key(ty: relax.TensorType) -> Hashable:
    """Tell types apart; symbolic dimensions of one name may be different ones."""
    return str(ty.dtype), tuple(_expr_key(extent) for extent in ty.shape.values)


_REDUCTIONS = tuple(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod"))


def _with_plain_axes(call: relax.Call) -> relax.Call:
    """Count the axes of reductions and permutations from the front, and write all of them."""
    name = call.op.name
    if name not in _REDUCTIONS and name != "relax.permute_dims":
        return call
    (data,), rank, attrs = call.args, call.args[0].ty.ndim, call.attrs
    if rank < 0:
        return call
    given = attrs.axes if name == "relax.permute_dims" else attrs.axis
    axes = range(rank) if given is None else [int(axis) % rank for axis in given]
    if name == "relax.permute_dims":
        return relax.op.permute_dims(data, [*(reversed(axes) if given is None else axes)])
    make = getattr(relax.op, name.removeprefix("relax."))
    return make(data, sorted(axes), attrs.keepdims)


def _shape_of(arg: Any) -> Hashable:
    """Tell operands that are no tensors apart; a tensor is a blank."""
    if is_tensor(arg):
        return "_"
    if isinstance(arg, relax.Tuple):
        return tuple(_shape_of(part) for part in arg.fields)
    if isinstance(arg, relax.ShapeExpr):
        return ("shape", *(_expr_key(v) for v in arg.values))
    if isinstance(arg, relax.Var):
        return hash(arg)
    return _expr_key(arg)


def _expr_key(expr: Any) -> Hashable:
    if isinstance(expr, tirx.IntImm | tirx.FloatImm):
        return expr.value
    if isinstance(expr, ir.Expr) and isinstance(expr.ty, ir.PrimType):
        symbols = tirx.analysis.undefined_vars(expr)
        return str(expr), tuple(hash(v) for v in symbols)
    return tvm_ffi.structural_hash(expr), str(expr)
