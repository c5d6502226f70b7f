"""Turn inputs of an ONNX model that are sequences of tensors into one input for each element.

An artifact's inputs and outputs are tensors. The elements of a sequence ``x`` are called ``x_0``,
``x_1`` and so on; how many there are is settled when the model is compiled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

from ...errors import UserError


def length_option(name: str) -> str:
    """Name the dimension that is the length of a sequence input."""
    return f"{name}_length"


def sequence_inputs(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the inputs that are sequences of tensors, or optional ones, with the elements' type.

    Of a sequence of anything else there is no element type, and it is not listed.
    """
    found = {info.name: element_type(info.type) for info in model.graph.input}
    return {name: kind for name, kind in found.items() if kind is not None}


def element_type(kind: onnx.TypeProto) -> onnx.TypeProto | None:
    """Return the type of the tensors in a sequence, or an optional one; None for anything else."""
    if kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    if kind.HasField("sequence_type") and kind.sequence_type.elem_type.HasField("tensor_type"):
        return kind.sequence_type.elem_type
    return None


def known_lengths(model: onnx.ModelProto, dims: Mapping[str, Any]) -> dict[str, list[None]]:
    """Read the lengths of sequence inputs from what the user says about dimensions.

    Parameters
    ----------
    dims : mapping of str to (int or DimRange)
        The user's choices; that of a length is called ``<input>_length``.

    Returns
    -------
    dict of str to list
        By input, for :func:`with_elements`.

    Raises
    ------
    UserError
        For sequence inputs without a length, and for one that is no number.
    """
    lengths: dict[str, list[None]] = {}
    missing = []
    for name in sequence_inputs(model):
        length = dims.get(length_option(name))
        if length is None:
            missing.append(name)
        elif not isinstance(length, int) or length < 0:
            raise UserError(
                f"--dim {length_option(name)} is a range or negative",
                "the number of elements of the sequence",
            )
        else:
            lengths[name] = [None] * length
    if missing:
        listed = ", ".join(missing)
        options = " and ".join(f"--dim {length_option(name)}=LENGTH" for name in missing)
        plural = "are sequences" if len(missing) > 1 else "is a sequence"
        raise UserError(
            f"the length of input {listed}, which {plural}, is not known", None, f"give {options}"
        )
    return lengths


def with_elements(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[Sequence[int] | None]]
) -> onnx.ModelProto:
    """Replace sequence inputs by one input for each element.

    Parameters
    ----------
    model
        The model, which stays as it is.
    shapes : mapping of str to sequence of (shape or None)
        By sequence input, the shape of each element; None where it is as the model declares it.

    Returns
    -------
    onnx.ModelProto
        The same object where there is nothing to do.
    """
    elements = {n: ty for n, ty in sequence_inputs(model).items() if n in shapes}
    if not elements:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    taken = {info.name for info in graph.input} | {n for node in graph.node for n in node.output}
    inputs, nodes = [], []
    for info in model.graph.input:
        if info.name not in elements:
            inputs.append(info)
            continue
        names = [f"{info.name}_{i}" for i in range(len(shapes[info.name]))]
        for name, shape in zip(names, shapes[info.name], strict=True):
            if name in taken:
                raise UserError(
                    f"element {name} of sequence {info.name} is called as another value",
                    "names of the model's own that do not end like those of elements",
                )
            inputs.append(_element(name, elements[info.name], shape))
        kind = elements[info.name].tensor_type.elem_type
        nodes.append(
            helper.make_node("SequenceConstruct", names, [info.name])
            if names
            else helper.make_node("SequenceEmpty", [], [info.name], dtype=kind)
        )
    rest = list(graph.node)
    del graph.input[:]
    graph.input.extend(inputs)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    return result


def _element(name: str, kind: onnx.TypeProto, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    info.type.CopyFrom(kind)
    if shape is not None:
        return helper.make_tensor_value_info(name, kind.tensor_type.elem_type, list(shape))
    for dim in info.type.tensor_type.shape.dim:
        dim.ClearField("dim_param")  # elements may differ where the type leaves an extent open
    return info


def elements_of(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Spread lists of arrays to their elements, by name; anything else stays."""
    found: dict[str, Any] = {}
    for name, value in feeds.items():
        if isinstance(value, (list, tuple)):
            found |= {f"{name}_{i}": item for i, item in enumerate(value)}
        else:
            found[name] = value
    return found
