"""Integers of models from end to end: as numpy's they wrap around, and no divisor ends it."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from integer_expressions import CODES, TYPES, Drawn, truncated_quotient

import tvm_fusion

pytestmark = pytest.mark.slow_beyond(2)


@pytest.mark.parametrize(
    ("rewrite", "results"),
    [("search", 5), pytest.param("none", 40, marks=pytest.mark.slow)],
)
def test_drawn_expressions_agree_with_numpy(tmp_path, rewrite, results):
    rng = np.random.default_rng()
    drawn = Drawn(rng, int(rng.choice([7, 13, 33])))
    with np.errstate(all="ignore"):
        names = []
        while len(names) < results:
            name = drawn.expression(TYPES[len(names) % len(TYPES)], int(rng.integers(2, 4)))
            if name not in drawn.inputs and name not in names:
                names.append(name)
    options = {} if rewrite == "search" else {"rewrite": rewrite}
    model = drawn.model(names)
    executable = tvm_fusion.load(
        tvm_fusion.compile(model, "cpu", **options).export(tmp_path / "drawn")
    )
    got = executable.run({i.name: drawn.inputs[i.name] for i in model.graph.input})
    for name in names:
        np.testing.assert_array_equal(got[name], drawn.values[name], name)


WRAPPING = """g (int32[9] x, int32[9] y, int64[9] w, uint8[9] u) => (int64[9] a, int32[9] b,
        bool[9] c, int32[9] d, int32[1] e, int64[9] f, uint8[9] g, int32[1] h, int32[9] i)
    <int32 two = {2}, int32 three = {3}, int32 six = {6}, int64 zero = {0}, int32 ten = {10},
     int64[1] all = {0}> {
    x3 = Mul(x, three)  a = Cast<to = 7>(x3)
    x6 = Mul(x, six)  b = Div(x6, three)
    x2 = Add(x, two)  c = Greater(x2, x)
    y2 = Mul(y, two)  xx = Mul(x, two)  d = Max(xx, y2)
    e = ReduceSum(xx, all)
    f = CumSum(w, zero)
    n = Sub(u, u)  g = Sub(n, u)
    h = ReduceProd(x2, all)
    m = Neg(x)  i = Mod(m, ten)
}"""


@pytest.mark.slow
def test_what_simplifiers_take_for_unbounded(tmp_path):
    """Each was something else once: x * 6 / 3 was x * 2, x + 2 > x was true."""
    text = '<ir_version: 9, opset_import: ["": 18]>' + WRAPPING
    near = np.array([2**30 + 5, -(2**30) - 7, 2**31 - 1, -(2**31), 5, 0, 12345, -9, 99], "int32")
    x, y = near, near[::-1].copy()
    w = near.astype("int64") * 2**32
    u = np.arange(0, 252, 28).astype("uint8")
    executable = tvm_fusion.load(
        tvm_fusion.compile(onnx.parser.parse_model(text), "cpu").export(tmp_path / "wrapping")
    )
    got = executable.run({"x": x, "y": y, "w": w, "u": u})
    with np.errstate(over="ignore"):
        expected = {
            "a": (x * np.int32(3)).astype("int64"),
            "b": truncated_quotient(x * np.int32(6), np.int32(3)),
            "c": x + np.int32(2) > x,
            "d": np.maximum(x * np.int32(2), y * np.int32(2)),
            "e": np.sum(x * np.int32(2), keepdims=True, dtype="int32"),
            "f": np.cumsum(w),
            "g": np.negative(u),
            "h": np.prod(x + np.int32(2), keepdims=True, dtype="int32"),
            "i": np.mod(-x, np.int32(10)),
        }
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, name)


CHAINS = """g (int32[9] x, int64[9] w) => (int32[9] a, bool[9] b, int64[9] c, bool[9] d,
        bool[9] e, bool[9] f, int32[9] h)
    <int32 most = {2147483647}, int64 last = {9223372036854775807}, int32 hundred = {100},
     int64 many = {100}, int32 one = {1}, int32 zero = {0}> {
    x2 = Add(x, x)  q = Div(x2, most)  a = Mod<fmod = 1>(q, hundred)  b = Less(q, hundred)
    p = Div(w, last)  c = Div(p, many)  d = Less(p, many)
    y = Cast<to = 3>(x)  y32 = Cast<to = 6>(y)  m = Sub(y32, one)  e = Less(m, most)
    n = Add(y32, one)  least = Sub(zero, most)  f = Greater(n, least)
    h = Div(x, zero)
}"""


def test_constants_of_chains_are_not_gathered(tmp_path):
    """A quotient of 64 bits was less than 100 only where its dividend was less than -100."""
    text = '<ir_version: 9, opset_import: ["": 18]>' + CHAINS
    x = np.array([2**31 - 1, -(2**31), 2**30, -(2**30), 5, 0, 12345, -9, 100], "int32")
    w = x.astype("int64") * 2**32
    executable = tvm_fusion.load(
        tvm_fusion.compile(onnx.parser.parse_model(text), "cpu").export(tmp_path / "chains")
    )
    got = executable.run({"x": x, "w": w})
    with np.errstate(over="ignore"):
        q = truncated_quotient(x + x, np.int32(2**31 - 1))
    p = truncated_quotient(w, np.int64(2**63 - 1))
    expected = {"a": np.fmod(q, 100), "b": q < 100, "c": truncated_quotient(p, np.int64(100))}
    expected |= {"d": p < 100, "e": np.ones(9, bool), "f": np.ones(9, bool), "h": np.zeros(9)}
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, name)


ALONE = """
import sys
import numpy as np
import tvm_fusion

executable = tvm_fusion.load(sys.argv[1])
least = -(2**31)
a = np.array([7, -7, 0, least, least, least, 5], "int32")
b = np.array([0, 0, 0, -1, 0, 2, -2], "int32")
got = executable.run({"a": a, "b": b})
assert got["d"].tolist() == [0, 0, 0, least, 0, -(2**30), -2], got
assert got["m"].tolist() == [0, 0, 0, 0, 0, 0, -1], got
assert got["r"].tolist() == [0, 0, 0, 0, 0, 0, 1], got
assert not [name for name in sys.modules if name.split(".")[0] == "tvm"]
"""


def test_no_divisor_ends_the_process(tmp_path):
    """Quotients by 0 are 0, as numpy's; of the smallest number by -1, that number."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (int32[7] a, int32[7] b) => (int32[7] d, int32[7] m, int32[7] r) {
        d = Div(a, b)
        m = Mod(a, b)
        r = Mod<fmod = 1>(a, b)
    }"""
    folder = tvm_fusion.compile(onnx.parser.parse_model(text), "cpu").export(tmp_path / "divided")
    done = subprocess.run([sys.executable, "-c", ALONE, folder], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_casts_agree_at_every_position(tmp_path, dtype):
    """In a vector and behind it, and with what PyTorch and ONNX Runtime compute on x86."""
    numbers = np.array([-2.2, 300, 7e4, 3e9, 5e9, -3e9, 1e19, np.inf, -np.inf, np.nan], "float32")
    counts = (1, 5, 8, 31)
    inputs = ", ".join(f"float[10, {n}] x{n}" for n in counts)
    outputs = ", ".join(f"{dtype}[10, {n}] y{n}" for n in counts)
    casts = "\n".join(f"y{n} = Cast<to = {CODES[dtype]}>(x{n})" for n in counts)
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({outputs}) {{ {casts} }}'
    executable = tvm_fusion.load(
        tvm_fusion.compile(onnx.parser.parse_model(text), "cpu").export(tmp_path / "cast")
    )
    got = executable.run({f"x{n}": np.repeat(numbers[:, None], n, 1) for n in counts})
    least = np.iinfo("int32").min
    expected = {
        "int8": [-2, 44, 112, *[0] * 7],
        "uint8": [254, 44, 112, *[0] * 7],
        "int32": [-2, 300, 70000, *[least] * 7],
        "uint32": [2**32 - 2, 300, 70000, 3 * 10**9, 0, 2**31, 0, 0, 2**31, 2**31],
    }[dtype]
    for n in counts:
        wanted = np.repeat(np.array(expected, dtype)[:, None], n, 1)
        np.testing.assert_array_equal(got[f"y{n}"], wanted, f"rows of {n}")


def test_quantizing_what_is_no_number_gives_zero(tmp_path):
    """In vectors and behind them, by a step of 0 too; the scale of zeros is 1."""
    types, steps = ("uint8", "int8", "int16", "uint16"), {"half": 0.5, "none": 0.0}
    outputs = ", ".join(f"{t}[23] {t}_{name}" for t in types for name in steps)
    zeros = ", ".join(f"{t} zero_{t} = {{3}}" for t in types)
    lines = [f"{t}_{n} = QuantizeLinear(x, {n}, zero_{t})" for t in types for n in steps]
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[23] x, float[5] e) => ({outputs}, uint8[5] q, float s, uint8 z)
    <float half = {{0.5}}, float none = {{0}}, {zeros}> {{
        {" ".join(lines)} q, s, z = DynamicQuantizeLinear(e) }}"""
    artifact = tvm_fusion.compile(onnx.parser.parse_model(text), "cpu")
    x = np.resize(np.array([1, np.nan, np.inf, -np.inf, -300.25, 7e4], "float32"), 23)
    executable = tvm_fusion.load(artifact.export(tmp_path / "a"))
    got = executable.run({"x": x, "e": np.zeros(5, "float32")})
    assert (got["s"], got["z"], got["q"].max()) == (1, 0, 0)
    wide = {"half": np.round(x / 0.5) + 3, "none": np.where(x > 0, np.inf, -np.inf)}
    for dtype in types:
        info = np.iinfo(dtype)
        for name in steps:
            clipped = np.clip(wide[name], info.min, info.max)
            wanted = np.where(np.isnan(x), 0, clipped).astype(dtype)
            np.testing.assert_array_equal(got[f"{dtype}_{name}"], wanted, f"{dtype} {name}")
