"""GGUF's tensors as parameters of Relax functions, against the package gguf's dequantizers."""

import numpy as np
import pytest
from gguf_files import drawn_rows, wide, write
from relax_modules import main_module, module_of
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import gguf
from tvm_fusion.frontend.gguf.formats import FORMATS
from tvm_fusion.frontend.normalize import FoldConstants

op = relax.op
ROWS, COLUMNS = 3, 512


def tensor(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


@pytest.fixture
def file(tmp_path, rng):
    """A tensor of each type: what was written, and the file."""
    tensors = {kind: (kind, drawn_rows(kind, ROWS, COLUMNS, rng)) for kind in FORMATS}
    tensors["F16"] = rng.standard_normal((ROWS, COLUMNS)).astype("float16")
    tensors["F32"] = rng.standard_normal((ROWS, COLUMNS)).astype("float32")
    bits = tensors["F32"].view("uint32") >> 16
    tensors["BF16"] = "BF16", bits.astype("uint16").view("uint8")
    return tensors, gguf.read(write(tmp_path / "all.gguf", "llama", tensors))


def test_every_type_equals_the_reference(file):
    """Results this small are folded, by numpy: what is left are the weights."""
    tensors, weights = file
    params = [tensor(kind, ROWS, COLUMNS) for kind in tensors]
    mod = main_module(params, lambda emit, *params: [op.negative(p) for p in params])
    func = FoldConstants()(gguf.bind(mod, weights))["main"]
    assert not func.params
    values = {b.var: b.value for block in func.body.blocks for b in block.bindings}
    results = [values[field] for field in func.body.body.fields]
    for (kind, value), found in zip(tensors.items(), results, strict=True):
        wanted = value.astype("float32") if isinstance(value, np.ndarray) else wide(kind, value[1])
        np.testing.assert_array_equal(found.value.numpy(), -wanted, kind)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("kind", ["Q5_K", "BF16", "Q4_0", "Q6_K", "Q2_K"])
def test_weights_are_stored_packed_once(kind, rng, tmp_path):
    """Two functions share what has the bytes of the file, but for scales of 6 bits in bytes.

    CPUs join numbers whose bits lie in several planes: in a byte each. So many rows that no array
    is as small as results that are stored unpacked.
    """
    rows, columns = 768, 1024  # whole panels on every CPU
    if kind == "BF16":
        data = rng.integers(0, 16000, (rows, columns), "uint16").view("uint8")
    else:
        data = drawn_rows(kind, rows, columns, rng)
    weights = gguf.read(write(tmp_path / "one.gguf", "llama", {"up": (kind, data)}))
    x, y, w = tensor("x", 1, columns), tensor("y", 3, columns), tensor("w", rows, columns)

    def product(emit, x, w):
        return op.matmul(x, emit(op.permute_dims(w)))

    mod = module_of(
        {"decode": ([x, w], product), "prefill": ([y, tensor("w", rows, columns)], product)}
    )
    stored = tvm_fusion.compile(gguf.bind(mod, {"w": weights["up"]}), target="cpu").weights
    packed = weights["up"]
    arrays = packed.arrays.values() if isinstance(packed, gguf.PackedWeight) else [packed]
    size = sum(array.nbytes for array in arrays)
    assert data.nbytes <= size <= 1.04 * data.nbytes
    planes = getattr(getattr(packed, "packing", None), "planes", ())
    if len(planes) > 1:
        size += rows * columns * (8 - sum(planes)) // 8
    assert sum(array.nbytes for array in stored.values()) == size


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("kind", ["Q5_0", "Q6_K", *sorted(set(FORMATS) - {"Q5_0", "Q6_K"})])
def test_a_product_unpacks_its_weights(kind, rng, tmp_path):
    """One kernel for each type: exactly the file's numbers, at any number of rows."""
    rows, columns = 64, 1024
    data = drawn_rows(kind, rows, columns, rng)
    weights = gguf.read(write(tmp_path / "one.gguf", "llama", {"w": (kind, data)}))
    x, w = tensor("x", tirx.Var("m", "int64"), columns), tensor("w", rows, columns)
    mod = main_module([x, w], lambda emit, x, w: op.matmul(x, emit(op.permute_dims(w))))
    mod = gguf.bind(mod, {"w": weights["w"]})
    artifact = tvm_fusion.compile(mod, target="cpu", dims={"m": tvm_fusion.DimRange(1, 8)})
    assert artifact.manifest["functions"]["main"]["kernels"] == 1
    executable = tvm_fusion.load(artifact)
    matrix = wide(kind, data).astype("float64")
    for count in (1, 7):
        given = rng.standard_normal((count, columns)).astype("float32")
        (found,) = executable(x=given).values()
        bound = 1e-6 * np.sqrt(columns) * (np.abs(given) @ np.abs(matrix).T).max()
        np.testing.assert_allclose(found, given @ matrix.T, rtol=0, atol=bound)


def test_unknown_names_and_other_shapes_are_refused(file):
    _, weights = file
    mod = main_module([tensor("w", 5, 7)], lambda emit, w: op.exp(w))
    with pytest.raises(UserError, match="no function has a parameter 'v'; expected one of w"):
        gguf.bind(mod, {"v": weights["Q4_0"]})
    with pytest.raises(UserError, match=r"parameter w has shape \[5, 7\]; expected \[3, 512\]"):
        gguf.bind(mod, {"w": weights["Q4_0"]})


def test_what_is_no_gguf_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none.gguf does not exist; expected a GGUF file"):
        gguf.read(tmp_path / "none.gguf")
    path = tmp_path / "text.gguf"
    path.write_text("no weights in here, and no header either")
    with pytest.raises(UserError, match=r"text.gguf cannot be read \(.*\); expected a GGUF file"):
        gguf.read(path)


def test_other_types_are_refused_by_name(tmp_path):
    path = write(tmp_path / "i.gguf", "llama", {"w": ("IQ4_NL", np.zeros((2, 18), "uint8"))})
    with pytest.raises(UserError, match=r"tensor w of type IQ4_NL; expected Q4_0, .*llama-quant"):
        gguf.read(path)["w"]
