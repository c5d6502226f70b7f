"""Weights next to the library: mapped, and replaceable by others of the same shapes."""

import shutil

import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto as T
from tiny_models import dense, dense_data, dense_expected, dense_weights, onnx_model

import tvm_fusion
from tvm_fusion.deploy.runtime import load
from tvm_fusion.deploy.runtime.artifact import manifest, weights_file
from tvm_fusion.deploy.runtime.tensors import to_tensor, view
from tvm_fusion.errors import UserError

DATA = dense_data(4)
OWN = dense_weights()


def scores(folder, **options):
    return tvm_fusion.load(folder, **options)(data=DATA)["scores"]


def assert_close(actual, expected):
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    """The same graph with other weights, and a bias of its own."""
    model = dense(seed=9)
    dims = {"batch": tvm_fusion.DimRange(1, 8)}
    return tvm_fusion.compile(model, dims=dims).export(tmp_path_factory.mktemp("other") / "other")


def test_another_artifacts_weights(dense_folder, other_folder):
    weight = dense_weights(9)["weight"]
    assert_close(
        scores(dense_folder, weights=other_folder), dense_expected(DATA, weight, OWN["bias"])
    )
    assert_close(scores(dense_folder), dense_expected(DATA, **OWN))


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, np.ndarray.tolist])
def test_arrays_by_name(dense_folder, layout):
    weight = dense_weights(5)["weight"]
    swapped = scores(dense_folder, weights={"weight": layout(weight)})
    assert_close(swapped, dense_expected(DATA, weight, OWN["bias"]))


def test_an_empty_mapping_changes_nothing(dense_folder):
    np.testing.assert_array_equal(scores(dense_folder, weights={}), scores(dense_folder))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"w": OWN["weight"]}, "unknown weight 'w'; expected a name that `tvm-fusion inspect"),
        ({"weight": OWN["weight"].T}, r"has shape \(32, 64\) and dtype float32; expected shape"),
        ({"weight": OWN["weight"].astype("float64")}, "dtype float64; expected .* dtype float32"),
        ([OWN["weight"]], "the weights are a list; expected an artifact's folder or arrays by"),
        ("nowhere", "there is no folder 'nowhere'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(dense_folder, weights, words):
    with pytest.raises(UserError, match=words):
        tvm_fusion.load(dense_folder, weights=weights)


def test_mapped_weights_are_private(dense_folder):
    before = (dense_folder / "weights.bin").read_bytes()
    arrays = weights_file.read(dense_folder, manifest.read(dense_folder))
    arrays["weight"][...] = 0
    assert (dense_folder / "weights.bin").read_bytes() == before
    again = weights_file.read(dense_folder, manifest.read(dense_folder))["weight"]
    columns = again.transpose(1, 0, 2).reshape(64, 32)  # of all panels, side by side
    np.testing.assert_array_equal(columns, OWN["weight"])


def test_a_weight_that_is_stored_otherwise_is_refused(dense_folder, other_folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(other_folder, other)
    found = manifest.read(other)
    found["weights"]["weight"]["packed"]["shape"] = [32, 64, 1]
    manifest.write(other, found)
    with pytest.raises(UserError, match="is stored in another form; expected an artifact of the"):
        tvm_fusion.load(dense_folder, weights=other)


def test_a_packed_weight_of_another_type_is_refused(dense_folder, other_folder, tmp_path):
    """Kernels do not check weights: the loader does."""
    changed = tmp_path / "changed"
    shutil.copytree(other_folder, changed)
    content = manifest.read(changed)
    assert "packed" in content["weights"]["weight"]
    content["weights"]["weight"]["dtype"] = "int32"
    manifest.write(changed, content)
    with pytest.raises(UserError, match="stored in another form"):
        scores(dense_folder, weights=changed)


@pytest.mark.cuda_toolchain
def test_weights_of_a_gpu_are_packed_on_the_host(tmp_path):
    weight = np.random.default_rng().standard_normal((64, 48, 3, 3)).astype("float16")
    model = onnx_model(
        [
            ("Transpose", ["x"], ["image"], {"perm": [0, 3, 1, 2]}),
            ("Conv", ["image", "w"], ["found"]),
            ("Transpose", ["found"], ["y"], {"perm": [0, 2, 3, 1]}),
        ],
        [("x", T.FLOAT16, [1, 14, 14, 48])],
        [("y", T.FLOAT16, [1, 12, 12, 64])],
        {"w": weight},
    )
    folder = tvm_fusion.compile(model, target="cuda:sm_90a").export(tmp_path / "a")
    found = manifest.read(folder)
    entry = found["weights"]["w"]
    assert entry["packed"]["shape"] == [64, 3, 3, 48]
    sha256, cpu = found["files"][manifest.LIBRARY]["sha256"], tvm_ffi.device("cpu", 0)
    library = load._open_model(folder, sha256, cpu).module
    packed = load._packed(library, entry, weight).numpy()
    np.testing.assert_array_equal(packed, weight.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(packed, weights_file.read(folder, found)["w"])


def test_a_loaded_model_uses_the_mapped_memory_itself(dense_folder):
    executable = tvm_fusion.load(dense_folder)
    address = executable._weights["main"][0].data_ptr()
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if str(dense_folder) in line]
    assert any(int(low, 16) <= address < int(high, 16) for low, high in spans)


def test_a_model_without_weights(tmp_path):
    model = onnx_model([("Relu", ["x"], ["y"])], [("x", T.FLOAT, [3])], [("y", T.FLOAT, [3])])
    folder = tvm_fusion.compile(model).export(tmp_path / "a")
    assert (folder / "weights.bin").stat().st_size == 0
    np.testing.assert_array_equal(tvm_fusion.load(folder)(x=[-1, 0, 2])["y"], [0, 0, 2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "float64"])
def test_every_dtype_is_written_aligned_and_read_back(tmp_path, dtype):
    generator = np.random.default_rng(0)
    weights = {
        name: generator.integers(0, 2, shape).astype(dtype)
        for name, shape in {"a": (3, 5), "b": (7,), "c": (0, 2), "d": (), "e": (2, 2, 2)}.items()
    }
    entries = weights_file.write(tmp_path / "weights.bin", weights)
    assert all(entry["offset"] % 64 == 0 for entry in entries.values())
    read = weights_file.read(tmp_path, {"weights": entries})
    assert list(read) == list(weights)
    for name, array in weights.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read[name], array)


def test_what_another_weight_holds_is_written_once(tmp_path):
    gate, up, other = np.random.default_rng().standard_normal((3, 64, 32), "float32")
    weights = {"gate": gate, "other": other, "joined": np.concatenate([gate, up]), "up": up}
    weights["like gate"] = np.concatenate([gate, other])[:96]  # in which "other" is not whole
    entries = weights_file.write(tmp_path / "weights.bin", weights)
    size = (tmp_path / "weights.bin").stat().st_size
    assert size == sum(weights[w].nbytes for w in ("other", "joined", "like gate"))
    read = weights_file.read(tmp_path, {"weights": entries})
    for name, array in weights.items():
        np.testing.assert_array_equal(read[name], array)
    joined = to_tensor(read["joined"], tvm_ffi.device("cpu", 0))
    half = view(joined, up.shape, "float32", gate.nbytes)
    np.testing.assert_array_equal(np.from_dlpack(half), up)


def two_layers(seed, biases):
    generator = np.random.default_rng(seed)
    weights = {
        name: generator.standard_normal((256, 256)).astype("float32") / 16 for name in ("w1", "w2")
    }
    return onnx_model(
        [
            ("MatMul", ["x", "w1"], ["a"]),
            ("Add", ["a", "b1"], ["b"]),
            ("Relu", ["b"], ["c"]),
            ("MatMul", ["c", "w2"], ["d"]),
            ("Add", ["d", "b2"], ["y"]),
        ],
        [("x", T.FLOAT, [3, 256])],
        [("y", T.FLOAT, [3, 256])],
        {**weights, "b1": biases[0], "b2": biases[1]},
    )


def test_equal_weights_keep_their_names_apart(tmp_path):
    zero, one, two = (np.full(256, value, "float32") for value in (0, 1, 2))
    blank = tvm_fusion.compile(two_layers(0, [zero, zero])).export(tmp_path / "blank")
    trained = tvm_fusion.compile(two_layers(1, [one, two])).export(tmp_path / "trained")
    x = np.random.default_rng(3).standard_normal((3, 256)).astype("float32")
    swapped = tvm_fusion.load(blank, weights=trained)
    np.testing.assert_array_equal(swapped(x=x)["y"], tvm_fusion.load(trained)(x=x)["y"])
