"""Record which attributes and optional inputs of a node its converter reads.

What a converter does not ask for, it ignores, and the model comes out wrong. So converters, TVM's
and ours, are given containers that record what they ask for; a node with an attribute that differs
from its default, or an optional input, that nothing asked for is refused.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs, helper
from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

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
    opset : int
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
