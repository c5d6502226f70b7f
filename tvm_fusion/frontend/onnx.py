"""Import ONNX models: preflight, then the converters of :mod:`.onnx_ops` in TVM's importer."""

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import defs
from tvm import tirx

from ..config import FusionConfig
from ..core.constants.narrow_types import NARROW
from ..core.constants.weight_names import WeightNames, tracking
from ..errors import UserError
from ..signature import DimRange
from . import Imported, preflight
from .dimensions.extents import names_in, to_tir
from .dimensions.signatures import signature_of, with_storage
from .dimensions.steps import Steps
from .dimensions.symbolic import DimTable
from .finish import finish
from .onnx_model import file as onnx_file
from .onnx_model.constants import bind_inputs
from .onnx_model.graph import opsets_of, subgraphs, with_standard_opset
from .onnx_model.order import in_order
from .onnx_model.rewrite import inline_functions, without_optionals
from .onnx_model.sequences import element_type, known_lengths, length_option, with_elements
from .onnx_model.types import dtype_name, infer_types
from .onnx_ops import CONVERTERS, Importer
from .onnx_ops.registry import STANDARD, defined

# Check what an ONNX model's names refer to, which onnx's own inference takes for granted.
#
# Its shape inference ends the process where a node reads a name that nothing defines.

_MOST_AXES = 64
_MOST_ELEMENTS = 2**48  # of an input: a petabyte; sums and products of some sizes fit 64 bits


def check_names(model: onnx.ModelProto, source: str) -> None:
    """Check that names are defined once, and before they are read.

    Parameters
    ----------
    source
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


def from_file(path: str | os.PathLike, config: FusionConfig) -> Imported:
    """Import an ONNX file; see :func:`tvm_fusion.frontend.import_model`."""
    return _decoded(onnx_file.load(path), config, Path(path).name)


def from_model_proto(model: onnx.ModelProto, config: FusionConfig) -> Imported:
    """Import a model in memory, which stays as it is."""
    onnx_file.require_tensors(model)
    return _decoded(model, config, "ModelProto")


def _decoded(model: onnx.ModelProto, config: FusionConfig, source: str) -> Imported:
    """Import a model; protobuf gives texts that are no UTF-8 as bytes."""
    try:
        model = in_order(model)
        check_names(model, source)
        return _import(model, config, source)
    except Exception as error:  # guard: raised again, unless the model explains it
        if has_undecodable_text(model):
            raise UserError(
                f"{source} has names that are not UTF-8",
                "an undamaged ONNX model",
                "export it again",
            ) from error
        raise


def _import(model: onnx.ModelProto, config: FusionConfig, source: str) -> Imported:
    if not model.graph.node:
        raise UserError(f"{source} has an empty graph", "a graph with at least one operator")
    model = bind_inputs(with_standard_opset(model), config.constants)
    lengths = known_lengths(model, config.dims)
    model = with_elements(model, lengths)
    model = without_optionals(inline_functions(model, CONVERTERS))
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in stored]
    dims = {n: d for n, d in config.dims.items() if n not in map(length_option, lengths)}
    table = dim_table(model, dims)
    chosen, unbound = table.resolve(dims)
    bound = {name: value for name, value in chosen.items() if isinstance(value, int)}
    extents = {
        name: [_known(extent, bound) for extent in shape] for name, shape in table.shapes.items()
    }
    model = preflight.expanded(model, extents)
    types = infer_types(model, extents)
    preflight.inspect(model, unbound, types).raise_if_any(source)

    ranges = {name: value for name, value in chosen.items() if isinstance(value, DimRange)}
    steps = Steps.among(ranges)
    variables = {name: tirx.Var(name, "int64") for name in ranges} | steps.variables
    values = {
        name: variables.get(name, value) if name not in steps.variables else steps.extent(name)
        for name, value in chosen.items()
    }
    shapes = {name: [to_tir(d, values) for d in shape] for name, shape in table.shapes.items()}
    inner = steps.inner(ranges)
    known = {variable: inner[variable.name] for variable in variables.values()}
    importer = Importer(shapes, known, types, steps.parameter())
    mod = steps.marked(importer.convert(model, source))
    names = WeightNames(importer.constants())
    with tracking(names):
        mod = finish(mod, config, inner)
    signature = signature_of(mod["main"], [info.name for info in inputs], importer.output_names)
    if signature is None:
        raise UserError(f"{source} returns something other than tensors", "tensors")
    names_known = {variable.name for variable in known}
    equal = tuple(
        e for e in importer.required if names_in(e.one) | names_in(e.other) <= names_known
    )
    signature = replace(signature, equal=equal)
    signature = with_storage(steps.in_dims(signature), _narrow_dtypes(model, importer.output_names))
    return Imported(mod, {"main": signature}, ranges, names.of(mod), source)


def _narrow_dtypes(model: onnx.ModelProto, outputs: Collection[str]) -> dict[str, str]:
    """Return the element types of inputs and outputs that are stored as bytes."""
    infos = (*model.graph.input, *model.graph.output)
    dtypes = {info.name: dtype_name(info.type.tensor_type.elem_type) for info in infos}
    for info in model.graph.output:
        elements = element_type(info.type)
        if elements is not None:
            dtype = dtype_name(elements.tensor_type.elem_type)
            dtypes |= {n: dtype for n in outputs if n.startswith(f"{info.name}_")}
    return {name: dtype for name, dtype in dtypes.items() if dtype in NARROW}


def dim_table(model: onnx.ModelProto, wanted: Collection[str] = ()) -> DimTable:
    """List the extents of a model's inputs, initializers left out, and name the symbolic ones.

    Parameters
    ----------
    wanted : container of str
        Names that the user binds. An extent of zero is one, except where a user binds it by the
        name of an unnamed dimension, ``<input>_<axis>``: old exporters wrote zero for dynamic ones.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    infos = [info for info in model.graph.input if info.name not in stored]
    return DimTable([(info.name, _extents(info, wanted)) for info in infos])


def _known(extent: int | str, bound: Mapping[str, int]) -> int | None:
    """Return an extent as a number where all that it is made of is bound."""
    try:
        return int(to_tir(extent, bound))
    except KeyError:
        return None


def _extents(info: onnx.ValueInfoProto, wanted: Collection[str]) -> list[int | str | None]:
    """List an input's extents; each "?" is a dimension of its own unless a user binds "?"."""
    extents: list[int | str | None] = []
    for axis, dim in enumerate(info.type.tensor_type.shape.dim):
        dynamic = dim.dim_value == 0 and f"{info.name}_{axis}" in wanted
        if dim.HasField("dim_value") and dim.dim_value >= 0 and not dynamic:
            extents.append(dim.dim_value)
        else:
            label = dim.dim_param.strip()
            extents.append(None if label in ("", "?") and label not in wanted else label)
    return extents
