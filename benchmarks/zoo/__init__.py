"""The zoo: real model graphs with seeded weights, needing only numpy and onnx.

Twelve graphs from real exporters (and one of them with a symbolic length) are committed without
their weights; nine more come with the onnx package. :func:`load` fills the weights in.
"""

import io
import lzma
import math
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.records import compressed
from benchmarks.zoo import light, roles, weights

GRAPHS = Path(__file__).parent / "graphs.tar.xz"  # in one stream: graphs are much alike


@cache
def exported() -> Mapping[str, bytes]:
    """Read the exported graphs, as ONNX files, by the models' names."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(GRAPHS.read_bytes()))) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def store(graphs: Mapping[str, bytes]) -> None:
    """Replace or add exported graphs."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, graph in sorted({**exported(), **graphs}.items()):
            member = tarfile.TarInfo(name)
            member.size = len(graph)
            archive.addfile(member, io.BytesIO(graph))
    GRAPHS.write_bytes(compressed(data.getvalue()))
    exported.cache_clear()


def names() -> tuple[str, ...]:
    """Names of all models: the exported ones, then the light ones."""
    return (*exported(), *light.NAMES)


def blank(name: str) -> onnx.ModelProto:
    """Read a graph without its weights: initializers to be drawn have a shape and no data."""
    if name in light.NAMES:
        return light.blank(name)
    if name not in names():
        raise KeyError(f"no model named {name!r} in the zoo; there are {', '.join(names())}")
    model = onnx.load_from_string(exported()[name])
    for tensor in model.graph.initializer:
        if tensor.doc_string:
            tensor.raw_data = weights.rotary(tensor.doc_string, tuple(tensor.dims)).tobytes()
            tensor.ClearField("doc_string")
    return model


def load(name: str, seed: int = 0) -> onnx.ModelProto:
    """Read a model and draw its weights.

    Parameters
    ----------
    name
        One of :func:`names`.
    seed
        Seeds the weights. Each tensor has a stream of its own, keyed by its name.

    Returns
    -------
    onnx.ModelProto
        A complete model, all weights float32.

    Raises
    ------
    KeyError
        If there is no such model.
    """
    model = blank(name)
    tensors = [tensor for tensor in model.graph.initializer if is_blank(tensor)]
    shapes = {tensor.name: tuple(tensor.dims) for tensor in tensors}
    found = roles.recipes(model.graph, shapes)
    for tensor in tensors:
        values = weights.draw(tensor.name, shapes[tensor.name], found[tensor.name], seed)
        tensor.raw_data = values.astype("<f4", copy=False).tobytes()
    return model


def is_blank(tensor: TensorProto) -> bool:
    """Whether a tensor has elements but no data."""
    fields = {field.name for field, _ in tensor.ListFields()}
    return math.prod(tensor.dims) > 0 and fields <= {"name", "dims", "data_type"}


def inputs(
    name: str, seed: int = 0, dims: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Draw valid inputs for a model.

    Parameters
    ----------
    name
        One of :func:`names`.
    dims
        Extents of symbolic dimensions.

    Returns
    -------
    dict of str to numpy.ndarray
        Normal images and samples; token ids within the vocabulary; attention masks of ones whose
        last eighth is padding (one token at least, never all); timesteps below 1000.

    Raises
    ------
    KeyError
        If there is no such model.
    ValueError
        If ``dims`` lacks one of the model's symbolic dimensions.
    """
    graph = blank(name).graph
    stream = np.random.Generator(np.random.PCG64(seed))
    rows = _table_rows(graph)
    drawn: dict[str, np.ndarray] = {}
    for value in graph.input:
        tensor_type = value.type.tensor_type
        shape = tuple(_extent(name, dim, dims or {}) for dim in tensor_type.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type)
        if dtype == np.float32:
            drawn[value.name] = stream.standard_normal(shape, np.float32)
        elif "mask" in value.name:
            mask = np.ones(shape, dtype)
            mask[..., max(1, shape[-1] * 7 // 8) :] = 0
            drawn[value.name] = mask
        else:
            drawn[value.name] = stream.integers(0, rows.get(value.name, 1000), shape).astype(dtype)
    return drawn


def _extent(name: str, dim: onnx.TensorShapeProto.Dimension, dims: Mapping[str, int]) -> int:
    if not dim.dim_param:
        return dim.dim_value
    if dim.dim_param not in dims:
        raise ValueError(
            f"{name} has the symbolic dimension {dim.dim_param!r}; "
            f"give its extent as dims={{{dim.dim_param!r}: 64}}"
        )
    return dims[dim.dim_param]


def _table_rows(graph: onnx.GraphProto) -> dict[str, int]:
    """For each tensor that indexes a table of weights: the table's number of rows."""
    first = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    gathers = [n for n in graph.node if n.op_type == "Gather" and n.input[0] in first]
    return {node.input[1]: first[node.input[0]] for node in gathers}
