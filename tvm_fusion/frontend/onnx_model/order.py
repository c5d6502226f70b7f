"""Bring nodes into an order in which what one reads is computed before it.

The standard asks for that. ONNX Runtime takes any order, and its quantizer writes others where
branches read what the graph around them computes.
"""

import heapq
from collections.abc import Iterator, MutableSequence

import onnx

from .graph import outer_names, subgraphs


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose nodes are in order: the model itself, or a copy.

    Nodes in a cycle stay where they are, and so do all of a model that is nested too deeply.
    """
    try:
        if all(map(_is_in_order, _node_lists(model))):
            return model
    except RecursionError:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for nodes in [*_node_lists(found)]:
        if not _is_in_order(nodes):
            sorted_nodes = [nodes[position].SerializeToString() for position in _order(nodes)]
            del nodes[:]
            nodes.extend(map(onnx.NodeProto.FromString, sorted_nodes))
    return found


def _node_lists(model: onnx.ModelProto) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """Yield the nodes of functions and of graphs, inner ones first."""
    for owner in (*model.functions, model.graph):
        yield from _nested(owner.node)
        yield owner.node


def _nested(nodes: MutableSequence[onnx.NodeProto]) -> Iterator[MutableSequence[onnx.NodeProto]]:
    for node in nodes:
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                yield from _nested(graph.node)
                yield graph.node


def _is_in_order(nodes: MutableSequence[onnx.NodeProto]) -> bool:
    late = {name for node in nodes for name in node.output}
    for node in nodes:
        if any(name in late for name in _read(node)):
            return False
        late.difference_update(node.output)
    return True


def _order(nodes: MutableSequence[onnx.NodeProto]) -> list[int]:
    """List positions in order, the earliest node that may come first."""
    producers = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    missing = [{producers[name] for name in _read(node) if name in producers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for reader, sources in enumerate(missing):
        for source in sources:
            readers[source].append(reader)
    ready = [n for n, sources in enumerate(missing) if not sources]
    found: list[int] = []
    while ready:
        found.append(position := heapq.heappop(ready))
        for reader in readers[position]:
            missing[reader].discard(position)
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return [*found, *sorted(set(range(len(nodes))) - set(found))]


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, with those that its branches take from outside."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in subgraphs(attribute):
            yield from outer_names(graph)
