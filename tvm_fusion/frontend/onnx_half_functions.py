"""Compute ONNX's functions over half types in float32, between casts of inputs and results.

The body of a function rounds what it computes at each of its nodes; of what belongs to one
operator that is rounded once: see :mod:`.half_intermediates`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx
from onnx import TensorProto, helper

from .onnx_types import ValueType
from .tensor_types import HALF

_ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def between_casts(
    model: onnx.ModelProto, names: Container[tuple[str, str]], types: Mapping[str, ValueType]
) -> onnx.ModelProto:
    """Put casts around the nodes that are about to be replaced by a function's body.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is changed.
    names : container of (str, str)
        Domain and name of the operators.
    types : mapping of str to ValueType
        Types of the model's values.
    """
    halves = {name: known.dtype for name, known in types.items() if known.dtype in HALF}
    if not halves:
        return model
    new: list[onnx.NodeProto] = []
    for node in model.graph.node:
        is_function = (node.domain, node.op_type) in names
        if not is_function or not any(name in halves for name in node.input):
            new.append(node)
            continue
        inner, behind = onnx.NodeProto(), []
        inner.CopyFrom(node)
        for i, name in enumerate(node.input):
            if name in halves:
                inner.input[i] = f"{name}_wide_{len(new)}"
                new.append(_cast(name, inner.input[i], TensorProto.FLOAT))
        for i, name in enumerate(node.output):
            if name in halves:
                inner.output[i] = f"{name}_wide"
                behind.append(_cast(inner.output[i], name, _ELEMENTS[halves[name]]))
        new += [inner, *behind]
    del model.graph.node[:]
    model.graph.node.extend(new)
    return model


def _cast(given: str, result: str, element: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [given], [result], to=element, name=f"{result}_cast")
