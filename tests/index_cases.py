"""Operators with operands that are indices: models, and numbers that are no indices of theirs."""

from dataclasses import dataclass

import numpy as np
import onnx

HEAD = '<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]> '
LIMIT = 1e4  # above all results of elements up to 9, far below what guards hold
#: What a scatter makes of an element and its update, by the reduction's name in Relax.
REDUCTIONS = {
    "update": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@dataclass(frozen=True)
class Indexed:
    """A graph in ONNX's text whose inputs ``i...`` are indices, all others data."""

    text: str  # the graph
    extent: int  # of the axis: indices in range are drawn below it

    def model(self) -> onnx.ModelProto:
        """Parse the graph."""
        return onnx.parser.parse_model(HEAD + self.text)

    def inputs(self) -> dict[str, np.ndarray]:
        """Draw inputs, indices in range."""
        rng, drawn = np.random.default_rng(), {}
        for info in self.model().graph.input:
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            high = self.extent if info.name.startswith("i") else 10
            low = 0 if info.name.startswith("i") else 1
            drawn[info.name] = rng.integers(low, high, shape).astype(dtype)
        return drawn


def wrong(extent: int, dtype: np.dtype) -> list[float]:
    """List numbers that are no indices: next to the range, far from it, and the least of all."""
    if dtype.kind == "f":
        return [extent + 0.5, 1e30, -1e30, np.inf, -np.inf, np.nan]
    info = np.iinfo(dtype)
    wanted = [extent, 2**34 + 1, info.max, -extent - 1, -(2**33), info.min]
    return [n for n in wanted if info.min <= n <= info.max]


def spoiled(inputs: dict[str, np.ndarray], name: str, extent: int):
    """Yield inputs with wrong numbers in place of one index, and of all."""
    for number in wrong(extent, inputs[name].dtype):
        for everywhere in (False, True):
            array = inputs[name].copy()
            array.reshape(-1)[slice(None) if everywhere else -1] = number
            yield f"{name}={number}", {**inputs, name: array}


ONNX = {
    "Gather": Indexed("g (float[5,3] a, int64[2,3] i) => (float[2,3,3] y) { y = Gather(a, i) }", 5),
    "Gather axis 1, int32": Indexed(
        "g (float[5,3] a, int32[4] i) => (float[5,4] y) { y = Gather<axis=1>(a, i) }", 3
    ),
    "GatherElements": Indexed(
        "g (float[5,3] a, int64[2,3] i) => (float[2,3] y) { y = GatherElements(a, i) }", 5
    ),
    "GatherElements axis 1": Indexed(
        "g (float[5,3] a, int32[5,7] i) => (float[5,7] y) { y = GatherElements<axis=1>(a, i) }", 3
    ),
    "GatherElements behind Relu": Indexed(
        "g (float[5,3] a, int64[2,3] i) => (float[2,3] y) "
        "{ b = Relu(a) z = GatherElements(b, i) y = Add(z, z) }",
        5,
    ),
    "GatherND": Indexed("g (float[5,3] a, int64[7,2] i) => (float[7] y) { y = GatherND(a, i) }", 3),
    "GatherND of rows": Indexed(
        "g (float[5,3] a, int64[7,1] i) => (float[7,3] y) { y = GatherND(a, i) }", 5
    ),
    "GatherND batch": Indexed(
        "g (float[2,5,3] a, int64[2,1] i) => (float[2,3] y) { y = GatherND<batch_dims=1>(a, i) }", 5
    ),
    **{
        f"ScatterElements {reduction} axis {axis}": Indexed(
            f"g (float[5,3] a, int64[{2 if axis == 0 else 5},3] i, "
            f"float[{2 if axis == 0 else 5},3] u) => (float[5,3] y) "
            f'{{ y = ScatterElements<axis={axis}, reduction="{reduction}">(a, i, u) }}',
            5 if axis == 0 else 3,
        )
        for axis in (0, 1)
        for reduction in ("none", "add", "mul", "max", "min")
    },
    **{
        f"ScatterND {reduction}": Indexed(
            "g (float[5,3] a, int64[4,1] i, float[4,3] u) => (float[5,3] y) "
            f'{{ y = ScatterND<reduction="{reduction}">(a, i, u) }}',
            5,
        )
        for reduction in ("none", "add", "max")
    },
    "ScatterND of elements": Indexed(
        "g (float[5,3] a, int64[4,2] i, float[4] u) => (float[5,3] y) { y = ScatterND(a, i, u) }", 3
    ),
    "ScatterND of wide rows": Indexed(
        "g (float[5,64] a, int64[4,1] i, float[4,64] u) => (float[5,64] y) "
        "{ y = ScatterND(a, i, u) }",
        5,
    ),
    "OneHot": Indexed(
        "g (int64[5] i, float[2] v) => (float[5,4] y) "
        "{ d = Constant<value_ints=[4]>() y = OneHot(i, d, v) }",
        4,
    ),
    "TensorScatter": Indexed(
        "g (float[2,1,7,4] a, float[2,1,2,4] u, int64[2] i) => (float[2,1,7,4] y) "
        "{ y = TensorScatter(a, u, i) }",
        5,
    ),
    "TensorScatter circular": Indexed(
        "g (float[2,1,7,4] a, float[2,1,2,4] u, int64[2] i) => (float[2,1,7,4] y) "
        '{ y = TensorScatter<mode="circular">(a, u, i) }',
        7,
    ),
    "ReverseSequence": Indexed(
        "g (float[5,3] a, int64[3] i) => (float[5,3] y) { y = ReverseSequence(a, i) }", 5
    ),
    **{
        f"{op} {direction}": Indexed(
            f"g (float[5,3,2] a, float[{d},{4 * gates},2] w, float[{d},{4 * gates},4] r, "
            f"int32[3] i) => (float[5,{d},3,4] y, float[{d},3,4] h) "
            f'{{ y, h = {op}<hidden_size=4, direction="{direction}">(a, w, r, , i) }}',
            6,
        )
        for op, gates, direction, d in (("LSTM", 4, "bidirectional", 2), ("GRU", 3, "reverse", 1))
    },
    "NegativeLogLikelihoodLoss": Indexed(
        "g (float[3,5,2] a, int64[3,2] i, float[5] w) => (float[3,2] y) "
        '{ y = NegativeLogLikelihoodLoss<reduction="none">(a, i, w) }',
        5,
    ),
    "SoftmaxCrossEntropyLoss": Indexed(
        "g (float[3,5] a, int64[3] i) => (float y) { y = SoftmaxCrossEntropyLoss(a, i) }", 5
    ),
    "MaxUnpool": Indexed(
        "g (float[1,1,2,2] a, int64[1,1,2,2] i) => (float[1,1,4,4] y) "
        "{ y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(a, i) }",
        16,
    ),
    **{
        f"GridSample {mode} {padding}": Indexed(
            "g (float[1,2,5,4] a, float[1,3,3,2] i) => (float[1,2,3,3] y) "
            f'{{ y = GridSample<mode="{mode}", padding_mode="{padding}">(a, i) }}',
            2,
        )
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
    },
    "GridSample of volumes": Indexed(
        "g (float[1,2,3,5,4] a, float[1,1,3,3,3] i) => (float[1,2,1,3,3] y) "
        '{ y = GridSample<mode="linear", padding_mode="border">(a, i) }',
        2,
    ),
    "RoiAlign batch": Indexed(
        "g (float[3,2,5,4] a, float[2,4] r, int64[2] i) => (float[2,2,2,2] y) "
        "{ y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(a, r, i) }",
        3,
    ),
    "RoiAlign max batch": Indexed(
        "g (float[3,2,5,4] a, float[2,4] r, int64[2] i) => (float[2,2,2,2] y) "
        '{ y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2, mode="max">(a, r, i) }',
        3,
    ),
    "RoiAlign regions": Indexed(
        "g (float[3,2,5,4] a, float[2,4] i) => (float[2,2,2,2] y) { n = Constant<value_ints=[0,2]>"
        "() y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(a, i, n) }",
        4,
    ),
    "DeformConv offsets": Indexed(
        "g (float[1,1,5,5] a, float[1,1,2,2] w, float[1,8,4,4] i) => (float[1,1,4,4] y) "
        "{ y = DeformConv<kernel_shape=[2,2]>(a, w, i) }",
        3,
    ),
    "RotaryEmbedding positions": Indexed(
        "g (float[1,2,3,4] a, float[7,2] c, float[7,2] s, int64[1,3] i) => (float[1,2,3,4] y) "
        "{ y = com.microsoft.RotaryEmbedding(a, i, c, s) }",
        7,
    ),
    "EmbedLayerNormalization": Indexed(
        "g (int32[2,3] i, int32[2,3] i2, float[7,4] w, float[5,4] p, float[7,4] s, float[4] q, "
        "float[4] b) => (float[2,3,4] y, int32[2] m) "
        "{ y, m = com.microsoft.EmbedLayerNormalization(i, i2, w, p, s, q, b) }",
        7,
    ),
}
