"""Traverse ONNX models: nodes and tensors, those of branches and loop bodies included."""

from collections.abc import Iterator

import onnx


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return a model's operator set versions by domain; ONNX's own is ``""``, 0 if not named."""
    named = {o.domain: o.version for o in model.opset_import}
    return {"": named.pop("ai.onnx", 0)} | named


def with_standard_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add a version of ONNX's default domain to a model that neither names nor uses it."""
    if opsets_of(model)[""] or any(node.domain in ("", "ai.onnx") for node in nodes(model.graph)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.opset_import.add(domain="", version=onnx.defs.onnx_opset_version())
    return result


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from nodes(inner)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the stored tensors of a graph and of the graphs inside its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in subgraphs(attribute):
                yield from tensors(inner)


def subgraphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that an attribute holds: branches and loop bodies."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def outer_names(graph: onnx.GraphProto) -> list[str]:
    """List the names that a graph reads and does not define, graphs inside its nodes included."""
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        read = [name for name in node.input if name]
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                read += outer_names(inner)
        found.update(dict.fromkeys(name for name in read if name not in own))
        own.update(node.output)
    found.update(dict.fromkeys(i.name for i in graph.output if i.name not in own))
    return list(found)
