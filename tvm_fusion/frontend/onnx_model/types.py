"""Infer the types of a model's values with ONNX, to compare an import with."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnx
from onnx import helper

# A tensor of at most so many bytes may be a shape or axes, which inference needs to see.
_SMALL = 4096


class ValueType(NamedTuple):
    """Type of one value."""

    dtype: str  # as numpy or ml_dtypes name it; ``string`` for strings
    shape: tuple[int | None, ...] | None  # none for a rank or an extent that is not known


def without_weights(model: onnx.ModelProto, largest: int = _SMALL) -> onnx.ModelProto:
    """Copy a model, initializers of more than ``largest`` bytes turned into inputs of their types.

    The copy stays small, however large the model, so that it can be serialized.
    """
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    stored = {tensor.name for tensor in model.graph.initializer}
    graph.input.extend(info for info in model.graph.input if info.name not in stored)
    for tensor in model.graph.initializer:
        # Reading the size of a message in bytes takes as long as writing it.
        if math.prod(tensor.dims) <= 2 * largest and tensor.ByteSize() <= largest:
            graph.initializer.append(tensor)
        else:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return light


def infer_types(
    model: onnx.ModelProto, extents: Mapping[str, Sequence[int | None]]
) -> dict[str, ValueType]:
    """Infer the types of a model's values.

    Parameters
    ----------
    model
        The model, local functions inlined.
    extents
        Shapes of the inputs; None stands for a symbolic extent. What the model declares about the
        shapes of its other values is left out, since bound dimensions may contradict it.

    Returns
    -------
    dict of str to ValueType
        By name, values inside of branches included; without those that ONNX cannot infer.
    """
    light = without_weights(model)
    for info in light.graph.input:
        if info.name in extents:
            set_shape(info, extents[info.name])
    for info in light.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for node in light.graph.node:
        # Inference of ONNX takes STFT without the attribute for two-sided, against its default.
        if node.op_type == "STFT" and all(each.name != "onesided" for each in node.attribute):
            node.attribute.append(helper.make_attribute("onesided", 1))
    try:
        inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except Exception:  # guard: inference only adds a check; what it cannot read, it cannot check
        return {}
    return dict(_types(inferred.graph))


def set_shape(info: onnx.ValueInfoProto, extents: Sequence[int | None]) -> None:
    """Set an input's shape; each unknown extent gets a name of its own."""
    shape = info.type.tensor_type.shape
    del shape.dim[:]
    for axis, extent in enumerate(extents):
        dim = shape.dim.add()
        if extent is None:
            dim.dim_param = f"{info.name}_{axis}"
        else:
            dim.dim_value = extent


def _types(graph: onnx.GraphProto) -> Iterator[tuple[str, ValueType]]:
    for info in (*graph.input, *graph.value_info, *graph.output):
        known = value_type(info)
        if known is not None:
            yield info.name, known
    for tensor in graph.initializer:
        yield tensor.name, ValueType(dtype_name(tensor.data_type), tuple(tensor.dims))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _types(attribute.g)
            for inner in attribute.graphs:
                yield from _types(inner)


def value_type(info: onnx.ValueInfoProto) -> ValueType | None:
    """Read a declared type; None for what is no tensor or has no element type."""
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not tensor.elem_type:
        return None
    shape: Any = None
    if tensor.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return ValueType(dtype_name(tensor.elem_type), shape)


def dtype_name(elem_type: int) -> str:
    """Name an element type of ONNX as numpy or ml_dtypes does; numpy's strings are objects."""
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(helper.tensor_dtype_to_np_dtype(elem_type).name)
    except (KeyError, TypeError, ValueError):
        known = onnx.TensorProto.DataType.values()
    if elem_type not in known:
        return f"element type {elem_type}"
    return str(onnx.TensorProto.DataType.Name(elem_type)).lower()
