"""Strip an exported graph down to what cannot be drawn or inferred again."""

from typing import Any

import numpy as np
import onnx

from benchmarks.zoo import roles, weights


def strip(model: onnx.ModelProto, other: onnx.ModelProto) -> onnx.ModelProto:
    """Remove the weights, source locations and inferred shapes of a model.

    An initializer that differs between two exports with different weights is a weight, or was
    folded from weights, and keeps its name, shape and dtype only. One that is the same is a
    constant of the graph (positions, masks) and stays as it is; of a rotary table only its function
    is kept, as its note.

    Parameters
    ----------
    model, other
        Two exports of one model that differ in their weights alone. ``model`` is changed.

    Returns
    -------
    onnx.ModelProto
        ``model``, its weights blank.

    Raises
    ------
    ValueError
        If the graphs differ in more than their weights, or a weight is not float32 or has no role.
    """
    twins = {tensor.name: tensor for tensor in other.graph.initializer}
    shapes: dict[str, tuple[int, ...]] = {}
    _clear_notes(model)
    _clear_notes(other)
    if list(model.graph.node) != list(other.graph.node) or twins.keys() != {
        tensor.name for tensor in model.graph.initializer
    }:
        raise ValueError("the two exports differ in more than their weights")
    for tensor in model.graph.initializer:
        twin = twins[tensor.name]
        if tensor.raw_data == twin.raw_data:
            _note_rotary(tensor)
            continue
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor.dims != twin.dims:
            raise ValueError(f"the initializer {tensor.name} is no float32 weight")
        tensor.ClearField("raw_data")
        shapes[tensor.name] = tuple(tensor.dims)
    del model.graph.value_info[:]
    roles.recipes(model.graph, shapes)
    return model


def _note_rotary(tensor: onnx.TensorProto) -> None:
    if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) < 2 or tensor.dims[-1] % 2:
        return
    values = onnx.numpy_helper.to_array(tensor)
    for function in ("cos", "sin"):
        if np.allclose(values, weights.rotary(function, values.shape), rtol=0, atol=1e-5):
            tensor.ClearField("raw_data")
            tensor.doc_string = function


def _clear_notes(message: Any) -> None:
    """Clear source locations and exporter notes, everywhere below ``message``."""
    for descriptor, value in message.ListFields():
        if descriptor.name in ("doc_string", "metadata_props"):
            message.ClearField(descriptor.name)
        elif descriptor.message_type is not None:
            for child in [value] if hasattr(value, "ListFields") else value:
                _clear_notes(child)
