"""Small tensors whose elements are numbers and expressions over the symbolic dimensions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir import GenericConst, is_prim_expr

from ..tensor_types import static
from .elements import Real
from .facts import Facts, as_expr

# Elements of a tensor that is evaluated; shapes, axes and scalars are far below.
LARGEST = 256
DTYPES = ("bool", "int32", "int64", "float32", "float64")


@dataclass(frozen=True, eq=False)
class SymbolicArray:
    """A tensor of known elements."""

    # Of objects: int or a TIR expression, in boolean tensors bool or a condition, in floating point
    # numpy's scalars or :class:`.elements.Real`.
    elements: np.ndarray
    dtype: str  # one of ``DTYPES``

    @property
    def is_constant(self) -> bool:
        """Whether no element depends on a dimension."""
        return not any(isinstance(e, (ir.Expr, Real)) for e in self.elements.flat)

    def numpy(self) -> np.ndarray:
        """Return the elements of a constant."""
        return np.array(self.elements.tolist(), self.dtype).reshape(self.elements.shape)

    def expressions(self) -> list[Any]:
        """List the expressions in it."""
        found = []
        for element in self.elements.flat:
            found += [element.over, element.under] if isinstance(element, Real) else [element]
        return [value for value in found if isinstance(value, ir.Expr)]

    def standing(self) -> Any:
        """Return what stands for it in the import: a constant, a shape, an extent, or itself."""
        if self.is_constant:
            return relax.const(self.numpy(), self.dtype)
        if self.dtype == "int64" and self.elements.ndim == 1:
            return relax.ShapeExpr([as_expr(e) for e in self.elements])
        if self.dtype == "int64" and self.elements.ndim == 0:
            return as_expr(self.elements.item())
        return self

    def tensor(self, bb: Any) -> Any:
        """Emit the tensor."""
        if self.is_constant:
            return relax.const(self.numpy(), self.dtype)
        flat = list(self.elements.flat)
        if "float" in self.dtype:
            reals = [e if isinstance(e, Real) else Real.of_constant(e) for e in flat]
            over, under = (
                bb.emit(relax.op.astype(_tensor(bb, part), self.dtype))
                for part in ([r.over for r in reals], [r.under for r in reals])
            )
            value = bb.emit(relax.op.divide(over, under))
        else:
            value = _tensor(bb, [_number(e) for e in flat])
        value = bb.emit(relax.op.reshape(value, relax.ShapeExpr(self.elements.shape)))
        return value if self.dtype == "int64" else bb.emit(relax.op.astype(value, self.dtype))


def _number(element: Any) -> Any:
    if isinstance(element, ir.Expr) and str(element.ty.dtype) == "bool":
        return tirx.Select(element, tirx.IntImm("int64", 1), tirx.IntImm("int64", 0))
    return element


def _tensor(bb: Any, numbers: Sequence[Any]) -> Any:
    return bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([as_expr(n) for n in numbers])))


def array_of(value: Any) -> SymbolicArray | None:
    """Read what stands for a value in the import; None for what is not known, or large."""
    if isinstance(value, SymbolicArray):
        return value
    if isinstance(value, GenericConst):
        dtype, shape = str(value.value.dtype), value.value.shape
        if dtype not in DTYPES or math.prod(shape) > LARGEST:
            return None
        return of_numpy(value.value.numpy())
    if isinstance(value, relax.ShapeExpr):
        return of_extents(list(value.values))
    if value is not None and isinstance(value, ir.Expr) and is_prim_expr(value):
        if str(value.ty.dtype) != "int64":
            return None
        extent = static(value)
        elements = np.empty((), object)
        elements[()] = value if extent is None else extent
        return SymbolicArray(elements, "int64")
    return None


def of_numpy(array: np.ndarray) -> SymbolicArray:
    """Make an array of numbers."""
    elements = np.empty(array.shape, object)
    for place in np.ndindex(array.shape):
        value = array[place]
        elements[place] = value if array.dtype.kind == "f" else value.item()
    return SymbolicArray(elements, array.dtype.name)


def of_extents(extents: Sequence[Any], facts: Facts | None = None) -> SymbolicArray:
    """Make an int64 tensor of one axis of a shape."""
    elements = np.empty(len(extents), object)
    for i, extent in enumerate(extents):
        known = static(extent)
        elements[i] = known if known is not None else extent
        if facts is not None:
            elements[i] = facts.simplify(elements[i])
    return SymbolicArray(elements, "int64")
