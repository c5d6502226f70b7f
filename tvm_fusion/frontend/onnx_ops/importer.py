"""Import ONNX graphs by TVM's importer, extended: models, branches and bodies of loops."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import onnx
from tvm import relax
from tvm.ir import GenericConst

from ...core.constants.narrow_types import NARROW
from ...core.names.source import attach
from ...errors import UserError
from ...signature import DimRange
from ..control_flow.lifted import finished
from ..onnx_model.constants import SHAPE_OPERANDS, shape_inputs
from ..onnx_model.graph import nodes, opsets_of, subgraphs
from ..onnx_model.types import ValueType, dtype_name
from ..quiet import end_blocks, quiet_importer
from ..reasons import reason_in_words
from . import control_flow
from .node_importer import NodeImporter


class Importer(NodeImporter):
    """TVM's importer with shapes given, names untouched, and a record of the weights.

    ``from_onnx`` around it would serialise the whole model for a check that was done already.

    Parameters
    ----------
    shapes, ranges, types
        See :class:`.node_importer.NodeImporter`.
    steps : tvm.relax.Var, optional
        A parameter that defines variables which no input's extent is; see
        :mod:`..dimensions.steps`.
    """

    def __init__(
        self,
        shapes: dict[str, list[Any]],
        ranges: Mapping[Any, DimRange],
        types: Mapping[str, ValueType],
        steps: relax.Var | None = None,
    ):
        super().__init__(shapes, ranges, types)
        self._steps = steps
        self._inner: list[tuple[str, Any]] = []
        #: Names of the results; those of a sequence's elements end in their numbers.
        self.output_names: list[str] = []
        #: Trips of the unrolled loops around the node that is being converted.
        self.copies = 1

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
                if any(node.op_type in control_flow.CONVERTERS for node in graph.node):
                    return self._with_functions(view, opsets_of(model)[""])
                return attach(self.from_onnx(view, opsets_of(model)[""]), self.sources.of)
        except UserError as error:
            end_blocks(self.bb)
            advice = self._bind_inputs(model) or error.advice
            found = f"{source}: {error.found}{self._of_inputs()}"
            raise UserError(found, error.expected, advice) from (error.__cause__ or error)
        except Exception as error:  # guard: TVM's converters raise anything; the reason is told
            end_blocks(self.bb)
            where = f" at operator {self._at}" if self._at else ""
            reason, instead = self._computed_operand() or reason_in_words(error)
            advice = self._bind_inputs(model) or self._failed_advice or instead
            found = f"{source} cannot be imported{where} ({reason}){self._of_inputs()}"
            raise UserError(found, None, advice) from error

    def constants(self) -> Iterator[tuple[str, Any]]:
        """Yield the constants with their names in the model, initializers first."""
        for name, value in self._nodes.items():
            if isinstance(value, GenericConst):
                yield name, value
        yield from self._inner

    def _bind_inputs(self, model: onnx.ModelProto) -> str | None:
        """Name the inputs of the model that the node on which it failed takes a shape from."""
        if self._converted is None:
            return None
        names = shape_inputs(model, [self._converted])
        if not names and self._has_unknown_extents:  # which others take from inputs
            names = shape_inputs(model, _before(model, self._converted))
        if not names:
            return None
        listed = ", ".join(names)
        return f"bind {listed} with --constant {names[0]}=VALUE, or constants={{...}}"

    def _computed_operand(self) -> tuple[str, str] | None:
        """Name the operand that decides a shape or an axis and is no constant, and advice."""
        node = self._converted
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        for place in SHAPE_OPERANDS.get(node.op_type, ()):
            value = self._failed_values[place] if place < len(self._failed_values) else None
            if value is not None and not isinstance(value, (GenericConst, relax.ShapeExpr)):
                name = onnx.defs.get_schema(node.op_type, self.opset).inputs[place].name
                return f"its {name} is computed or an input of the model", f"make {name} a constant"
        return None

    @property
    def _has_unknown_extents(self) -> bool:
        """Whether the node on which it failed reads a tensor of unknown shape."""
        types = [v.ty for v in self._failed_values if isinstance(v, relax.Expr)]
        return any(isinstance(t, relax.TensorType) and t.shape is None for t in types)

    def _of_inputs(self) -> str:
        return f" ({self._failed_inputs})" if self._failed_inputs else ""

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Preflight has done it, and knows the converters of ours."""

    def _parse_graph_input(self, graph: Any) -> None:
        super()._parse_graph_input(graph)
        if self._steps is not None:
            self._inputs[self._steps.name] = self._steps
            self._num_input += 1

    def _construct_nodes(self, graph: Any) -> None:
        for node in graph.node:
            self._convert_node(node)
        outputs: list[onnx.ValueInfoProto] = []
        for info in graph.output:  # a sequence is an output for each element
            value = self._nodes[info.name]
            is_sequence = isinstance(value, relax.Tuple)
            leaves = list(value.fields) if is_sequence else [value]
            names = [f"{info.name}_{i}" for i in range(len(leaves))] if is_sequence else [info.name]
            for name, leaf in zip(names, leaves, strict=True):
                # Extents are shapes or numbers to the importer.
                self._nodes[name] = self.as_tensor(leaf)
                if not isinstance(self._nodes[name], relax.Expr):
                    raise UserError(f"output {info.name} is an empty optional value", "a tensor")
                outputs.append(onnx.ValueInfoProto(name=name))
        if not outputs:
            found = "all outputs are empty sequences" if graph.output else "a model without outputs"
            raise UserError(found, "at least one tensor")
        graph.output = outputs
        self.output_names = [info.name for info in outputs]

    def stored(self, graph: onnx.GraphProto) -> dict[str, Any]:
        """Return the stored tensors of a branch or body, as constants by name."""
        found = {t.name: relax.const(self._parse_array(t)) for t in graph.initializer}
        self._inner += found.items()
        return found

    def convert_graph(
        self, graph: onnx.GraphProto, known: Mapping[str, Any], around: Mapping[str, Any] | None
    ) -> list[Any]:
        """Convert the nodes of a branch or body, where the builder is.

        Parameters
        ----------
        graph
            The graph; its names are forgotten afterwards.
        known : mapping of str to object
            Its inputs and stored tensors.
        around : mapping of str to object, optional
            The values outside that it reads; by default those of the graph around it.

        Returns
        -------
        list
            Its outputs.
        """
        outer, is_sure = self._nodes, self._matcher.is_sure
        self._nodes = {**(outer if around is None else around), **known}
        self._matcher.is_sure &= around is None
        try:
            for node in graph.node:
                self._convert_node(node)
            return [self._nodes[info.name] for info in graph.output]
        finally:
            self._nodes, self._matcher.is_sure = outer, is_sure

    def _with_functions(self, graph: Any, opset: int) -> Any:
        """Convert a graph that branches or loops, which no dataflow block may."""
        self.opset = opset
        self._parse_graph_initializers(graph)
        self._parse_graph_input(graph)
        inputs = [value for value in self._inputs.values() if isinstance(value, relax.Var)]
        with self.bb.function("main", params=inputs):
            self._construct_nodes(graph)
            outputs = [self._nodes[info.name] for info in graph.output]
            self.bb.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        mod = finished(attach(self.bb.get(), self.sources.of))
        mod["main"] = mod["main"].with_attrs({"num_input": self._num_input})
        return mod


def _without_dim_names(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    plain = onnx.ValueInfoProto()
    plain.CopyFrom(info)
    tensor = plain.type.tensor_type
    for dim in tensor.shape.dim:
        dim.dim_value = max(dim.dim_value, 1)
    if dtype_name(tensor.elem_type) in NARROW:
        tensor.elem_type = onnx.TensorProto.UINT8
    return plain


def _before(model: onnx.ModelProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """List the nodes that one reads something of, through any between."""
    needed, found = set(node.input), []
    for other in reversed(list(nodes(model.graph))):
        if needed.intersection(other.output):
            needed.update(other.input)
            found.append(other)
    return found
