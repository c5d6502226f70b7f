"""Concatenations of products with other tensors on GPUs: one kernel stores all parts."""

import numpy as np
import onnx
import pytest
from group_kernels import CUDA, arrays, close, group, kernel, run, tensor
from nvcc import machine_code, needs_nvcc
from tvm import relax, tirx

import tvm_fusion
from tests.schedule.contraction.conv_graphs import NHWC, convolution, laid_out, launched
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.schedule.contraction.copies.implicit_gemm import ImplicitGemm
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.skinny.mma.config import SkinnyMmaConfig
from tvm_fusion.schedule.contraction.tile.config import TileGemmConfig
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaConfig

op = relax.op
TEMPLATE = GpuContraction()
n = tirx.Var("n", "int64")
# Rows, terms, columns, columns of the other part, type, and what computes the product.
CASES = {
    "3xTF32, unaligned": (33, 65, 17, 7, "float32", TileGemmConfig),
    "mma.sync, unaligned": (33, 65, 17, 7, "float16", TileGemmConfig),
    "wgmma, vectors": (64, 64, 64, 40, "float16", WgmmaConfig),
    "wgmma, any rows": (n, 64, 64, 40, "float16", WgmmaConfig),
    "skinny": (4, 128, 64, 33, "float16", SkinnyMmaConfig),
}


def concatenation(case, is_first=True):
    """Parameters, body, and what it computes: ``relu(x W)`` next to ``tanh(y)``."""
    rows, terms, columns, others, dtype, _ = CASES[case]
    weight = (np.random.default_rng().standard_normal((terms, columns)) / terms**0.5).astype(dtype)
    params = [tensor("x", rows, terms, dtype=dtype), tensor("y", rows, others, dtype=dtype)]

    def body(emit, x, y):
        parts = [emit(op.nn.relu(emit(op.matmul(x, relax.const(weight))))), emit(op.tanh(y))]
        return op.concat(parts if is_first else parts[::-1], 1)

    def reference(x, y):
        parts = [np.maximum(x @ weight.astype("float64"), 0), np.tanh(y)]
        return np.concatenate(parts if is_first else parts[::-1], 1)

    return params, body, reference


@pytest.mark.slow_beyond(7)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_one_kernel_stores_all_parts(case, is_first):
    params, body, reference = concatenation(case, is_first)
    members = group(params, body, CUDA)
    claim, func = kernel(TEMPLATE, members, CUDA)
    config = claim.details.config
    assert claim.launches == 1
    assert isinstance(config.tile or config.skinny, CASES[case][-1])
    inputs = arrays(params)
    expected = reference(*(x.astype("float64") for x in inputs.values()))
    close(run(func, members, inputs), [expected], 2e-5 if case.startswith("3x") else 4e-3)


@pytest.mark.parametrize("rows", [(5, 11), (8, 8)])
def test_between_two_others_along_rows(rows):
    """Others of equal shape share a loop nest, and there the buffer that both are stored to."""
    weight = np.random.default_rng().standard_normal((32, 48)).astype("float16") / 8
    sizes = {"x": (20, 32), "a": (rows[0], 48), "b": (rows[1], 48)}
    params = [tensor(name, *shape, dtype="float16") for name, shape in sizes.items()]

    def body(emit, x, a, b):
        y = emit(op.matmul(x, relax.const(weight)))
        return op.nn.relu(emit(op.concat([a, y, b], 0)))

    members, inputs = group(params, body, CUDA), arrays(params)
    _, func = kernel(TEMPLATE, members, CUDA)
    x, a, b = (v.astype("float64") for v in inputs.values())
    expected = np.maximum(np.concatenate([a, x @ weight.astype("float64"), b], 0), 0)
    close(run(func, members, inputs), [expected], 4e-3)


def test_a_convolution_beside_its_image():
    """As in DenseNets, of channels-last images."""
    rng = np.random.default_rng()
    w = (rng.standard_normal((24, 16, 3, 3)) / 12).astype("float16")
    x = rng.standard_normal((1, 16, 9, 7)).astype("float16")

    def body(emit, x):
        y = emit(op.nn.conv2d(x, relax.const(w), padding=(1, 1), out_dtype="float32"))
        return op.concat([x, emit(op.astype(emit(op.nn.relu(y)), "float16"))], 1)

    members = laid_out([tensor("x", *x.shape, dtype="float16")], body)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert isinstance(claim.details.copies, ImplicitGemm)
    result = launched(TEMPLATE.emit(claim, CUDA.tvm_target()), members, {"x": x.transpose(NHWC)})
    wide = x.astype("float64"), w.astype("float64")
    sums = convolution(*wide, stride=1, padding=(1, 1), dilation=1, groups=1)
    expected = np.concatenate([x, np.maximum(sums, 0)], 1).transpose(NHWC)
    np.testing.assert_allclose(result, expected, atol=4e-3)


def test_few_blocks_copy_no_large_part():
    """Of two tokens' keys, which are put behind a cache of many: a kernel of its own copies."""
    weight = relax.const(np.ones((64, 64), "float16"))
    params = [tensor("x", 2, 64, dtype="float16"), tensor("cache", 65536, 64, dtype="float16")]

    def body(emit, x, cache):
        return op.concat([cache, emit(op.matmul(x, weight))], 0)

    refusal = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "epilogue_elsewhere"
    assert "rounds of loads" in refusal.sentence


def test_sums_on_cuda_cores_are_no_part():
    """In float64, say, there are neither tiles on tensor cores nor a skinny GEMM of many rows."""
    params = [tensor("x", 70, 64, dtype="float64"), tensor("y", 70, 7, dtype="float64")]
    weight = relax.const(np.ones((64, 64), "float64"), "float64")

    def body(emit, x, y):
        return op.concat([emit(op.matmul(x, weight)), y], 1)

    refusal = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "epilogue_elsewhere"


@needs_nvcc
@pytest.mark.cuda_toolchain
def test_registers_of_producers_suffice():
    """wgmma's producers, whose idle warps copy, give registers to consumers."""
    weight = relax.const(np.ones((512, 256), "float16"))
    params = [tensor("x", 4096, 512, dtype="float16"), tensor("y", 4096, 320, dtype="float16")]

    def body(emit, x, y):
        return op.concat([emit(op.matmul(x, weight)), y], 1)

    claim, func = kernel(TEMPLATE, group(params, body, CUDA), CUDA)
    assert claim.details.config.tile.moves_registers
    code = machine_code({"main": func})["main"]
    assert code.stack_bytes == code.spilled_bytes == 0
    assert "ld.global" in code.ptx


# What stands next to a convolution's channels, with indices of its own or loaded ones.
OTHERS = {
    "chosen channels": "int64[32] i) => (float[1,m,h,w] y) { g = Gather<axis = 1>(x, i)",
    "chosen columns": "int64[14] i) => (float[1,m,h,w] y) { g = Gather<axis = 3>(x, i)",
    "chosen elements": "int64[1,32,14,14] i) => (float[1,m,h,w] y) "
    "{ g = GatherElements<axis = 1>(x, i)",
    "a table": "int64[1,32,14,14] i) => (float[1,m,h,w] y) <float[5] t = {1, 2, 3, 4, 5}> "
    "{ g = Gather(t, i)",
    "a product": "float[1,32,14,14] i) => (float[1,m,h,w] y) { g = Sigmoid(i)",
}


@pytest.mark.cuda_toolchain
@needs_nvcc
@pytest.mark.parametrize("other", OTHERS)
def test_images_beside_a_convolution_compile(tmp_path, other):
    """Vectors of a concatenation are stored into an image, all of types that CUDA C names."""
    weight = np.random.default_rng().standard_normal((64, 64, 1, 1)).astype("float32")
    joined = "c = Conv(x, k) r = Concat<axis = 1>(c, g) y = Relu(r) }"
    text = f"g (float[1,64,14,14] x, {OTHERS[other]} {joined}"
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]> ' + text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "k"))
    artifact = tvm_fusion.compile(model, "cuda:sm_90a", precision="fp16")
    assert not [d for d in artifact.manifest["decisions"] if d["verdict"] == "fallback"]
    artifact.export(tmp_path / "model")
