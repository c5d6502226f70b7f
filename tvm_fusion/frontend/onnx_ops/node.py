"""What a converter of an ONNX operator is given: the node, its inputs as Relax, its attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax
from tvm.ir import GenericConst

from ...errors import UserError
from ...signature import DimRange


@dataclass
class Node:
    """One node on its way to Relax.

    Attributes
    ----------
    proto : onnx.NodeProto
        As the model has it.
    inputs : sequence
        Expressions; None for an input that is left out.
    opset : int
        Version of the standard operators.
    builder : tvm.relax.BlockBuilder
        Where expressions are emitted.
    ranges : mapping of tvm.tirx.Var to DimRange
        What is known about the symbolic dimensions.
    used : tuple of bool
        For each output, whether something reads it.
    """

    proto: onnx.NodeProto
    inputs: Sequence[Any]
    opset: int
    builder: Any
    ranges: Mapping[Any, DimRange] = field(default_factory=dict)
    used: tuple[bool, ...] = (True,)

    @property
    def op_type(self) -> str:
        """Name of the operator."""
        return str(self.proto.op_type)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, strings decoded."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def has(self, index: int) -> bool:
        """Tell whether an input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def uses(self, index: int) -> bool:
        """Tell whether something reads an output."""
        return index < len(self.used) and self.used[index]

    def constant(self, index: int) -> np.ndarray | None:
        """Return the elements of an input that is a constant; None for any other and for none."""
        value = self.inputs[index] if self.has(index) else None
        if isinstance(value, GenericConst):
            return value.value.numpy()
        if isinstance(value, relax.ShapeExpr):
            extents = [static(extent) for extent in value]
            return None if None in extents else np.array(extents, "int64")
        return None

    def required_constant(self, index: int, name: str) -> np.ndarray:
        """Return the elements of an input that has to be a constant; UserError where it is not."""
        found = self.constant(index)
        if found is None:
            raise self.refused(
                f"whose {name} is computed or an input of the model",
                f"make {name} an initializer",
            )
        return found

    def refused(self, what: str, advice: str) -> UserError:
        """Make the error for a node that cannot be converted; ``what`` follows its name."""
        name = (
            f"{self.proto.op_type} '{self.proto.name}'" if self.proto.name else self.proto.op_type
        )
        return UserError(f"operator {name} {what}", None, advice)

    def shape(self, index: int = 0) -> list[Any]:
        """Return an input's extents, ints where they are known; UserError for an unknown shape."""
        ty = self.inputs[index].ty
        if not isinstance(ty, relax.TensorType) or ty.shape is None:
            raise self.refused(
                "on a tensor whose shape is known only at run time", "export it with known shapes"
            )
        return [extent if (n := static(extent)) is None else n for extent in ty.shape]

    def static_shape(self, index: int = 0) -> list[int]:
        """Return an input's extents; UserError where one is symbolic."""
        shape = self.shape(index)
        if not all(isinstance(extent, int) for extent in shape):
            raise self.refused(
                "over symbolic extents", "bind them with --dim NAME=VALUE, or dims={...}"
            )
        return shape

    def dtype(self, index: int = 0) -> str:
        """Return an input's element type."""
        return str(self.inputs[index].ty.dtype.dtype)

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a variable, so that its type is known."""
        return self.builder.emit(expr)

    def emit_te(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Bind the result of a tensor expression function."""
        return self.builder.emit_te(function, *arguments, **options)


def static(extent: Any) -> int | None:
    """Return an extent as an int, None where it is symbolic."""
    if isinstance(extent, int):
        return extent
    value = getattr(extent, "value", None)
    return int(value) if isinstance(value, int) else None
