"""Rewrite ONNX models with onnx's own tools: convert the opset, inline functions."""

from collections.abc import Callable, Container, Mapping, Sequence

import onnx
from onnx import version_converter

from .functions import inline_by_name, inline_standard_functions
from .types import infer_types, set_shape, without_weights

Extents = Mapping[str, Sequence[int | None]]


def upgraded(model: onnx.ModelProto, opset: int, extents: Extents) -> onnx.ModelProto:
    """Translate a model to a newer opset; the model itself where onnx cannot do it.

    Parameters
    ----------
    model
        The model, which stays as it is.
    opset
        Version of the standard operators.
    extents : mapping of str to sequence of (int or None)
        Shapes of the inputs, which old broadcasts depend on.
    """
    model = _with_slopes_of_channels(model, extents)
    return _rewritten(model, extents, lambda light: version_converter.convert_version(light, opset))


def _with_slopes_of_channels(model: onnx.ModelProto, extents: Extents) -> onnx.ModelProto:
    """Add the axes behind the channels to PRelu's slopes, per channel until opset 6.

    From opset 7 on they broadcast as usual, from the last axis; onnx's converter leaves that out.
    """
    if not any(node.op_type == "PRelu" for node in model.graph.node):
        return model
    types = infer_types(model, extents)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for node in model.graph.node:
        known = types.get(node.input[0]) if node.op_type == "PRelu" else None
        rank = len(known.shape) if known is not None and known.shape is not None else 0
        if rank > 2:
            slope = f"{node.input[1]}_of_{node.output[0]}"
            axes = list(range(1, rank - 1))
            result.graph.node.append(
                onnx.helper.make_node("Unsqueeze", [node.input[1]], [slope], axes=axes)
            )
            changed = onnx.NodeProto()
            changed.CopyFrom(node)
            changed.input[1] = slope
            node = changed
        result.graph.node.append(node)
    return result


def inline_functions(model: onnx.ModelProto, kept: Container[str]) -> onnx.ModelProto:
    """Replace calls of the model's own functions by their bodies.

    Parameters
    ----------
    model
        The model, which stays as it is.
    kept
        Functions with a converter, as ``com.acme::Foo``; their calls stay.
    """
    names = [(f.domain, f.name) for f in model.functions if f"{f.domain}::{f.name}" not in kept]
    return inline_by_name(model, names) if names else model


def inlined(
    model: onnx.ModelProto, names: Sequence[tuple[str, str]], extents: Extents
) -> onnx.ModelProto:
    """Replace operators that ONNX defines by a function with that function's operators.

    Parameters
    ----------
    model
        The model, which stays as it is.
    names
        Domain and name of the operators.
    extents : mapping of str to sequence of (int or None)
        Shapes of the inputs, on which some functions depend.
    """
    return _rewritten(
        model,
        extents,
        lambda light: inline_standard_functions(light, list(names)),
        # Bodies that depend on types see those of inputs, not those of initializers.
        largest=0,
    )


def _rewritten(
    model: onnx.ModelProto,
    extents: Extents,
    rewrite: Callable[[onnx.ModelProto], onnx.ModelProto],
    largest: int | None = None,
) -> onnx.ModelProto:
    """Rewrite the model without its weights, which onnx would serialise, and put them back."""
    light = without_weights(model) if largest is None else without_weights(model, largest)
    for info in light.graph.input:
        if info.name in extents:
            set_shape(info, extents[info.name])
    known = {tensor.name for tensor in light.graph.initializer}
    try:
        light = rewrite(light)
    except Exception:  # guard: onnx raises anything; preflight then says what is not supported
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(light.graph.node)
    result.graph.initializer.extend(t for t in light.graph.initializer if t.name not in known)
    del result.opset_import[:]
    result.opset_import.extend(light.opset_import)
    return result


def without_optionals(model: onnx.ModelProto) -> onnx.ModelProto:
    """Declare inputs that are optional tensors as tensors: who runs the model gives them."""
    if not any(map(_is_optional_tensor, model.graph.input)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for info in result.graph.input:
        if _is_optional_tensor(info):
            tensor = onnx.TypeProto()
            tensor.CopyFrom(info.type.optional_type.elem_type)
            info.type.CopyFrom(tensor)
    return result


def _is_optional_tensor(info: onnx.ValueInfoProto) -> bool:
    return bool(info.type.optional_type.elem_type.HasField("tensor_type"))
