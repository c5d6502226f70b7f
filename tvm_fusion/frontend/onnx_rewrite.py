"""Rewriting ONNX models by onnx's own tools: to a newer opset, and functions into their bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import version_converter
from onnx.inliner import inline_selected_functions

from .onnx_types import set_shape, without_weights


def upgraded(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Translate a model to a newer opset; the model itself where onnx cannot do it."""
    try:
        return version_converter.convert_version(model, opset)
    except Exception:  # guard: onnx raises anything; preflight then names the opset
        return model


def inlined(
    model: onnx.ModelProto,
    names: Sequence[tuple[str, str]],
    extents: Mapping[str, Sequence[int | None]],
) -> onnx.ModelProto:
    """Replace operators that ONNX defines by a function with that function's operators.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which stays as it is.
    names : sequence of (str, str)
        Domain and name of the operators.
    extents : mapping of str to sequence of (int or None)
        Shapes of the inputs, on which some functions depend.

    Returns
    -------
    onnx.ModelProto
        The same initializers; the model itself where onnx cannot do it.
    """
    light = without_weights(model)
    for info in light.graph.input:
        if info.name in extents:
            set_shape(info, extents[info.name])
    try:
        light = inline_selected_functions(light, list(names), inline_schema_functions=True)
    except Exception:  # guard: onnx raises anything; preflight then names the operators
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(light.graph.node)
    del result.opset_import[:]
    result.opset_import.extend(light.opset_import)
    return result
