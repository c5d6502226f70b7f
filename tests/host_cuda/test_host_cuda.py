"""CUDA C of integer kernels, run on the host: what C leaves undefined, and foreign memory, show."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from index_cases import LIMIT, ONNX, spoiled
from test_integer_arithmetic import TYPES, Drawn, truncated_quotient

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("g++") is None,
    reason="the stand-in for CUDA needs a C and a C++ compiler",
)


def run(folder, *cases):
    """Results of pairs of a model and a list of inputs, and the kernels that ran."""
    given, results = folder / "cases", folder / "results"
    pairs = [(model.SerializeToString(), draws) for model, draws in cases]
    given.write_bytes(pickle.dumps(pairs))
    command = [sys.executable, HERE / "run_models.py", folder, given, results]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-3000:]
    return pickle.loads(results.read_bytes())


@pytest.mark.slow
def test_quotients_shifts_and_casts(tmp_path):
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (int32[8] a, int32[8] b, float[8] f) => (int32[8] q, int32[8] m, int32[8] p, int8[8] c,
        int64[8] w, uint32[8] u, bool[8] g) <int32 most = {2147483647}, int32 many = {100}> {
        q = Div(a, b)  m = Mod(a, b)  p = Mul(a, b)
        c = Cast<to = 3>(f)  w = Cast<to = 7>(f)  u = Cast<to = 12>(f)
        r = Div(a, most)  g = Less(r, many)
    }"""
    least = -(2**31)
    a = np.array([7, -7, least, least, least, 5, 2**31 - 1, -9], "int32")
    b = np.array([0, -2, -1, 0, 2, -2, 2**31 - 1, 4], "int32")
    f = np.array([np.nan, np.inf, -np.inf, 300, -2.5, 3e9, 1e19, -1e30], "float32")
    ((results,),), kernels = run(
        tmp_path, (onnx.parser.parse_model(text), [{"a": a, "b": b, "f": f}])
    )
    with np.errstate(all="ignore"):
        quotient = np.where(b == 0, 0, truncated_quotient(a, b))
        expected = {"q": quotient, "m": np.mod(a, b), "p": a * b, "g": np.ones(8, bool)}
    long, half = -(2**63), 2**31
    expected["c"] = [0, 0, 0, 44, -2, 0, 0, 0]
    expected["w"] = [long, long, long, 300, -2, 3 * 10**9, long, long]
    expected["u"] = [half, 0, half, 300, 2**32 - 2, 3 * 10**9, 0, half]
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value, name)
    assert kernels


@pytest.mark.slow
def test_drawn_expressions(tmp_path):
    rng = np.random.default_rng()
    drawn, names = Drawn(rng, int(rng.choice([7, 33, 300]))), []
    with np.errstate(all="ignore"):
        while len(names) < 24:
            name = drawn.expression(TYPES[len(names) % len(TYPES)], int(rng.integers(2, 4)))
            if name not in drawn.inputs and name not in names:
                names.append(name)
    model = drawn.model(names)
    inputs = {i.name: drawn.inputs[i.name] for i in model.graph.input}
    ((results,),), _ = run(tmp_path, (model, [inputs]))
    for name in names:
        np.testing.assert_array_equal(results[name], drawn.values[name], name)


# Others have barriers, or mathematical functions of CUDA's own.
INDEXED = [n for n in ONNX if n.startswith(("Gather", "Scatter", "OneHot", "TensorScatter", "Rev"))]


@pytest.mark.slow
def test_indices_out_of_range(tmp_path):
    cases = []
    for name in INDEXED:
        inputs, extent = ONNX[name].inputs(), ONNX[name].extent
        wrong = [w for n in inputs if n.startswith("i") for _, w in spoiled(inputs, n, extent)]
        cases.append((ONNX[name].model(), [inputs, *wrong]))
    found, _ = run(tmp_path, *cases)
    for name, outputs in zip(INDEXED, found, strict=True):
        for y in (y for output in outputs for y in output.values()):
            assert not (np.abs(y[np.isfinite(y)].astype("float64")) > LIMIT).any(), name
