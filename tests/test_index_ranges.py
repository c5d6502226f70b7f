"""Indices out of range, of every operator that takes some: no process dies, no foreign memory.

Artifacts run in a process of their own, their inputs and results between guards.
"""

import os
import random

import numpy as np
import onnx
import pytest
from index_cases import LIMIT, ONNX, spoiled

import tvm_fusion
from benchmarks.runtime_alone import RuntimeAlone
from tvm_fusion.errors import UserError

pytestmark = pytest.mark.usefixtures("plain_llvm")

FEW = ("GatherElements behind Relu", "ScatterElements add axis 1", "ScatterND of elements")


@pytest.fixture(scope="module")
def alone():
    process = RuntimeAlone()
    yield process
    process.close()


def check(alone, folder, inputs, names, extent):
    """Run with wrong numbers in place of indices; returns how many runs there were."""
    runs = 0
    for name in names:
        for label, wrong in spoiled(inputs, name, extent):
            for y in alone.run(folder, wrong, guarded=True).values():
                assert not (np.abs(y[np.isfinite(y)].astype("float64")) > LIMIT).any(), label
            runs += 1
    return runs


@pytest.mark.every_case
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.slow) for n in ONNX]
)
def test_onnx(alone, tmp_path, name):
    case = ONNX[name]
    inputs = case.inputs()
    folder = tvm_fusion.compile(case.model()).export(tmp_path / "a")
    names = [name for name in inputs if name.startswith("i")]
    assert check(alone, folder, inputs, names, case.extent) >= 8 * len(names)


def test_no_shape_that_does_not_fit_is_read(tmp_path):
    """Shapes that are inputs: other numbers of elements, negative ones, none that broadcast."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[4, 6] a, float[1, 3] d, int64[2] i, int64[2] j, int64[2] k)
      => (float[p, q] y, float[r, s] z, float[t, u] w) {
        b = Reshape(a, i) y = Neg(b) z = Tile(a, j) e = Expand(d, k) w = Neg(e) }"""
    artifact = tvm_fusion.compile(onnx.parser.parse_model(text), "cpu")
    executable = tvm_fusion.load(artifact.export(tmp_path / "a"))
    a, d = np.ones((4, 6), "float32"), np.ones((1, 3), "float32")

    def run(i, j, k):
        shapes = {"i": np.array(i), "j": np.array(j), "k": np.array(k)}
        found = executable.run({"a": a, "d": d, **shapes})
        return [found[name].shape for name in "yzw"]

    for i, j, k in (
        ((5, 5), (1, 1), (1, 1)),
        ((1000, 1000), (1, 1), (1, 1)),
        ((-2, -3), (1, 1), (1, 1)),
        ((8, 3), (-1, -1), (1, 1)),
        ((8, 3), (1, 1), (2, 4)),
        ((8, 3), (1, 1), (-5, 3)),
        ((8, 3), (1, 1), (2**61, 3)),
        ((8, 3), (2**62, 1), (1, 1)),
        ((8, 3), (2**62, 2**62), (1, 1)),
        ((2**62 + 6, 4), (1, 1), (1, 1)),
    ):
        with pytest.raises(UserError, match="do not fit the extents computed from these inputs"):
            run(i, j, k)
    assert run((3, -1), (2, 1), (5, 1)) == [(3, 8), (8, 6), (5, 3)]


def test_no_number_that_does_not_fit_is_used(tmp_path):
    """Numbers of elements, widths, sizes, classes and bounds that are inputs; empty slices are."""
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[3, 8] a, int64[1] k, int64[4] p, int64[2] s, int64 d, int64[1] b, int64[1] e)
      => (float[3, t] v, float[q, r] y, float[3, m] f, float[3, n] h, float[3, c] o, float[w, 8] z)
      { v, i = TopK (a, k) y = Pad (a, p) f, h = Split<axis = 1> (a, s)
        x = Constant <value = int64[3] {0, 1, -1}> () u = Constant <value = float[2] {0, 1}> ()
        o = OneHot (x, d, u) z = Slice (a, b, e) }"""
    model = onnx.parser.parse_model(text)
    executable = tvm_fusion.load(tvm_fusion.compile(model, "cpu").export(tmp_path / "a"))
    a = np.random.default_rng().permutation(24).reshape(3, 8).astype("float32")
    fitting = {"k": [3], "p": [1, -2, 0, 3], "s": [2, 6], "d": 4, "b": [-2], "e": [2**63 - 1]}

    def run(**numbers):
        given = {n: np.array(v, "int64") for n, v in {**fitting, **numbers}.items()}
        return executable.run({"a": a, **given})

    for wrong in (
        *({"k": [n]} for n in (9, -1, 2**62)),
        *({"p": p} for p in ([-4, 0, 0, 0], [2**62, 0, 2**62, 0], [2**40, 2**40, 0, 0])),
        *({"s": s} for s in ([5, 5], [-1, 9], [2**62, 8 - 2**62])),
        *({"d": d} for d in (0, -3, 2**60)),
    ):
        with pytest.raises(UserError, match="do not fit the extents computed from these inputs"):
            run(**wrong)
    found = run()
    np.testing.assert_array_equal(found["v"], -np.sort(-a)[:, :3])
    np.testing.assert_array_equal(found["y"], np.pad(a[:, 2:], ((1, 0), (0, 3))))
    np.testing.assert_array_equal(np.hstack([found["f"], found["h"]]), a)
    assert found["f"].shape == (3, 2)
    np.testing.assert_array_equal(found["o"], np.eye(4)[[0, 1, 3]])
    np.testing.assert_array_equal(found["z"], a[1:])
    for b, e in ((2, 1), (3, 3), (2**63 - 1, -(2**63))):
        assert run(b=[b], e=[e])["z"].shape == (0, 8)
    assert run(k=[0], s=[8, 0])["h"].shape == (3, 0)


def test_products_of_extents_do_not_wrap(alone, tmp_path):
    """Each extent fits 64 bits; their product is 0 or 1 there, and no memory is too small."""
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (int64[2] i, int64 n) => (float[p, q] y, int64[r] z) {
      y = ConstantOfShape (i) one = Constant <value = int64 {1}> ()
      two = Constant <value = int64 {2}> () z = Range (one, n, two) }"""
    folder = tvm_fusion.compile(onnx.parser.parse_model(text), "cpu").export(tmp_path / "a")

    def run(i, n):
        return alone.run(folder, {"i": np.array(i), "n": np.array(n)})

    for i, n in (
        *((i, 4) for i in ((2**40, 2**40), (-(2**40), -(2**40)), (2**63 - 1, 2**63 - 1), (-3, -5))),
        ((1, 1), -(2**63)),
    ):
        with pytest.raises(UserError, match="do not fit the extents computed from these inputs"):
            run(i, n)
    assert [r.shape for r in run((0, 7), 8).values()] == [(0, 7), (4,)]


@pytest.mark.slow
def test_writes_out_of_range_are_left_out_and_reads_take_the_nearest(alone, tmp_path):
    rng = np.random.default_rng()
    a, u = rng.random((5, 3), dtype="float32"), rng.random((3, 3), dtype="float32")
    i = np.array([[5, -6, 1], [2**34, 4, -1], [-(2**63), 2**63 - 1, -5]])
    written, read = a.copy(), np.empty_like(u)
    for (row, column), number in np.ndenumerate(i):
        counted = number + 5 if number < 0 else number  # from the end
        if 0 <= counted < 5:
            written[counted, column] = u[row, column]
        read[row, column] = a[min(max(counted, 0), 4), column]
    scatter = ONNX["ScatterElements none axis 0"].text.replace("[2,3]", "[3,3]")
    gather = ONNX["GatherElements"].text.replace("[2,3]", "[3,3]")
    for number, (text, wanted) in enumerate([(scatter, written), (gather, read)]):
        model = type(ONNX["Gather"])(text, 5).model()
        folder = tvm_fusion.compile(model).export(tmp_path / str(number))
        inputs = {"a": a, "i": i, "u": u} if number == 0 else {"a": a, "i": i}
        np.testing.assert_array_equal(alone.run(folder, inputs)["y"], wanted)


@pytest.mark.torch
@pytest.mark.slow
class TestTorch:
    def test_half_of_them(self, tmp_path):
        torch = pytest.importorskip("torch")
        from torch_index_cases import TORCH

        class Module(torch.nn.Module):
            def __init__(self, function):
                super().__init__()
                self.function = function

            def forward(self, *arguments):
                return self.function(*arguments)

        alone = RuntimeAlone()
        cases = list(TORCH.items())
        if os.environ.get("TESTS_CASES") != "all":
            cases = random.sample(cases, len(cases) // 2)
        for number, (name, case) in enumerate(cases):
            tensors = case.inputs()
            program = torch.export.export(Module(case.function), tuple(tensors))
            folder = tvm_fusion.compile(program).export(tmp_path / str(number))
            names = program.graph_signature.user_inputs
            inputs = {n: t.numpy() for n, t in zip(names, tensors, strict=True)}
            (found,) = alone.run(folder, inputs, guarded=True).values()
            wanted = case.function(*tensors).numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=name)
            check(alone, folder, inputs, names[len(names) - case.indices :], case.extent)
        alone.close()
