"""An ONNX node as converters see it: Relax inputs, attributes, shapes, constants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

from ...core.constants.narrow_types import NARROW
from ..registry import Unsupported
from ..shape_values import Facts, SymbolicArray
from ..tensor_types import accumulation_dtype, dtype_of, static

# Record which attributes and optional inputs of a node its converter reads.
#
# What a converter does not ask for, it ignores, and the model comes out wrong. So converters,
# TVM's and ours, are given containers that record what they ask for; a node with an attribute that
# differs from its default, or an optional input, that nothing asked for is refused.

_MOST_ELEMENTS = 2.0**48  # of a tensor; more than any memory holds


# What changes nothing in the results of inference, or says again what is known otherwise.
_REDUNDANT = {
    ("Conv", "kernel_shape"),  # the weight has it
    ("ConvTranspose", "kernel_shape"),
    ("Dropout", "seed"),  # without training_mode nothing is drawn
    ("Dropout", "ratio"),
    ("LayerNormalization", "stash_type"),  # computed in float32 or wider
    ("BatchNormalization", "momentum"),  # of the running statistics, which only training updates
    ("MaxPool", "storage_order"),  # of the indices
    ("MaxPool", "count_include_pad"),
    ("Split", "num_outputs"),  # the node's outputs say it
    ("Upsample", "mode"),
    ("Cast", "saturate"),  # of 8-bit floats, whose converter reads it
    ("Cast", "round_mode"),
    ("CastLike", "saturate"),
    ("CastLike", "round_mode"),
    ("Gelu", "approximate"),
    ("Softmax", "axis"),
}
_OLD = {"consumed_inputs", "is_test", "spatial"}


class ReadAttributes(dict):
    """A node's attributes; ``read`` collects the names that were asked for."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """Return an attribute and record that it was asked for."""
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        """Tell whether an attribute is there and record the question."""
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute or the default, and record that it was asked for."""
        self.read.add(name)
        return super().get(name, default)


class ReadInputs(onnx_input):
    """A node's inputs, None for absent ones; ``read`` collects the indices that were asked for."""

    def __init__(self, values: Any = ()):
        super().__init__(values)
        self.read: set[int] = set()

    def __getitem__(self, item: Any) -> Any:
        """Return an input, or None past the last, and record that it was asked for."""
        if isinstance(item, int):  # a slice asks for each of its items
            self.read.add(item)
        return super().__getitem__(item)

    def __iter__(self) -> Any:
        """Return all inputs, which counts as asking for each."""
        self.read.update(range(len(self)))
        return super().__iter__()

    def __add__(self, other: Any) -> Any:
        """Return a longer list, which counts as asking for each input."""
        self.read.update(range(len(self)))
        return onnx_input(super().__add__(other))


def ignored(
    node: onnx.NodeProto, opset: int, attributes: ReadAttributes, inputs: ReadInputs
) -> list[str]:
    """Describe what a node says and its converter did not ask for.

    Parameters
    ----------
    opset
        Version of the standard operators.
    attributes, inputs : ReadAttributes, ReadInputs
        What the converter was given.

    Returns
    -------
    list of str
        Such as ``attribute antialias=1`` and ``input training_mode``.
    """
    schema = None
    if not node.domain or node.domain == "ai.onnx":
        schema = defs.get_schema(node.op_type, opset, "") if _has(node.op_type, opset) else None
    found = []
    for attribute in node.attribute:
        name = attribute.name
        if name in attributes.read or (node.op_type, name) in _REDUNDANT or name in _OLD:
            continue
        value = helper.get_attribute_value(attribute)
        if schema is not None and name in schema.attributes:
            default = schema.attributes[name].default_value
            if default.type and helper.get_attribute_value(default) == value:
                continue
        shown = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
        found.append(f"attribute {name}={shown}" if isinstance(shown, (int, float, str)) else name)
    for i, value in enumerate(list.__iter__(inputs)):
        if value is not None and i not in inputs.read:
            formal = schema.inputs[i] if schema is not None and i < len(schema.inputs) else None
            if formal is None or formal.option == defs.OpSchema.FormalParameterOption.Optional:
                found.append(f"input {formal.name if formal is not None else i}")
    return found


def _has(op_type: str, opset: int) -> bool:
    try:
        return bool(defs.has(op_type, opset, ""))
    except (RuntimeError, ValueError):
        return False


@dataclass
class Node:
    """One node on its way to Relax.

    Attributes
    ----------
    proto
        As the model has it.
    inputs
        Expressions; None for an input that is left out. Attributes other than their defaults and
        optional inputs that a converter never reads are refused, so none is ignored silently.
    opset
        Version of the standard operators.
    builder : tvm.relax.BlockBuilder
        Where expressions are emitted.
    convert
        The importer's conversion of an operator; see :meth:`apply`.
    facts
        What is known about the symbolic dimensions.
    used
        For each output, whether something reads it.
    types : mapping of str to ValueType
        What ONNX infers about the model's values.
    known
        For each input, its elements as far as they are numbers and extents.
    match
        See :meth:`matched`.
    """

    proto: onnx.NodeProto
    inputs: ReadInputs
    opset: int
    builder: Any
    convert: Callable[..., Any]
    facts: Facts = field(default_factory=lambda: Facts({}))
    used: tuple[bool, ...] = (True,)
    types: Mapping[str, Any] = field(default_factory=dict)
    known: Sequence[SymbolicArray | None] = ()
    match: Callable[[Any, Sequence[Any]], Any] = lambda value, shape: value
    attributes: ReadAttributes = field(init=False)

    def __post_init__(self) -> None:
        values = ((a.name, helper.get_attribute_value(a)) for a in self.proto.attribute)
        self.attributes = ReadAttributes(
            (name, value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)
            for name, value in values
        )

    @property
    def op_type(self) -> str:
        """Name of the operator."""
        return str(self.proto.op_type)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, strings decoded."""
        return self.attributes.get(name, default)

    def has(self, index: int) -> bool:
        """Tell whether an input is there."""
        return self.inputs[index] is not None

    def uses(self, index: int) -> bool:
        """Tell whether something reads an output."""
        return index < len(self.used) and self.used[index]

    def constant(self, index: int) -> np.ndarray | None:
        """Return the elements of an input that is a constant; None for any other and for none."""
        value = self.inputs[index]
        if isinstance(value, GenericConst):
            return value.value.numpy()
        if isinstance(value, relax.ShapeExpr):
            extents = [static(extent) for extent in value]
            return None if None in extents else np.array(extents, "int64")
        return None

    def required_constant(self, index: int, name: str) -> np.ndarray:
        """Return the elements of an input that has to be a constant."""
        found = self.constant(index)
        if found is None:
            raise Unsupported(
                f"whose {name} is computed or an input of the model",
                f"make {name} an initializer",
            )
        return found

    def extents(self, index: int) -> list[Any] | None:
        """Return the elements of an input of integers, numbers and expressions over dimensions.

        None where an element is known only at run time.
        """
        found = self.known[index] if index < len(self.known) else None
        _ = self.inputs[index]  # which was asked for
        if found is None or "int" not in found.dtype:
            return None
        return list(found.elements.flat)

    def known_symbolic(self, index: int) -> bool:
        """Tell whether an input's elements are expressions over the dimensions."""
        found = self.known[index] if index < len(self.known) else None
        return found is not None and not found.is_constant

    def shape(self, index: int = 0) -> list[Any]:
        """Return an input's extents, ints where they are known."""
        ty = self.inputs[index].ty
        if not isinstance(ty, relax.TensorType) or ty.shape is None:
            raise Unsupported(
                "on a tensor whose shape is known only at run time",
                "compute its shape of shapes (Shape) and not of elements of tensors",
            )
        return [extent if (n := static(extent)) is None else n for extent in ty.shape]

    def matched(self, value: Any, shape: Sequence[Any]) -> Any:
        """Bind a tensor in a shape that it has to have, which is checked where it is not proved."""
        return self.match(value, shape)

    def static_shape(self, index: int = 0) -> list[int]:
        """Return an input's extents, none of which may be symbolic."""
        shape = self.shape(index)
        if not all(isinstance(extent, int) for extent in shape):
            raise Unsupported(
                "over symbolic extents", "bind them with --dim NAME=VALUE, or dims={...}"
            )
        return shape

    def dtype(self, index: int = 0) -> str:
        """Return an input's element type."""
        return dtype_of(self.inputs[index])

    def narrow_dtype(self, index: int = 0) -> str:
        """Return an input's element type if it is stored as bytes, as narrow types are."""
        name = self.proto.input[index] if index < len(self.proto.input) else ""
        known = self.types.get(name)
        return known.dtype if known is not None and known.dtype in NARROW else ""

    def cast(self, value: Any, dtype: str) -> Any:
        """Cast a tensor where its dtype is another."""
        value = self.builder.normalize(value)
        return value if dtype_of(value) == dtype else relax.op.astype(value, dtype)

    def wide(self, value: Any) -> Any:
        """Bind a tensor in the dtype in which sums of its own are taken."""
        return self.emit(self.cast(value, accumulation_dtype(dtype_of(value))))

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a variable, so that its type is known."""
        return self.builder.emit(expr)

    def apply(self, op_type: str, *inputs: Any, **attributes: Any) -> Any:
        """Convert a standard operator of one output, applied to expressions."""
        return self.convert(op_type, inputs, attributes)[0]

    def apply_all(self, op_type: str, outputs: int, *inputs: Any, **attributes: Any) -> list[Any]:
        """Convert a standard operator of several outputs, applied to expressions."""
        return self.convert(op_type, inputs, attributes, outputs)

    def computed_extents(self, wanted: Any, fits: Any, known: Sequence[Any]) -> list[Any]:
        """Read extents from a tensor: numbers where they are known, else variables.

        Where one of the conditions does not hold, all are -1, of which nothing can be allocated.

        Parameters
        ----------
        wanted : tvm.relax.Expr
            The extents, int64.
        known : sequence of int or Expr or None
            What is known of each.
        """
        fits = self.emit(relax.op.min(relax.op.astype(self.emit(fits), "int8")))
        wanted = relax.op.where(relax.op.astype(fits, "bool"), wanted, relax.const(-1, "int64"))
        shape = self.emit(relax.op.tensor_to_shape(self.emit(wanted)))
        extents = [
            tirx.Var(f"extent_{i}", "int64") if d is None else d for i, d in enumerate(known)
        ]
        self.builder.match_cast(shape, relax.ShapeType(extents))
        return extents

    def is_small(self, extents: Any, others: Sequence[Any] = ()) -> Any:
        """Tell whether so many elements can be counted, which 64 bits do not tell.

        Parameters
        ----------
        others : sequence of int or Expr
            Further extents of the same tensor.
        """
        count = self.emit(relax.op.prod(relax.op.astype(extents, "float64")))
        if others:
            rest = self.emit(relax.op.shape_to_tensor(relax.ShapeExpr(list(others))))
            rest = self.emit(relax.op.prod(relax.op.astype(rest, "float64")))
            count = self.emit(relax.op.multiply(count, rest))
        most = relax.const(_MOST_ELEMENTS, "float64")
        return self.emit(relax.op.less_equal(relax.op.abs(count), most))

    def emit_te(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Bind the result of a tensor expression function."""
        return self.builder.emit_te(function, *arguments, **options)
