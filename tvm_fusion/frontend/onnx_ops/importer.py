"""Extend TVM's ONNX importer: registered converters first, every result checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from tvm import relax
from tvm.ir import GenericConst, is_prim_expr
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ...errors import UserError
from ...signature import DimRange
from ..onnx_graph import nodes, opsets_of, subgraphs
from ..onnx_types import ValueType
from ..quiet import quiet_importer
from ..registry import Unsupported
from ..tensor_types import mismatch, static
from .fold import fold
from .node import Node
from .reads import ReadAttributes, ReadInputs, ignored
from .registry import CONVERTERS, STANDARD, qualified_name
from .reviewed import RETURN_SEQUENCES, TAKE_EXTENTS, TAKE_SHAPES, is_reviewed


class Importer(ONNXGraphImporter):
    """TVM's importer with shapes given, names untouched, and a record of the weights.

    ``from_onnx`` around it would serialise the whole model for a check that was done already.

    Parameters
    ----------
    shapes : dict of str to list
        Extents of the inputs: numbers and TIR expressions.
    ranges : mapping of tvm.tirx.Var to DimRange
        What is known about the symbolic dimensions.
    types : mapping of str to ValueType
        Types of values by ONNX's own inference; what the import makes must agree with them.
    """

    def __init__(
        self,
        shapes: dict[str, list[Any]],
        ranges: Mapping[Any, DimRange],
        types: Mapping[str, ValueType],
    ):
        super().__init__(shapes, {}, sanitize=False)
        self._nodes: dict[str, Any]
        self._ranges, self._types = ranges, types
        self._at = ""
        self._read_names: set[str] = set()

    def convert(self, model: onnx.ModelProto, source: str) -> Any:
        """Convert the graph; whatever the importer raises becomes one sentence."""
        graph = model.graph
        self._read_names = {info.name for info in graph.output} | {
            name for node in nodes(graph) for name in node.input
        }
        for node in nodes(graph):
            for attribute in node.attribute:
                for inner in subgraphs(attribute):
                    self._read_names.update(info.name for info in inner.output)
        # The importer parses the names of dimensions even where shapes are given, and stumbles over
        # some, so it sees inputs without them.
        inputs = [_without_dim_names(info) for info in graph.input]
        view = SimpleNamespace(
            node=graph.node, initializer=graph.initializer, input=inputs, output=graph.output
        )
        try:
            with quiet_importer():
                return self.from_onnx(view, opsets_of(model)[""])
        except UserError as error:
            self._end_blocks()
            raise UserError(f"{source}: {error.found}", error.expected, error.advice) from error
        except Exception as error:  # guard: TVM's converters raise anything; the reason is told
            self._end_blocks()
            where = f" at operator {self._at}" if self._at else ""
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"{source} cannot be imported{where} ({reason})", None, self._advice(reason)
            ) from error

    def constants(self) -> Iterator[tuple[str, Any]]:
        """Yield the constants with their names in the model, initializers first."""
        for name, value in self._nodes.items():
            if isinstance(value, GenericConst):
                yield name, value

    def _advice(self, reason: str) -> str | None:
        if "const" in reason.lower() or "dynamic" in reason.lower():
            return "make the operator's other inputs initializers (constants) of the model"
        return None

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Preflight has done it, and knows the converters of ours."""

    def _construct_nodes(self, graph: Any) -> None:
        for node in graph.node:
            self._convert_node(node)
        for info in graph.output:  # extents are shapes or numbers to the importer
            self._nodes[info.name] = self._as_tensor(self._nodes[info.name])

    def _convert_subgraph(self, bb: Any, graph: onnx.GraphProto) -> Any:
        """Convert a branch, which sees the names around it; its own are forgotten afterwards."""
        outer = dict(self._nodes)
        try:
            self._parse_graph_initializers(graph)
            for node in graph.node:
                self._convert_node(node)
            outputs = [self._as_tensor(self._nodes[info.name]) for info in graph.output]
            return outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
        finally:
            self._nodes = outer

    def _convert_node(self, node: onnx.NodeProto) -> None:
        self._at = _title(node)
        used = tuple(bool(name) and name in self._read_names for name in node.output)
        if node.op_type == "If":
            results = self._convert_if(node)
        else:
            inputs = [self._nodes[name] if name else None for name in node.input]
            results = self._convert_operation(node, inputs, used)
        outputs = list(zip_longest(node.output, used, results[: len(node.output)]))
        missing = [name for name, is_used, value in outputs if is_used and value is None]
        if missing:
            raise _refused(
                node, f"has outputs that its converter does not compute ({', '.join(missing)})"
            )
        for name, is_used, value in outputs:
            if is_used:
                self._nodes[name] = self._checked(node, name, value)
        self._at = ""

    def _convert_operation(
        self, node: onnx.NodeProto, inputs: Sequence[Any], used: tuple[bool, ...]
    ) -> list[Any]:
        tensors = [_as_constant(v) if isinstance(v, relax.ShapeExpr) else v for v in inputs]
        found = fold(node, tensors, self.opset)
        if found is None:
            found = self._convert_own(node, inputs, used)
        return self._convert_by_tvm(node, inputs) if found is None else found

    def _apply(self, op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Convert a standard operator of one output, which is no node of the model."""
        names = ["" if value is None else f"input_{i}" for i, value in enumerate(inputs)]
        node = onnx.helper.make_node(op_type, names, ["output"], **attributes)
        return self.bb.normalize(self._convert_operation(node, inputs, (True,))[0])

    def _convert_if(self, node: onnx.NodeProto) -> list[Any]:
        attributes = self._parse_attr(node.attribute)
        branches = [
            relax.SeqExpr(blocks=[], body=self._convert_subgraph(self.bb, attributes[name]))
            for name in ("then_branch", "else_branch")
        ]
        condition = self._as_tensor(self._nodes[node.input[0]])
        result = self.bb.emit(relax.If(condition, *branches))
        if len(node.output) == 1:
            return [result]
        return [self.bb.emit(relax.TupleGetItem(result, i)) for i in range(len(node.output))]

    def _convert_own(
        self, node: onnx.NodeProto, inputs: Sequence[Any], used: tuple[bool, ...]
    ) -> list[Any] | None:
        """Convert by a converter of ours; None where there is none, or it leaves it to TVM."""
        converter = CONVERTERS.get(qualified_name(node))
        if converter is None:
            return None
        if not converter.takes_extents:
            inputs = [self._as_tensor(value) for value in inputs]
        values = ReadInputs(inputs)
        given = Node(node, values, self.opset, self.bb, self._apply, self._ranges, used)
        try:
            result = converter.convert(given)
        except Unsupported as error:
            raise _refused(node, error.reason, error.advice) from error
        if result is None:
            return None
        self._refuse_ignored(node, given.attributes, values)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        return [None if value is None else self.bb.normalize(value) for value in results]

    def _convert_by_tvm(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> list[Any]:
        name = node.op_type
        if node.domain not in STANDARD and not is_reviewed(node, self.opset):
            raise _refused(node, "is left to TVM, which has no converter of it", None)
        values = ReadInputs(
            value
            if (isinstance(value, relax.ShapeExpr) and name in TAKE_SHAPES)
            or (value is not None and is_prim_expr(value) and name in TAKE_EXTENTS)
            else self._as_tensor(value)
            for value in inputs
        )
        attributes = ReadAttributes(self._parse_attr(node.attribute))
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        result = self._convert_operator(name, values, attributes, self.opset)
        self._refuse_ignored(node, attributes, values)
        if isinstance(result, relax.ShapeExpr):
            result = _as_constant(result)
        if name in RETURN_SEQUENCES:
            return [result]
        if isinstance(result, relax.Tuple):
            return list(result)
        if isinstance(getattr(result, "ty", None), relax.TupleType):
            return [
                self.bb.emit(relax.TupleGetItem(result, i)) for i in range(len(result.ty.fields))
            ]
        return [result]

    def _refuse_ignored(
        self, node: onnx.NodeProto, attributes: ReadAttributes, inputs: ReadInputs
    ) -> None:
        passed_over = ignored(node, self.opset, attributes, inputs)
        if passed_over:
            raise _refused(node, f"uses {', '.join(passed_over)}, which its converter ignores")

    def _as_tensor(self, value: Any) -> Any:
        """Turn a shape or an extent into the int64 tensor that ONNX has in its place."""
        if isinstance(value, relax.ShapeExpr):
            constant = _as_constant(value)
            if isinstance(constant, GenericConst):
                return constant
            return self.bb.emit(relax.op.shape_to_tensor(value))
        if isinstance(getattr(value, "ty", None), relax.ShapeType):
            return self.bb.emit(relax.op.shape_to_tensor(value))
        if value is not None and not isinstance(value, GenericConst) and is_prim_expr(value):
            if static(value) is not None and str(value.ty) == "int64":
                return relax.const(static(value), "int64")
            if str(value.ty) != "int64":
                return value
            extent = self.bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([value])))
            return self.bb.emit(relax.op.reshape(extent, ()))
        return value

    def _checked(self, node: onnx.NodeProto, name: str, value: Any) -> Any:
        """Return a result, normalized, if its type is the one that ONNX infers."""
        expected = self._types.get(name)
        if not isinstance(value, relax.Expr):
            return value
        value = self.bb.normalize(value)
        if expected is not None and isinstance(value.ty, relax.TensorType):
            text = mismatch(value, expected.dtype, expected.shape)
            if text is not None:
                raise _refused(node, f"is converted to {text} (output {name})")
        return value

    def _end_blocks(self) -> None:
        """Close what a failed import left open; the builder would complain when it is destroyed."""
        with contextlib.suppress(Exception):
            while True:
                self.bb._end_block()


def _title(node: onnx.NodeProto) -> str:
    name = qualified_name(node)
    return f"{name} '{node.name}'" if node.name else name


def _refused(
    node: onnx.NodeProto,
    what: str,
    advice: str | None = "express it through other operators, or leave that out",
) -> UserError:
    return UserError(f"operator {_title(node)} {what}", None, advice)


def _as_constant(shape: relax.ShapeExpr) -> Any:
    """Return a shape of known extents as a constant tensor, any other as it is."""
    extents = [static(extent) for extent in shape]
    if any(extent is None for extent in extents):
        return shape
    return relax.const(np.array(extents, "int64"), "int64")


def _without_dim_names(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    plain = onnx.ValueInfoProto()
    plain.CopyFrom(info)
    for dim in plain.type.tensor_type.shape.dim:
        dim.dim_value = max(dim.dim_value, 1)
    return plain
