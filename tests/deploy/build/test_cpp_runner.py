"""The runner in C++: built once, run without Python, on good input and bad."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from tiny_models import dense_data, dense_expected, dense_weights, onnx_model

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.core.constants import narrow_types
from tvm_fusion.deploy.build.bundle import bundle
from tvm_fusion.device.cpu_features import ARM_FEATURES, X86_FEATURES, linux_names
from tvm_fusion.errors import UserError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no C++ here"),
]


def call(runner, *arguments):
    command = [str(runner), *map(str, arguments), "--repeat", "1", "--warmup", "0"]
    return subprocess.run(command, capture_output=True, text=True)


def refusal(runner, *arguments):
    """The one sentence of a call that fails."""
    done = call(runner, *arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("tvm_fusion_run: ")


def test_results_are_those_of_python(runner, dense_folder, tmp_path):
    data = dense_data(3)
    np.save(tmp_path / "data.npy", data)
    done = call(runner, dense_folder, "--input", f"data={tmp_path}/data.npy", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"latency of 1 run: min .* ms\n  at batch=3 \(of 1\.\.8\); others: --dim NAME=N\n"
        r"  scores: float32 \(3, 32\), mean .*, std .*\n",
        done.stdout,
    )
    result = np.load(tmp_path / "scores.npy")
    np.testing.assert_array_equal(result, tvm_fusion.load(dense_folder)(data=data)["scores"])
    expected = dense_expected(data, **dense_weights())
    assert np.abs(result - expected).max() < 1e-5 * np.abs(expected).max()


def test_warns_of_what_is_no_number(runner, dense_folder, tmp_path):
    data = dense_data(2)
    data[0, 0] = np.nan
    np.save(tmp_path / "data.npy", data)
    done = call(runner, dense_folder, "--input", f"data={tmp_path}/data.npy")
    assert "  warning: scores: 32 NaN and 0 infinite of 64 values\n" in done.stdout


TYPES = {
    "bool": T.BOOL,
    "int8": T.INT8,
    "uint8": T.UINT8,
    "int32": T.INT32,
    "int64": T.INT64,
    "float16": T.FLOAT16,
    "bfloat16": T.BFLOAT16,
    "float32": T.FLOAT,
    "float64": T.DOUBLE,
}


def test_every_dtype_several_inputs_and_symbolic_dimensions(runner, tmp_path):
    nodes = [("Concat", [f"{t}.a", f"{t}/b"], [f"/{t}"], {"axis": 0}) for t in TYPES]
    inputs = [(f"{t}.a", code, ["n"]) for t, code in TYPES.items()]
    inputs += [(f"{t}/b", code, ["2*n"]) for t, code in TYPES.items()]
    outputs = [(f"/{t}", code, ["3*n"]) for t, code in TYPES.items()]
    model = onnx_model(nodes, inputs, outputs)
    artifact = tvm_fusion.compile(model, dims={"n": DimRange(1, 9)}).export(tmp_path / "a")
    generator, arguments, expected = np.random.default_rng(4), [], {}
    for name in TYPES:
        parts = []
        for suffix, size in ((".a", 5), ("/b", 10)):
            array = (generator.standard_normal(size) * 3).astype(_dtype(name))
            path = tmp_path / f"{name}{size}.npy"
            np.save(path, array)
            arguments += ["--input", f"{name}{suffix}={path}"]
            parts.append(array)
        expected[name] = np.concatenate(parts)
    done = call(runner, artifact, *arguments, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    for name, array in expected.items():
        found = np.load(tmp_path / f"_{name}.npy")
        np.testing.assert_array_equal(found.view(array.dtype), array)
    done = call(runner, artifact, "--dim", "n=7", "--seed", "3")  # random numbers
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(21,\), mean", done.stdout)) == len(TYPES)


NARROW = sorted(narrow_types.NARROW)


PYRAMID = """<ir_version: 8, opset_import: ["": 13]>
g (float[1, 1, h, 4] x) => (float[a, b, c, d] y) <float[4] scales = {1, 1, 2, 2}> {
  p = MaxPool<kernel_shape = [1, 1], strides = [2, 2]>(x)
  u = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
             nearest_mode = "floor">(p, , scales)
  y = Add(x, u) }"""


def test_steps_and_levels_that_have_to_be_equal(runner, tmp_path):
    model = onnx.parser.parse_model(PYRAMID)
    steps = tvm_fusion.compile(model, dims={"h": DimRange(2, 64, 2)}).export(tmp_path / "steps")
    every = tvm_fusion.compile(model, dims={"h": DimRange(2, 64)}).export(tmp_path / "every")
    for folder in (steps, every):
        done = call(runner, folder, "--dim", "h=6")
        assert done.returncode == 0, done.stderr
    assert "--dim h=7; expected 2 to 64, a multiple of 2." in refusal(runner, steps, "--dim", "h=7")
    told = refusal(runner, every, "--dim", "h=7")
    assert "operator Add joins" in told
    assert told.strip().endswith("expected sizes for which these are equal.")


def test_types_narrower_than_a_byte_and_floats_of_8_bits(runner, tmp_path):
    """Every code goes in and comes out, as numbers and bit for bit, as from the Python runner."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in NARROW}
    inputs, outputs, nodes = [], [], []
    for name, kind in kinds.items():
        inputs.append(helper.make_tensor_value_info(name, kind, ["n"]))
        outputs.append(helper.make_tensor_value_info(f"{name}_number", T.FLOAT, ["n"]))
        outputs.append(helper.make_tensor_value_info(f"{name}_half", kind, ["n"]))
        nodes.append(helper.make_node("Cast", [name], [f"{name}_number"], to=T.FLOAT))
        nodes.append(helper.make_node("Mul", [f"{name}_number", "half"], [f"{name}_halved"]))
        nodes.append(helper.make_node("Cast", [f"{name}_halved"], [f"{name}_half"], to=kind))
    stored = [numpy_helper.from_array(np.float32(0.5), "half")]
    graph = helper.make_graph(nodes, "narrow", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 25)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=13)
    folder = tvm_fusion.compile(model, dims={"n": DimRange(1, 512)}).export(tmp_path / "a")
    given, arguments = {}, []
    for name in NARROW:
        bits = narrow_types.INTEGERS.get(name, 4 if name.startswith("float4") else 8)
        given[name] = (np.arange(256) % 2**bits).astype("uint8").view(name)
        np.save(tmp_path / f"{name}.npy", given[name])
        arguments += ["--input", f"{name}={tmp_path}/{name}.npy"]
    done = call(runner, folder, *arguments, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    for name, wanted in tvm_fusion.load(folder).run(given).items():
        found = np.load(tmp_path / f"{name}.npy")
        assert found.dtype == ("V1" if name.endswith("_half") else "float32")
        # Bits: NaN in these types is no NaN to numpy's comparison.
        bits = f"uint{8 * wanted.itemsize}"
        np.testing.assert_array_equal(found.view(bits), wanted.view(bits), err_msg=name)
        mean = np.mean(wanted.astype("float64"))
        told = re.search(rf"  {name}: {wanted.dtype} \(256,\), mean (\S+),", done.stdout)
        np.testing.assert_allclose(float(told[1]), mean, rtol=1e-3)
    done = call(runner, folder, "--seed", "5")  # random numbers
    assert done.returncode == 0, done.stderr
    np.save(tmp_path / "bytes.npy", np.zeros(3, "uint8"))
    told = refusal(runner, folder, "--input", f"int4={tmp_path}/bytes.npy")
    assert "holds elements of '|u1'; expected int4 ('|V1')" in told


def _dtype(name):
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def test_a_bundle_runs_in_a_bare_root(runner, dense_folder, tmp_path, monkeypatch):
    """The runner in it is the one that the fixture has built in the same way."""

    def build_runner(folder, settings):
        assert not settings
        shutil.copytree(runner.parent, folder, dirs_exist_ok=True)

    monkeypatch.setattr(sys.modules[bundle.__module__], "build_runner", build_runner)
    root = tmp_path / "root"
    bundle(dense_folder, root)
    names = {path.name for path in root.iterdir()}
    assert names == {"tvm_fusion_run", "include", "lib", "model"}
    for library in _system_libraries(root):
        place = root / Path(library).relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(library), place)
    own_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")
    command = [*own_root, chroot, str(root), "/tvm_fusion_run", "/model", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    if own_root and "unshare" in done.stderr:
        pytest.skip("user namespaces are not allowed here")
    assert done.returncode == 0, done.stderr
    assert "scores: float32 (1, 32)" in done.stdout


def _system_libraries(root):
    """The C library's files that the program asks for; all others lie in the bundle."""
    listed = subprocess.run(
        ["ldd", root / "tvm_fusion_run"], capture_output=True, text=True, check=True
    ).stdout
    paths = re.findall(r"(?:=> |^\s*)(/\S+)", listed, re.MULTILINE)
    outside = [path for path in paths if not path.startswith(str(root))]
    names = {Path(path).name.partition(".so")[0].partition("-")[0] for path in outside}
    assert names <= {"libc", "libm", "libdl", "libpthread", "librt", "ld"}, paths
    return outside


def test_a_bundle_replaces_nothing(dense_folder, tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(UserError, match=r"exists; expected a new folder"):
        bundle(dense_folder, tmp_path)
    assert (tmp_path / "kept").exists()


def test_no_cmake_is_one_sentence(dense_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"there is no cmake; expected CMake 3.18"):
        bundle(dense_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_help_wherever_it_stands(runner, dense_folder):
    for words in (["--help"], [dense_folder, "--help"]):
        done = call(runner, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "--repeat" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "other=x.npy"], "unknown input 'other'"),
        (["--input", "data"], "--input data; expected NAME=FILE.npy"),
        (["--input", "data=absent.npy"], "cannot read 'absent.npy'"),
        (["--dim", "rows=3"], "--dim names 'rows'"),
        (["--dim", "batch=x"], "--dim x; expected a number"),
        (["--dim", "batch=9"], "--dim batch=9; expected 1 to 8."),
        (["--function", "other"], "no function 'other'; expected one of 'main'"),
        (["--frobnicate", "1"], "unknown option --frobnicate"),
        (["--output", "no/such/folder"], None),
        (["another"], "unexpected argument 'another'"),
    ],
)
def test_bad_options_are_one_sentence(runner, dense_folder, arguments, words):
    if words is None:
        assert call(runner, dense_folder, *arguments).returncode == 2
    else:
        assert words in refusal(runner, dense_folder, *arguments)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 64)), "holds elements of '<f8'; expected float32"),
        (np.zeros((2, 63), "float32"), "has shape (2, 63); expected (batch, 64)"),
        (np.zeros(64, "float32"), "has shape (64,); expected (batch, 64)"),
        (np.asfortranarray(np.zeros((2, 64), "float32")), "is in Fortran order"),
    ],
)
def test_bad_arrays_are_one_sentence(runner, dense_folder, tmp_path, array, words):
    np.save(tmp_path / "x.npy", array)
    assert words in refusal(runner, dense_folder, "--input", f"data={tmp_path}/x.npy")


def test_an_array_cut_off_anywhere_is_one_sentence(runner, dense_folder, tmp_path):
    np.save(tmp_path / "x.npy", dense_data(2))
    whole = (tmp_path / "x.npy").read_bytes()
    for size in (0, 5, 7, 9, 40, 127, 128, len(whole) - 1):
        (tmp_path / "cut.npy").write_bytes(whole[:size])
        assert "cut.npy" in refusal(runner, dense_folder, "--input", f"data={tmp_path}/cut.npy")


def changed(folder, to, change):
    """A copy of an artifact with a changed manifest."""
    shutil.copytree(folder, to)
    manifest = json.loads((to / "manifest.json").read_text())
    change(manifest)
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to


HOSTILE = {
    "schema": (lambda m: m.update(schema=99), "has schema 99; expected schema 2"),
    "no schema": (lambda m: m.pop("schema"), "lacks 'schema'"),
    "list": (lambda m: m.update(functions=[]), "/functions is not an object"),
    "other machine": (lambda m: m["target"].update(machine="s390x"), "(s390x); this machine is"),
    "other CPU": (lambda m: m["target"].update(cpuinfo=["no_such_set"]), "without no_such_set"),
    "other kind": (lambda m: m["target"].update(kind="metal"), "knows CPUs, CUDA devices and AMD"),
    "far offset": (lambda m: first(m).update(offset=1 << 40), "does not lie in weights.bin"),
    "negative offset": (lambda m: first(m).update(offset=-64), "does not lie in weights.bin"),
    "huge shape": (lambda m: first(m).update(shape=[1 << 40, 1 << 40]), "impossible shape"),
    "negative shape": (lambda m: first(m).update(shape=[-1]), "is negative"),
    "dtype": (lambda m: first(m).update(dtype="float77x"), "unknown dtype"),
    "unknown weight": (
        lambda m: m["functions"]["main"]["weights"].append("absent"),
        "unknown weight 'absent'",
    ),
    "outputs": (lambda m: m["functions"]["main"]["outputs"].clear(), "do not belong together"),
}


def first(manifest):
    return next(entry for entry in manifest["weights"].values() if "packed" not in entry)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_manifests_are_one_sentence(runner, packless_folder, tmp_path, case):
    change, words = HOSTILE[case]
    assert words in refusal(runner, changed(packless_folder, tmp_path / "a", change))


@pytest.fixture(scope="module")
def packless_folder(tmp_path_factory):
    """An artifact with a weight that is stored as it is."""
    weight = np.random.default_rng(8).standard_normal(7000).astype("float32")
    model = onnx_model(
        [("Add", ["x", "w"], ["y"])],
        [("x", T.FLOAT, ["n", 7000])],
        [("y", T.FLOAT, ["n", 7000])],
        {"w": weight},
    )
    return tvm_fusion.compile(model, dims={"n": DimRange(1, 9)}).export(
        tmp_path_factory.mktemp("packless") / "a"
    )


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"schema": 2', "null", "\x00\xff"])
def test_damaged_json_is_one_sentence(runner, dense_folder, tmp_path, text):
    shutil.copytree(dense_folder, tmp_path / "a")
    (tmp_path / "a" / "manifest.json").write_text(text, encoding="latin-1")
    assert "manifest.json is damaged" in refusal(runner, tmp_path / "a")


@pytest.mark.parametrize("name", ["manifest.json", "model.so", "weights.bin"])
def test_a_missing_file_is_one_sentence(runner, packless_folder, tmp_path, name):
    shutil.copytree(packless_folder, tmp_path / "a")
    (tmp_path / "a" / name).unlink()
    assert name in refusal(runner, tmp_path / "a")


def test_output_names_stay_in_the_folder(runner, packless_folder, tmp_path):
    name = "../../escaped"
    change = lambda m: m["functions"]["main"]["outputs"][0].update(name=name)  # noqa: E731
    artifact = changed(packless_folder, tmp_path / "a", change)
    (tmp_path / "deep" / "out").mkdir(parents=True)
    assert call(runner, artifact, "--output", tmp_path / "deep" / "out").returncode == 0
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.npy")}
    assert written == {"deep/out/_.._.._escaped.npy"}


def test_every_instruction_set_has_a_linux_name():
    names = {**X86_FEATURES, **ARM_FEATURES}
    assert linux_names(names.values()) == sorted(names)
