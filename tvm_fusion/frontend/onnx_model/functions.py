"""Inline functions, named by their calls, what onnx's inliner leaves out included."""

import re
from collections.abc import Container, Mapping, Sequence

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import onnx
from onnx import TensorProto, defs, helper
from onnx.inliner import inline_selected_functions

from ..tensor_types import HALF
from .graph import nodes, opsets_of
from .types import ValueType, infer_types

# Where bodies live that are made for one node.
_DOMAIN = "tvm_fusion.expanded"


def schema_of(node: onnx.NodeProto, versions: Mapping[str, int]) -> defs.OpSchema | None:
    """Return the definition of a node's operator; None where the onnx package has none.

    Parameters
    ----------
    versions
        See :func:`.graph.opsets_of`.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    newest = defs.onnx_opset_version()
    version = min(versions.get(domain, 1), newest)
    if not version or not defs.has(node.op_type, version, domain):
        return None
    return defs.get_schema(node.op_type, version, domain)


def inline_standard_functions(
    model: onnx.ModelProto, names: Sequence[tuple[str, str]]
) -> onnx.ModelProto:
    """Replace operators by the functions that define them.

    onnx's inliner does it. It takes an attribute that a node leaves out for absent where the body
    refers to it, so defaults are written out before; and it fails on bodies that depend on types
    where an input in the middle is left out, so such bodies become functions of the model.

    Parameters
    ----------
    model
        The model, which is changed.
    names
        Domain and name of the operators.
    """
    versions = opsets_of(model)
    model = between_casts(model, names, infer_types(model, {}))
    chosen = [node for node in nodes(model.graph) if (node.domain, node.op_type) in names]
    for node in chosen:
        _write_defaults(node, schema_of(node, versions))
    of_model = _bodies_of_model(model, chosen, versions)
    if of_model:
        model = inline_by_name(model, of_model)
    return inline_by_name(model, names, of_standard=True)


def inline_by_name(
    model: onnx.ModelProto, functions: Sequence[tuple[str, str]], *, of_standard: bool = False
) -> onnx.ModelProto:
    """Replace calls of functions by their bodies, whose nodes are named by the call.

    The call ``/decoder/Block`` makes ``/decoder/Block/Relu`` of a body's ``Relu``.

    Parameters
    ----------
    model
        The model, which stays as it is.
    functions
        Domain and name of each.
    of_standard
        Whether they are operators that ONNX defines by a function, rather than the model's own.
    """
    calls = [node for node in nodes(model.graph) if (node.domain, node.op_type) in functions]
    kept = {name for node in nodes(model.graph) for name in node.output}
    inlined = inline_selected_functions(model, list(functions), inline_schema_functions=of_standard)
    producers = {name: node for node in nodes(inlined.graph) for name in node.output}
    for call in calls:
        name = call.name or next(filter(None, call.output), "")
        reached = list(call.output)
        while reached:
            node = producers.pop(reached.pop(), None)
            if node is None:
                continue
            # onnx numbers what it inlines: the body's name is what stands before.
            own = re.sub(r"__\d+$", "", node.name) or node.op_type
            node.name = f"{name}/{own}"
            reached += [source for source in node.input if source not in kept]
            for result in node.output:
                producers.pop(result, None)
    return inlined


def _write_defaults(node: onnx.NodeProto, schema: defs.OpSchema | None) -> None:
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in (schema.attributes if schema is not None else {}).items():
        if name not in given and attribute.default_value.type:
            node.attribute.append(attribute.default_value)


def _bodies_of_model(
    model: onnx.ModelProto, chosen: Sequence[onnx.NodeProto], versions: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Turn nodes with an input left out into calls of functions of the model; name these."""
    found: list[tuple[str, str]] = []
    types = None
    for node in chosen:
        schema = schema_of(node, versions)
        if "" not in node.input or schema is None or not schema.has_context_dependent_function:
            continue
        types = infer_types(model, {}) if types is None else types
        inputs = []
        for name in node.input:
            known = types.get(name)
            one = onnx.TypeProto()
            if known is not None:
                dtype = helper.np_dtype_to_tensor_dtype(np.dtype(known.dtype))
                one = helper.make_tensor_type_proto(dtype, known.shape)
            inputs.append(one.SerializeToString())
        body = onnx.FunctionProto.FromString(
            schema.get_context_dependent_function(node.SerializeToString(), inputs)
        )
        body.domain, body.name = _DOMAIN, f"{node.op_type}_{len(found)}"
        model.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
        del node.attribute[:]
        found.append((body.domain, body.name))
    if found:
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return found


# Compute ONNX's functions over half types in float32, between casts of inputs and results.
#
# The body of a function rounds what it computes at each of its nodes; of what belongs to one
# operator that is rounded once: see :mod:`..half.intermediates`.
_ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def between_casts(
    model: onnx.ModelProto, names: Container[tuple[str, str]], types: Mapping[str, ValueType]
) -> onnx.ModelProto:
    """Put casts around the nodes that are about to be replaced by a function's body.

    Parameters
    ----------
    model
        The model, which is changed.
    names
        Domain and name of the operators.
    types
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
