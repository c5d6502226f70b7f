"""LSTM, GRU and RNN against ONNX Runtime, on random weights and odd sizes."""

import numpy as np
import pytest
from onnx import helper

import tvm_fusion
from tvm_fusion.core.recurrent.cell import ACTIVATIONS
from tvm_fusion.signature import DimRange

pytestmark = pytest.mark.slow_beyond(2)

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
cells = pytest.mark.parametrize("op", GATES)


@pytest.fixture
def layer(agrees):
    """Run one layer; what is named in ``given`` is there besides the weights."""
    rng = np.random.default_rng()

    def check(op, given=(), *, steps=5, batch=3, width=6, hidden=7, directions=1, **attrs):
        def random(*shape, scale=0.5):
            return (rng.standard_normal(shape) * scale).astype("float32")

        gates = GATES[op]
        of_others = rng.integers(1, steps + 1, batch - 2)
        lengths = rng.permutation([0, steps, *of_others]).astype("int32")
        is_batch_first = attrs.get("layout", 0)
        order = (lambda a, b: (b, a)) if is_batch_first else (lambda a, b: (a, b))
        optional = {
            "B": random(directions, 2 * gates * hidden),
            "lengths": lengths,
            "h0": random(*order(directions, batch), hidden),
            "c0": random(*order(directions, batch), hidden),
            "P": random(directions, 3 * hidden),
        }
        names = ["B", "lengths", "h0", "c0", "P"][: 5 if op == "LSTM" else 3]
        inputs = {
            "X": random(*order(steps, batch), width, scale=1),
            "W": random(directions, gates * hidden, width),
            # Small enough that rounding does not grow from step to step.
            "R": random(directions, gates * hidden, hidden, scale=0.25),
            **{n if n in given else f"_{n}": optional[n] for n in names},
        }
        outputs = {"Y": "float32", "Yh": "float32", "Yc": "float32"}
        outputs = dict(list(outputs.items())[: 1 + STATES[op]])
        constants = [n for n in ("W", "R", "B", "P") if n in inputs]
        return agrees(op, inputs, outputs, constants=constants, hidden_size=hidden, atol=5e-6,
                      **attrs)  # fmt: skip

    return check


@cells
@pytest.mark.parametrize(
    ("direction", "given"),
    [
        ("forward", ()),
        ("reverse", ("B", "lengths", "h0", "c0")),
        ("bidirectional", ("B", "lengths")),
        ("bidirectional", ("h0", "c0")),
    ],
)
def test_directions(op, direction, given, layer):
    layer(op, given, direction=direction, directions=1 + (direction == "bidirectional"))


@pytest.mark.parametrize("given", [(), ("B", "lengths", "h0")])
def test_reset_after_the_product(given, layer):
    layer("GRU", given, linear_before_reset=1, directions=2, direction="bidirectional")


@pytest.mark.parametrize("directions", [1, 2])
def test_peepholes(directions, layer):
    direction = ["forward", "bidirectional"][directions - 1]
    layer("LSTM", ["B", "h0", "c0", "P"], directions=directions, direction=direction)


def test_input_forget(layer):
    layer("LSTM", ["B", "c0"], input_forget=1)


@cells
def test_clip(op, layer):
    layer(op, ["B"], clip=0.3)


@pytest.mark.parametrize("number", range(0, len(ACTIVATIONS), 2))
def test_activations(number, layer):
    """Two at a time, one in each direction; constants go to those that take some."""
    names = [*sorted(ACTIVATIONS), "Tanh"][number : number + 2]
    layer("RNN", ["B"], activations=names, activation_alpha=[0.6, 0.7],
          activation_beta=[0.4, 0.3], directions=2, direction="bidirectional")  # fmt: skip


@cells
def test_activations_of_each_direction(op, layer):
    one = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[op]
    two = [*one[:-1], "LeakyRelu"]
    layer(
        op, ["B"], activations=one + two, directions=2, direction="bidirectional",
        activation_alpha=[0.2],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 5e-3)])
def test_artifact_of_symbolic_steps_and_rows(
    precision, tolerance, onnx_model, onnxruntime_run, rng, tmp_path
):
    """Whole kernels, of sizes known when the model runs, each row of a length of its own."""
    hidden, width = 21, 10
    weights = {
        name: (rng.standard_normal((2, *shape)) / 4).astype("float32")
        for name, shape in {"W": (4 * hidden, width), "R": (4 * hidden, hidden)}.items()
    }
    node = helper.make_node(
        "LSTM", ["X", "W", "R", "", "n"], ["Y", "Yh"], hidden_size=hidden, direction="bidirectional"
    )
    inputs = {"X": ("float32", ["t", "b", width]), "n": ("int32", ["b"])}
    model = onnx_model([node], inputs, dict.fromkeys(["Y", "Yh"], ("float32", None)), weights)
    dims = {"t": DimRange(1, 64), "b": DimRange(1, 16)}
    artifact = tvm_fusion.compile(model, dims=dims, precision=precision)
    assert artifact.manifest["functions"]["main"]["kernels"] == 2
    artifact.export(tmp_path / "model")
    run = tvm_fusion.load(tmp_path / "model")
    for steps, batch in ((1, 1), (9, 13)):
        x = rng.standard_normal((steps, batch, width), "float32")
        lengths = rng.integers(1, steps + 1, batch).astype("int32")
        lengths[0] = steps
        expected = onnxruntime_run(model, X=x, n=lengths)
        for one, other in zip(run(X=x, n=lengths).values(), expected, strict=True):
            np.testing.assert_allclose(np.asarray(one), other, rtol=0, atol=tolerance)
