"""The nine image classifiers inside the onnx package, with their missing weights as blanks.

The package ships them with weights that are one constant value each (ConstantOfShape nodes); their
expected outputs are one constant value too and prove nothing.
"""

from pathlib import Path

import onnx
import onnx.backend.test

_FILES = {
    "light_alexnet": "light_bvlc_alexnet",
    "light_densenet121": "light_densenet121",
    "light_inception_v1": "light_inception_v1",
    "light_inception_v2": "light_inception_v2",
    "light_resnet50": "light_resnet50",
    "light_shufflenet": "light_shufflenet",
    "light_squeezenet": "light_squeezenet",
    "light_vgg19": "light_vgg19",
    "light_zfnet512": "light_zfnet512",
}
NAMES = tuple(_FILES)


def blank(name: str) -> onnx.ModelProto:
    """Read a light graph and turn its constant weights into blank initializers.

    Parameters
    ----------
    name
        One of :data:`NAMES`.

    Returns
    -------
    onnx.ModelProto
        The graph at its own opset (9). Weights are initializers with a shape and no data; the
        graph's inputs are the model's true inputs only.
    """
    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    model = onnx.load(folder / f"{_FILES[name]}.onnx")
    # Up to version 3 every initializer must also be a graph input, that is, no constant.
    model.ir_version = 4
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in [n for n in graph.node if n.op_type == "ConstantOfShape"]:
        shape = onnx.numpy_helper.to_array(tensors[node.input[0]])
        tensors[node.output[0]] = onnx.TensorProto(
            name=node.output[0], data_type=onnx.TensorProto.FLOAT, dims=shape.tolist()
        )
        graph.node.remove(node)
    for tensor in tensors.values():
        if tensor.data_type == onnx.TensorProto.FLOAT:
            for field in ("float_data", "raw_data"):
                tensor.ClearField(field)
    used = {name for node in graph.node for name in node.input}
    inputs = [value for value in graph.input if value.name not in tensors]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(tensor for name, tensor in tensors.items() if name in used)
    graph.input.extend(inputs)
    return model
