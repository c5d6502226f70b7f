"""A convolutional network of the zoo for several images at once: its graph is for one."""

import numpy as np
import onnx
from onnx import numpy_helper


def batched(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Return a copy of a one-image model with a larger batch.

    Exporters write the batch into the shapes of inputs and outputs and into constant targets of
    ``Reshape``, as their first extent. A graph that holds it elsewhere does not pass ONNX Runtime's
    inference of shapes, which the reference of any comparison runs.

    Parameters
    ----------
    model
        Whose tensors have one image, in their first dimension.
    batch
        Images.

    Returns
    -------
    onnx.ModelProto
        The same weights, inputs of shape ``(batch, ...)``.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if len(dims) > 1 and dims[0].dim_value == 1:
            dims[0].dim_value = batch
    del graph.value_info[:]
    weights = {tensor.name: tensor for tensor in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        # The shape of a weight, such as a table of positions, is without images.
        if node.op_type != "Reshape" or node.input[0] in weights:
            continue
        target = weights.get(node.input[1])
        if target is None and node.input[1] in made and made[node.input[1]].attribute:
            target = made[node.input[1]].attribute[0].t
        if target is None:
            continue
        shape = numpy_helper.to_array(target)
        if shape.size > 1 and shape[0] == 1:
            new = np.concatenate([[batch], shape[1:]]).astype(shape.dtype)
            target.CopyFrom(numpy_helper.from_array(new, target.name))
    return result
