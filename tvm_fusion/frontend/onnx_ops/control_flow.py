"""Convert If, Loop, Scan and SequenceMap, whose attributes are graphs.

What is decided at compile time leaves no trace: a branch whose condition is constant and the trips
of a short loop become nodes of the graph around them. What is decided at run time becomes functions
of the module, called in the branches of a Relax ``If`` or by themselves (:mod:`..control_flow`).
"""

import functools
from collections.abc import Callable
from typing import Any

import onnx
from onnx import helper
from tvm import relax, tirx
from tvm.ir import GenericConst

from ..control_flow.lifted import (
    add_function,
    branch,
    capture,
    extents_of,
    flat,
    items,
    like,
    shaped,
)
from ..control_flow.loops import ENDLESS, Loop, Slices, take_slice
from ..control_flow.recursion import convert_loop as convert_any_loop
from ..onnx_model.graph import nodes, outer_names
from ..registry import Unsupported
from ..shape_values import SymbolicArray
from ..tensor_types import static

op = relax.op


def convert_if(importer: Any, node: onnx.NodeProto) -> list[Any]:
    """Convert If: one branch in place where the condition is constant, else two functions."""
    graphs = {a.name: a.g for a in node.attribute}
    then, other = graphs["then_branch"], graphs["else_branch"]
    condition = importer.as_tensor(importer.values[node.input[0]])
    if isinstance(condition, GenericConst):
        taken = then if condition.value.numpy().all() else other
        return list(importer.convert_graph(taken, importer.stored(taken), None))
    bb, made = importer.bb, []
    for graph in (then, other):
        captured = capture(bb, importer.values, outer_names(graph))
        made.append(_branch_function(importer, node, graph, captured))
    (one, first, _), (two, second, _) = made
    if [len(flat([v])) for v in first] != [len(flat([v])) for v in second]:
        raise Unsupported(
            "whose branches return sequences of different lengths", "make the condition constant"
        )
    condition = bb.emit(op.reshape(condition, relax.ShapeExpr([])))
    ways = [branch(bb, functools.partial(bb.emit, call)) for call in (one, two)]
    result = bb.emit(relax.If(condition, *ways))
    leaves = [shaped(bb, leaf, node.output[0]) for leaf in items(bb, result)]
    return like(first, leaves)


def _branch_function(
    importer: Any, node: onnx.NodeProto, graph: onnx.GraphProto, captured: Any
) -> tuple[Any, list[Any], Any]:
    """Add a branch as a function; returns a call of it and the values that it returns."""
    results: list[Any] = []

    def build() -> list[Any]:
        values = importer.convert_graph(graph, importer.stored(graph), captured.values)
        results.extend(values)
        leaves = [importer.as_tensor(leaf) for leaf in flat(values)]
        if not all(isinstance(leaf, relax.Expr) for leaf in leaves):
            raise Unsupported(
                "whose branches return optional values", "make the condition constant"
            )
        return leaves

    at = relax.Var("at", relax.ShapeType(captured.symbols))
    name = f"{node.name or 'If'}_{graph.name}"
    gvar, func = add_function(importer.bb, name, [at, *captured.params], build)
    call = relax.Call(gvar, [relax.ShapeExpr(captured.symbols), *captured.args])
    return call, results, func


def convert_loop(importer: Any, node: onnx.NodeProto) -> list[Any]:
    """Convert Loop."""
    (graph,) = [a.g for a in node.attribute if a.name == "body"]
    values = [importer.values[name] if name else None for name in node.input]
    values[2:] = [importer.as_tensor(v) if isinstance(v, SymbolicArray) else v for v in values[2:]]
    trips, condition, states = values[0], values[1], values[2:]
    given = [info.name for info in graph.input]
    number, flag, names = given[0], given[1], given[2:]
    condition = relax.const(True, "bool") if condition is None else importer.as_tensor(condition)
    stored = importer.stored(graph)

    def step(trip: Any, go: Any, before: list[Any], around: Any) -> tuple[Any, Any, Any]:
        trip = relax.const(trip, "int64") if isinstance(trip, int) else trip
        known = {**stored, number: trip, flag: go, **dict(zip(names, before, strict=True))}
        again, *rest = importer.convert_graph(graph, known, around)
        return again, rest[: len(names)], rest[len(names) :]

    outputs = [Slices(info.name) for info in graph.output[1 + len(names) :]]
    passes_on = _passes_on(graph, flag) and isinstance(condition, GenericConst)
    loop = Loop(
        node.name or "Loop",
        ENDLESS if trips is None else _number(importer, trips),
        condition,
        states,
        names,
        step,
        outer_names(graph),
        outputs,
        sum(1 for _ in nodes(graph)),
        is_conditional=not passes_on,
    )
    return convert_any_loop(importer, loop)


def _passes_on(graph: onnx.GraphProto, flag: str) -> bool:
    """Tell whether a body returns the condition that it was given, or true."""
    made = {name: node for node in graph.node for name in node.output}
    name = graph.output[0].name
    while name in made and made[name].op_type in ("Identity", "Cast"):
        name = made[name].input[0]
    if name == flag:
        return True
    source = made.get(name)
    if source is not None and source.op_type == "Constant":
        tensors = [a.t for a in source.attribute if a.name == "value"]
    else:
        tensors = [tensor for tensor in graph.initializer if tensor.name == name]
    return bool(tensors) and bool(onnx.numpy_helper.to_array(tensors[0]).all())


def _number(importer: Any, value: Any) -> Any:
    """Return a number of trips, an extent or an int64 tensor of one element, as an expression."""
    if isinstance(value, GenericConst):
        return max(int(value.value.numpy().reshape(-1)[0]), 0)
    if not isinstance(getattr(value, "ty", None), relax.TensorType):
        known = static(value)
        return value if known is None else known
    bb = importer.bb
    value = bb.emit(op.maximum(value, relax.const(0, "int64")))
    shape = bb.emit(op.tensor_to_shape(bb.emit(op.reshape(value, relax.ShapeExpr([1])))))
    trips = tirx.Var("trips", "int64")
    bb.match_cast(shape, relax.ShapeType([trips]))
    return trips


def convert_scan(importer: Any, node: onnx.NodeProto) -> list[Any]:
    """Convert Scan; before opset 9 it has batches, each of which is a loop."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    number, names = attributes["num_scan_inputs"], list(node.input)
    if importer.opset >= 9:
        kept = len(names) - number
        return _scan(importer, node, attributes, names[:kept], names[kept:])
    if names[0]:
        raise Unsupported("with lengths of sequences", "convert the model to opset 9 or newer")
    bb, kept = importer.bb, len(names) - number
    tensors = {n: importer.as_tensor(importer.values[n]) for n in names[1:]}
    batches = static(extents_of(tensors[names[-1]].ty)[0])
    if batches is None:
        raise Unsupported(
            "before opset 9, over a symbolic batch", "convert the model to opset 9 or newer"
        )
    results = []
    for batch in range(batches):
        for name, value in tensors.items():
            importer.values[f"{name}[{batch}]"] = take_slice(bb, value, 0, batch)
        given = [f"{name}[{batch}]" for name in names[1:]]
        attributes["scan_input_directions"] = attributes.get("directions")
        results.append(_scan(importer, node, attributes, given[: kept - 1], given[kept - 1 :]))
    return [
        op.concat([op.expand_dims(importer.as_tensor(part), 0) for part in parts], axis=0)
        for parts in zip(*results, strict=True)
    ]


def _scan(
    importer: Any,
    node: onnx.NodeProto,
    attributes: dict[str, Any],
    states: list[str],
    scanned: list[str],
) -> list[Any]:
    """Convert a loop over slices of tensors."""
    graph, kept = attributes["body"], len(states)
    names = [info.name for info in graph.input]
    n_outputs, none = len(graph.output) - kept, [0] * len(scanned)
    axes = list(attributes.get("scan_input_axes") or none)
    backwards = list(attributes.get("scan_input_directions") or none)
    values = {}
    for name in scanned:
        values[name] = shaped(importer.bb, importer.as_tensor(importer.values[name]), name)
    importer.values.update(values)
    axes = [axis % values[name].ty.ndim for axis, name in zip(axes, scanned, strict=True)]
    extents = [extents_of(values[n].ty)[axis] for n, axis in zip(scanned, axes, strict=True)]
    trips: Any = next((static(e) for e in extents if static(e) is not None), extents[0])
    stored = importer.stored(graph)

    def step(trip: Any, given: Any, before: list[Any], around: Any) -> tuple[Any, Any, Any]:
        outside = importer.values if around is None else around
        parts = [
            take_slice(importer.bb, outside[name], axis, trips - 1 - trip if back else trip)
            for name, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        known = {**stored, **dict(zip(names, [*before, *parts], strict=True))}
        results = importer.convert_graph(graph, known, around)
        return given, results[:kept], results[kept:]

    outputs = [
        Slices(info.name, axis, bool(back))
        for info, axis, back in zip(
            graph.output[kept:],
            attributes.get("scan_output_axes") or [0] * n_outputs,
            attributes.get("scan_output_directions") or [0] * n_outputs,
            strict=True,
        )
    ]
    loop = Loop(
        node.name or "Scan",
        trips,
        relax.const(True, "bool"),
        [importer.values[name] for name in states],
        names[:kept],
        step,
        [*dict.fromkeys([*scanned, *outer_names(graph)])],
        outputs,
        sum(1 for _ in nodes(graph)) + len(scanned),
    )
    return convert_any_loop(importer, loop)


def convert_sequence_map(importer: Any, node: onnx.NodeProto) -> list[Any]:
    """Convert SequenceMap: its body for each element of sequences of known length."""
    (graph,) = [a.g for a in node.attribute if a.name == "body"]
    values = [importer.values[name] for name in node.input]
    lengths = {len(value.fields) for value in values if isinstance(value, relax.Tuple)}
    if not isinstance(values[0], relax.Tuple):
        raise Unsupported("over a sequence whose length is not known", "give it a fixed length")
    if len(lengths) > 1:
        raise Unsupported(f"over sequences of {sorted(lengths)} elements", "make them equally long")
    stored, found = importer.stored(graph), []
    for i in range(lengths.pop()):
        given = [v.fields[i] if isinstance(v, relax.Tuple) else v for v in values]
        names = [info.name for info in graph.input]
        known = {**stored, **dict(zip(names, given, strict=True))}
        made = importer.convert_graph(graph, known, None)
        found.append([importer.as_tensor(value) for value in made])
    count = len(graph.output)
    return [relax.Tuple([results[k] for results in found]) for k in range(count)]


CONVERTERS: dict[str, Callable[[Any, onnx.NodeProto], list[Any]]] = {
    "If": convert_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
    "SequenceMap": convert_sequence_map,
}
