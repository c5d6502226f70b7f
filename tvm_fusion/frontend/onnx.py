"""Import ONNX models: preflight, then the converters of :mod:`.onnx_ops` in TVM's importer."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from tvm import tirx

from ..config import FusionConfig
from ..core.constants.narrow_types import NARROW
from ..core.constants.weight_names import WeightNames, tracking
from ..errors import UserError
from ..signature import DimRange
from . import Imported, preflight
from .describe import signature_of, with_storage
from .dims import DimTable
from .extents import names_in, to_tir
from .finish import finish
from .onnx_model import file as onnx_file
from .onnx_model.constants import bind_inputs
from .onnx_model.graph import with_standard_opset
from .onnx_model.rewrite import inline_functions, without_optionals
from .onnx_model.sequences import element_type, known_lengths, length_option, with_elements
from .onnx_model.types import dtype_name, infer_types
from .onnx_ops import CONVERTERS, Importer
from .onnx_ops.defined_names import check_names, has_undecodable_text
from .steps import Steps


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
