"""Bind inputs of an ONNX model to values, and find those whose values decide shapes."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...errors import UserError
from .graph import nodes, subgraphs

#: Indices of the inputs whose values decide shapes, or how an operator is computed: axes, sizes,
#: counts. A compiler has to know them.
SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    **{
        f"Reduce{kind}": (1,)
        for kind in (
            *("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"),
        )
    },
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
# Elements of an input that may carry a shape; weights and data are larger.
_LARGEST = 64


def bind_inputs(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Turn inputs of a model into initializers.

    Parameters
    ----------
    model
        The model, which stays as it is.
    values
        By input; converted to the input's dtype where that keeps every value.

    Returns
    -------
    onnx.ModelProto
        A model without these inputs; the same object where there are none.

    Raises
    ------
    UserError
        For a name that is no input, and for values of another dtype or shape.
    """
    if not values:
        return model
    stored = {tensor.name for tensor in model.graph.initializer}
    infos = {info.name: info for info in model.graph.input if info.name not in stored}
    for name in values:
        if name not in infos:
            raise UserError(
                f"constants names {name!r}, which is not an input of the model",
                f"one of {', '.join(map(repr, infos))}" if infos else "a model with inputs",
            )
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.input[:]
    result.graph.input.extend(info for info in model.graph.input if info.name not in values)
    for name, value in values.items():
        result.graph.initializer.append(numpy_helper.from_array(as_input(infos[name], value), name))
    return result


def as_input(info: onnx.ValueInfoProto, value: np.ndarray) -> np.ndarray:
    """Cast a value to an input's dtype, and a single element to its rank."""
    if info.type.WhichOneof("value") != "tensor_type":
        raise UserError(
            f"constants names {info.name!r}, which is not a tensor", "inputs of tensors"
        )
    tensor = info.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    given = np.asarray(value)
    if given.dtype.kind in "OUS" or dtype.kind in "OUS":
        raise UserError(
            f"constants[{info.name!r}] is not a tensor of numbers", f"values of {dtype}"
        )
    with np.errstate(all="ignore"):
        array = given.astype(dtype)
        is_kept = dtype.kind not in "iub" or np.array_equal(array.astype(given.dtype), given)
    if not is_kept:
        found = f"constants[{info.name!r}] has values that {dtype.name} cannot hold"
        raise UserError(found, f"values of {dtype.name}")
    if not tensor.HasField("shape"):
        return array
    wanted = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    if array.size == 1 and array.ndim < 2 and all(extent in (1, None) for extent in wanted):
        array = array.reshape([1] * len(wanted))
    fits = len(wanted) == array.ndim and all(
        extent is None or extent == given for extent, given in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        shown = [extent if extent is not None else "?" for extent in wanted]
        raise UserError(
            f"constants[{info.name!r}] has shape {list(array.shape)}",
            f"[{', '.join(map(str, shown))}]",
        )
    return array


def shape_inputs(
    model: onnx.ModelProto, of: Iterable[onnx.NodeProto] | None = None
) -> tuple[str, ...]:
    """Name the inputs of a model whose values decide shapes, through any operators between.

    Parameters
    ----------
    of
        The nodes whose shapes are meant; all of the model by default.

    Returns
    -------
    tuple of str
        In the order of the model's inputs: tensors of numbers with at most one axis.
    """
    everything = list(nodes(model.graph))
    needed: set[str] = set()
    for node in everything if of is None else of:
        for index in SHAPE_OPERANDS.get(node.op_type, ()):
            if index < len(node.input):
                needed.add(node.input[index])
    _add_sources(needed, everything)
    stored = {tensor.name for tensor in model.graph.initializer}
    return tuple(
        info.name
        for info in model.graph.input
        if info.name in needed and info.name not in stored and _may_carry_shape(info)
    )


def _add_sources(needed: set[str], everything: Collection[onnx.NodeProto]) -> None:
    """Add what the needed values are computed of; the shape of a tensor needs no value of it."""
    size = -1
    while size != len(needed):
        size = len(needed)
        for node in reversed(list(everything)):
            if node.op_type not in ("Shape", "Size") and needed.intersection(node.output):
                needed.update(name for name in node.input if name)
                for attribute in node.attribute:  # what branches and loop bodies compute
                    for inner in subgraphs(attribute):
                        needed.update(info.name for info in inner.output)


def _may_carry_shape(info: onnx.ValueInfoProto) -> bool:
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return False
    if tensor.elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        return False
    extents = [dim.dim_value for dim in tensor.shape.dim]
    return len(extents) <= 1 and all(extent <= _LARGEST for extent in extents)
