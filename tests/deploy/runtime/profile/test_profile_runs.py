"""A profile's rows against what the model is known to compute; times are never compared."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from tiny_models import CLASSES, FEATURES, dense_data, onnx_model
from tvm import relax
from tvm.relax import op

import tvm_fusion
from tvm_fusion.cli.commands.profile import trace
from tvm_fusion.deploy.runtime.profile.profile import _grouped, launches_of_calls, titles
from tvm_fusion.deploy.runtime.profile.result import Profile
from tvm_fusion.errors import UserError


def two_products():
    """Two groups that no mapping type lets share a kernel."""
    weights = {n: np.random.default_rng().standard_normal((48, 48), "float32") for n in "ab"}
    return onnx_model(
        [
            ("MatMul", ["x", "a"], ["h"]),
            ("Relu", ["h"], ["r"]),
            ("MatMul", ["r", "b"], ["y"]),
        ],
        [("x", T.FLOAT, [32, 48])],
        [("y", T.FLOAT, [32, 48])],
        weights,
    )


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    artifact = tvm_fusion.compile(two_products())
    return artifact.export(tmp_path_factory.mktemp("profile") / "products")


def test_rows_tell_the_work_of_each_group(products):
    executable = tvm_fusion.load(products)
    profile = executable.profile({"x": np.ones((32, 48), "float32")}, runs=3)
    first, second = profile.rows
    assert [row.operators for row in profile.rows] == [("matmul", "relu"), ("matmul",)]
    assert second.flops == 2 * 32 * 48 * 48
    assert first.flops == second.flops + 32 * 48
    assert second.bytes >= 4 * (32 * 48 + 48 * 48 + 32 * 48)
    assert {row.template for row in profile.rows} == {"contraction"}
    assert all(row.config and row.source == "roofline" for row in profile.rows)
    listed = {name for group in executable.manifest["groups"] for name in group["kernels"]}
    assert {name for row in profile.rows for name in row.kernels} <= listed
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert profile.kernels_us == pytest.approx(sum(row.us for row in profile.rows))
    assert profile.host_us == pytest.approx(profile.end_to_end_us - profile.kernels_us)
    assert all(0 < row.least_us <= row.us and row.start_us > 0 for row in profile.rows)
    assert first.start_us + first.spent_us <= second.start_us
    assert (profile.clock, profile.function, profile.extents) == ("cpu", "main", {})
    assert (profile.launched_us, profile.streamed_us, profile.gaps_us) == (None, None, None)
    assert profile.notes == ()


def test_price_is_the_planners(products):
    profile = tvm_fusion.load(products).profile({"x": np.ones((32, 48), "float32")}, runs=1)
    explained = tvm_fusion.explain(two_products(), stock=False)
    assert [row.predicted_us for row in profile.rows] == [
        pytest.approx(group.us) for group in explained.groups
    ]


def test_symbolic_shapes_count_at_the_extents_that_ran(dense_folder):
    profile = tvm_fusion.load(dense_folder).profile({"data": dense_data(5)}, runs=2)
    (row,) = profile.rows
    assert profile.extents == {"batch": 5}
    assert row.flops == 5 * CLASSES * (2 * FEATURES + 2)
    assert row.bytes >= 4 * (5 * FEATURES + FEATURES * CLASSES + 5 * CLASSES)
    assert row.predicted_us is None
    assert "symbolic" in " ".join(profile.notes)


def test_survives_json(products):
    profile = tvm_fusion.load(products).profile({"x": np.ones((32, 48), "float32")}, runs=1)
    assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_trace_has_an_event_for_each_row(products):
    profile = tvm_fusion.load(products).profile({"x": np.ones((32, 48), "float32")}, runs=1)
    events = [e for e in json.loads(json.dumps(trace(profile)))["traceEvents"] if e["ph"] == "X"]
    call, *kernels = events
    assert call["name"] == "main"
    assert [e["name"] for e in kernels] == ["matmul + relu", "matmul"]
    assert all(e["ts"] + e["dur"] <= call["ts"] + call["dur"] for e in kernels)
    assert all(e["tid"] != call["tid"] for e in kernels)


def step():
    """``cache[position] = x * x``, and its sum, as PyTorch's index_copy is imported."""
    builder = relax.BlockBuilder()
    x, cache = (relax.Var(n, relax.TensorType([k, 16], "float32")) for n, k in (("x", 1), ("c", 6)))
    position = relax.Var("position", relax.TensorType([1], "int64"))
    with builder.function("main", [x, position, cache]):
        with builder.dataflow():
            numbers = relax.const(np.arange(6)[:, None], "int64")
            hit = builder.emit(op.equal(numbers, op.expand_dims(position, 0)))
            new = builder.emit(op.where(hit, builder.emit(op.multiply(x, x)), cache))
            result = builder.emit_output(relax.Tuple([builder.emit(op.sum(new)), new]))
        builder.emit_func_output(result)
    return builder.get()


def test_what_a_call_writes_to_stays_as_it_is(tmp_path):
    artifact = tvm_fusion.compile(step(), in_place={"c": "output_1"})
    executable = tvm_fusion.load(artifact.export(tmp_path / "step"))
    assert executable.function().in_place == {"c": "output_1"}
    cache = np.zeros((6, 16), "float32")
    inputs = {"x": np.full((1, 16), 3, "float32"), "position": np.array([2]), "c": cache}
    assert executable.profile(inputs, runs=2).rows
    assert not cache.any()
    executable.run(inputs)
    assert (cache[2] == 9).all()


def test_names_what_is_wrong(products):
    executable = tvm_fusion.load(products)
    inputs = {"x": np.ones((32, 48), "float32")}
    with pytest.raises(UserError, match="runs is 0; expected a whole number from 1"):
        executable.profile(inputs, runs=0)
    with pytest.raises(UserError, match=r"warmup is 1\.5; expected a whole number from 0"):
        executable.profile(inputs, warmup=1.5)
    with pytest.raises(UserError, match="no function 'other'"):
        executable.profile(inputs, function="other")
    with pytest.raises(UserError, match="shape"):
        executable.profile({"x": np.ones((31, 48), "float32")})
    with pytest.raises(UserError, match="the inputs are a list; expected arrays by name"):
        executable.profile([1])


def test_artifacts_of_earlier_versions_have_kernels_by_name(products):
    executable = tvm_fusion.load(products)
    del executable.manifest["groups"]
    profile = executable.profile({"x": np.ones((32, 48), "float32")}, runs=1)
    assert [row.title for row in profile.rows] == [row.kernels[0] for row in profile.rows]
    assert all(row.predicted_us is None and row.bytes > 0 for row in profile.rows)
    assert "compile the model again" in " ".join(profile.notes)


def test_prices_of_another_device_are_told(products):
    executable = tvm_fusion.load(products)
    executable.manifest["priced_for"]["name"] = "another CPU"
    profile = executable.profile({"x": np.ones((32, 48), "float32")}, runs=1)
    assert profile.notes == ("Expected times are for another CPU.",)


def test_needs_no_compiler(products):
    program = (
        "import sys, numpy, tvm_fusion\n"
        "exe = tvm_fusion.load(sys.argv[1])\n"
        "profile = exe.profile({'x': numpy.ones((32, 48), 'float32')}, runs=1)\n"
        "assert len(profile.rows) == 2 and 'tvm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, str(products)], check=True, timeout=300)


def test_any_function_and_the_trips_of_its_loop(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[16, 16] x, int64 n) => (float[16, 16] y) {
        c = Constant<value = bool {1}>()
        y = Loop(n, c, x) <body = b (int64 i, bool ci, float[16, 16] s)
            => (bool co, float[16, 16] t) { co = Identity(ci) m = MatMul(s, s) t = Relu(m) }>
    }"""
    artifact = tvm_fusion.compile(onnx.parser.parse_model(text))
    executable = tvm_fusion.load(artifact.export(tmp_path / "loop"))
    inputs = {"x": np.eye(16, dtype="float32"), "n": np.array(4)}
    rows = executable.profile(inputs, runs=2, function="main").rows
    products = [row for row in rows if "matmul" in row.operators]
    assert [row.flops for row in products] == [2 * 16**3 + 16**2] * 4
    assert all(row.bytes > 0 for row in rows)
    rows = executable.profile({**inputs, "n": np.array(0)}, runs=2).rows
    assert not [row for row in rows if "matmul" in row.operators]


def test_a_function_without_kernels(tmp_path):
    model = onnx_model([("Identity", ["x"], ["y"])], [("x", T.FLOAT, [2])], [("y", T.FLOAT, [2])])
    executable = tvm_fusion.load(tvm_fusion.compile(model).export(tmp_path / "same"))
    profile = executable.profile({"x": np.ones(2, "float32")}, runs=1)
    assert (profile.rows, profile.kernels_us) == ((), 0)
    assert profile.host_us == profile.end_to_end_us


def test_members_have_the_launches_of_calls(products):
    executable = tvm_fusion.load(products)
    entry = executable.manifest["functions"]["main"]
    inputs = {"x": np.ones((32, 48), "float32")}
    kernels = [row.kernels[0] for row in executable.profile(inputs, runs=1).rows]
    told = (["/mlp/up", "/mlp/act"], ["/mlp/down"])
    entry["launches"] = [
        {"kernel": k, "names": names, "reads": reads}
        for k, names, reads in zip(kernels, told, ([], [0]), strict=True)
    ]
    rows = executable.profile(inputs, runs=1).rows
    assert [row.names for row in rows] == [("/mlp/up", "/mlp/act"), ("/mlp/down",)]
    assert [row.title for row in rows] == ["matmul + relu", "matmul"]
    assert [row.reads for row in rows] == [(), (0,)]


@pytest.mark.parametrize(
    ("kernels", "launches", "expected"),
    [
        ("aba", [("a", "1"), ("b", "2"), ("a", "3")], ["1", "2", "3"]),
        ("ababx", [("a", "1"), ("b", "2")], ["1", "2", "1", "2", ""]),
        ("a", [], [""]),
    ],
)
def test_users_names_by_call(kernels, launches, expected):
    launches = [{"kernel": kernel, "names": [name]} for kernel, name in launches]
    found = launches_of_calls(list(kernels), launches)
    assert ["".join(launched.names) for launched in found] == expected


def test_calls_read_the_latest_of_a_loop():
    told = [("a", []), ("b", [0, 1]), ("c", [1])]
    launches = [{"kernel": kernel, "names": [], "reads": reads} for kernel, reads in told]
    found = launches_of_calls("ababc", launches)
    assert [launched.reads for launched in found] == [(), (0,), (), (2, 1), (3,)]


def test_titles_are_the_launches_of_calls_or_operators():
    groups = [
        {"kernels": ["a", "b"], "operators": ["matmul", "relu"]},
        {"kernels": ["c"], "operators": ["add"]},
    ]
    launches = [("a", ["/up", "/act"]), ("c", []), ("a", ["/down"]), ("library", [])]
    assert titles(groups, [{"kernel": k, "names": n} for k, n in launches]) == {
        "a": ["/up + /act", "/down"],
        "b": ["matmul + relu"],
        "c": ["add"],
        "library": ["library"],
    }


GROUPS = [
    {"kernels": ["a", "sum"]},
    {"kernels": ["b", "sum"]},
    {"kernels": ["a"]},
    {"kernels": ["c"]},
]


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["a", "sum", "b", "sum"], [([0, 1], 0), ([2, 3], 1)]),
        (["a", "c"], [([0], 0), ([1], 3)]),
        (["a", "a", "sum"], [([0], 0), ([1, 2], 0)]),
        (["sum"], [([0], 0)]),
        (["library", "c", "c"], [([0], None), ([1], 3), ([2], 3)]),
    ],
)
def test_kernels_of_a_group_are_one_row(names, rows):
    found = _grouped(names, GROUPS)
    expected = [(places, None if i is None else GROUPS[i]) for places, i in rows]
    assert [(row.positions, row.group) for row in found] == expected
