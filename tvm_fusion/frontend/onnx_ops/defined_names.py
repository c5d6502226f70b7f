"""Check what an ONNX model's names refer to, which onnx's own inference takes for granted.

Its shape inference ends the process where a node reads a name that nothing defines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import defs

from ...errors import UserError
from ..onnx_model.graph import opsets_of, subgraphs
from .registry import STANDARD, defined

_MOST_AXES = 64
_MOST_ELEMENTS = 2**48  # of an input: a petabyte; sums and products of some sizes fit 64 bits


def check_names(model: onnx.ModelProto, source: str) -> None:
    """Check that names are defined once, and before they are read.

    Parameters
    ----------
    source : str
        What to call it in an error.

    Raises
    ------
    UserError
        For the first name that is not.
    """
    try:
        opset = opsets_of(model)[""]
        fault = next(_faults_of_graph(model.graph, opset, frozenset()), None)
        for function in model.functions:
            if fault is None:
                fault = next(_faults_of_nodes(function.node, opset, set(function.input)), None)
    except RecursionError as error:
        raise UserError(f"{source} has graphs nested too deeply", "fewer levels") from error
    if fault is not None:
        raise UserError(
            f"{source} is not a valid model ({fault})",
            "names that are defined once, and before they are read, and all inputs of operators",
            "export it again",
        )


def has_undecodable_text(message: Message) -> bool:
    """Tell whether a text in a message, or in one inside of it, is no UTF-8."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.type == field.TYPE_STRING and not all(isinstance(v, str) for v in values):
            return True
        if field.message_type is not None and any(map(has_undecodable_text, values)):
            return True
    return False


def _faults_of_graph(graph: onnx.GraphProto, opset: int, outer: Iterable[str]) -> Iterator[str]:
    inputs = [info.name for info in graph.input]
    names = [*inputs, *(info.name for info in graph.output)]
    if not all(isinstance(name, str) for name in names):
        yield "a name is no UTF-8"
    for info in graph.input:
        extents = (dim.dim_value for dim in info.type.tensor_type.shape.dim)
        if math.prod(extent for extent in extents if extent > 0) > _MOST_ELEMENTS:
            yield f"its input {info.name!r} has more elements than 64 bits count"
    yield from _bounds(graph)
    if len(set(inputs)) != len(inputs):
        twice = next(name for name in inputs if inputs.count(name) > 1)
        yield f"its graph has two inputs {twice!r}"
    stored = [tensor.name for tensor in graph.initializer]
    stored += [tensor.values.name for tensor in graph.sparse_initializer]
    own = {*inputs, *stored}
    yield from _faults_of_nodes(graph.node, opset, own, outer)
    for info in graph.output:
        if info.name not in own and info.name not in outer:
            yield f"nothing computes its output {info.name!r}"


def _faults_of_nodes(
    nodes: Iterable[onnx.NodeProto],
    opset: int,
    own: set[str],
    outer: Iterable[str] = frozenset(),
) -> Iterator[str]:
    """Yield the faults of nodes in their order; ``own`` grows by what they define."""
    outer = frozenset(outer)
    for node in nodes:
        yield from _faults_of_inputs(node, opset)
        title = f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)
        for name in node.input:
            if name and name not in own and name not in outer:
                yield f"{title} reads {name!r}, which is not defined before it"
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _faults_of_graph(inner, opset, outer | own)
        for name in node.output:
            if name and name in own:
                yield f"{title} defines {name!r} again"
            own.add(name)


def _faults_of_inputs(node: onnx.NodeProto, opset: int) -> Iterator[str]:
    """Yield a fault where a node leaves out what its operator cannot do without.

    Of what comes after the first input, exporters leave out some that a version of the standard
    requires, such as Resize's regions; converters know which.
    """
    if node.domain not in STANDARD or not defined(node.op_type, opset):
        return
    schema = defs.get_schema(node.op_type, max(0, min(opset, defs.onnx_opset_version())), "")
    options = [parameter.option for parameter in schema.inputs]
    kinds = defs.OpSchema.FormalParameterOption
    for number, name in enumerate(node.input):
        option = options[min(number, len(options) - 1)] if options else kinds.Optional
        is_required = option == kinds.Variadic or (number == 0 and option == kinds.Single)
        if not name and is_required:
            yield f"{node.op_type} lacks its input {number}"
    if len(node.input) < schema.min_input:
        yield f"{node.op_type} has {len(node.input)} inputs of {schema.min_input}"


def _bounds(graph: onnx.GraphProto) -> Iterator[str]:
    """Find inputs that give a Slice more bounds than any tensor has axes: each would be tried."""
    shapes = {info.name: info.type.tensor_type.shape.dim for info in graph.input}
    for node in graph.node:
        for name in node.input[1:] if node.op_type == "Slice" else ():
            count = max((dim.dim_value for dim in shapes.get(name, ())), default=0)
            if count > _MOST_AXES:
                yield f"Slice reads {count} bounds from {name!r}"
