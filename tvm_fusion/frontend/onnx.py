"""From ONNX to Relax: preflight, then TVM's importer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
from onnx.inliner import inline_local_functions
from tvm import relax, tirx
from tvm.ir import GenericConst, is_prim_expr
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ..config import FusionConfig
from ..errors import UserError
from ..signature import DimRange
from . import Imported, onnx_file, preflight
from .describe import signature_of
from .dims import DimTable
from .extents import to_tir
from .finish import finish
from .onnx_converters import convert_range
from .quiet import quiet_importer
from .weights import WeightNames, tracking


def from_file(path: str | os.PathLike, config: FusionConfig) -> Imported:
    """Import an ONNX file; see :func:`tvm_fusion.frontend.import_model`."""
    return _import(onnx_file.load(path), config, Path(path).name)


def from_model_proto(model: onnx.ModelProto, config: FusionConfig) -> Imported:
    """Import a model in memory, which stays as it is."""
    onnx_file.require_tensors(model)
    return _import(model, config, "ModelProto")


def _import(model: onnx.ModelProto, config: FusionConfig, source: str) -> Imported:
    if not model.graph.node:
        raise UserError(f"{source} has an empty graph", "a graph with at least one operator")
    if model.functions:
        model = inline_local_functions(model)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in stored]
    table = DimTable([(info.name, _extents(info)) for info in inputs])
    chosen, unbound = table.resolve(config.dims)
    preflight.inspect(model, unbound).raise_if_any(source)

    ranges = {name: value for name, value in chosen.items() if isinstance(value, DimRange)}
    values = {
        name: tirx.Var(name, "int64") if name in ranges else value for name, value in chosen.items()
    }
    shapes = {name: [to_tir(d, values) for d in shape] for name, shape in table.shapes.items()}
    importer = _Importer(shapes, {values[name]: r for name, r in ranges.items()})
    mod = importer.convert(model, source)
    output_names = [info.name for info in model.graph.output]
    names = WeightNames(importer.constants())
    with tracking(names):
        mod = finish(mod, config, ranges)
    signature = signature_of(mod["main"], [info.name for info in inputs], output_names)
    if signature is None:
        raise UserError(f"{source} returns something else than tensors", "tensors")
    return Imported(mod, {"main": signature}, ranges, names.of(mod), source)


def _extents(info: onnx.ValueInfoProto) -> list[int | str | None]:
    """List an input's extents; those that are not positive stand for dynamic ones in old files."""
    return [
        dim.dim_value if dim.dim_value > 0 else dim.dim_param.strip() or None
        for dim in info.type.tensor_type.shape.dim
    ]


class _Importer(ONNXGraphImporter):
    """TVM's importer with shapes given, names untouched, and a record of the weights.

    ``from_onnx`` around it would serialise the whole model for a check that was done already.
    """

    def __init__(self, shapes: dict[str, list[Any]], ranges: dict[Any, DimRange]):
        super().__init__(shapes, {}, sanitize=False)
        self._ranges = ranges
        self._at = ""

    def convert(self, model: onnx.ModelProto, source: str) -> Any:
        """Convert the graph; whatever the importer raises becomes one sentence."""
        graph = model.graph
        # The importer parses the names of dimensions even where shapes are given, and stumbles over
        # some, so it sees inputs without them.
        inputs = [_without_dim_names(info) for info in graph.input]
        view = SimpleNamespace(
            node=graph.node, initializer=graph.initializer, input=inputs, output=graph.output
        )
        try:
            with quiet_importer():
                return self.from_onnx(view, preflight.opset_of(model))
        except Exception as error:
            self._end_blocks()
            where = f" at operator {self._at}" if self._at else ""
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{source} cannot be imported{where} ({reason})") from error

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict, opset: int) -> Any:
        name = attrs["tvm_custom"]["name"]
        self._at = f"{op_name} '{name}'" if name else op_name
        result = None
        if op_name == "Range":
            result = convert_range(inputs, self._ranges)
        if result is None:
            result = super()._convert_operator(op_name, inputs, attrs, opset)
        else:
            result = self.bb.normalize(result)
        self._at = ""
        return result

    def _construct_nodes(self, graph: Any) -> None:
        super()._construct_nodes(graph)
        for info in graph.output:  # extents are shapes or numbers to the importer
            value = self._nodes[info.name]
            if is_prim_expr(value):
                extent = self.bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([value])))
                self._nodes[info.name] = self.bb.normalize(relax.op.reshape(extent, ()))
            elif isinstance(value, relax.ShapeExpr):
                self._nodes[info.name] = self.bb.normalize(relax.op.shape_to_tensor(value))

    def _end_blocks(self) -> None:
        """Close what a failed import left open; the builder would complain when it is destroyed."""
        with contextlib.suppress(Exception):
            while True:
                self.bb._end_block()

    def constants(self) -> Iterator[tuple[str, Any]]:
        """Yield the constants with their names in the model, initializers first."""
        for name, value in self._nodes.items():
            if isinstance(value, GenericConst):
                yield name, value


def _without_dim_names(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    plain = onnx.ValueInfoProto()
    plain.CopyFrom(info)
    for dim in plain.type.tensor_type.shape.dim:
        dim.dim_value = max(dim.dim_value, 1)
    return plain
