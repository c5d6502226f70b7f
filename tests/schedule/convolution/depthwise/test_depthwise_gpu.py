"""Depthwise convolutions of channels-last images on GPUs: right in the emulator, in vectors."""

import numpy as np
import pytest
from amd_code import run_on_amd
from emulator.amd import whole
from emulator.launch import launch
from group_kernels import CUDA, cuda_kernel, group, tensor
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.device import parse
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.variant import variant
from tvm_fusion.schedule.convolution.depthwise.gpu_template import GpuDepthwise
from tvm_fusion.schedule.stage.install import gather

op = relax.op
TEMPLATE = GpuDepthwise()
NHWC = (0, 2, 3, 1)
ANY = [tirx.Var(name, "int64") for name in ("n", "h", "w")]


def reference(x, w, stride, padding, dilation):
    """Over NCHW in float64."""
    x = np.pad(x, [(0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2])
    window = w.shape[2:]
    rows, columns = (
        (x.shape[2 + n] - dilation * (window[n] - 1) - 1) // stride + 1 for n in range(2)
    )
    y = np.zeros((*x.shape[:2], rows, columns))
    for r in range(window[0]):
        for s in range(window[1]):
            down, across = r * dilation, s * dilation
            end = down + stride * (rows - 1) + 1, across + stride * (columns - 1) + 1
            part = x[:, :, down : end[0] : stride, across : end[1] : stride]
            y += part * w[None, :, 0, r, s, None, None]
    return y


CASES = {
    "3x3": ((2, 24, 9, 7), (3, 3), {}),
    "5x5 strided": ((1, 16, 11, 8), (5, 5), {"stride": 2, "padding": (2, 2)}),
    "7x7": ((1, 40, 8, 9), (7, 7), {"padding": (3, 3)}),
    "dilated": ((1, 8, 9, 9), (3, 3), {"padding": (2, 2), "dilation": 2}),
    "without padding": ((1, 16, 9, 7), (2, 4), {"padding": (0, 0)}),
    "5x1": ((1, 8, 9, 9), (5, 1), {"padding": (2, 0)}),
    "1x3": ((1, 8, 9, 9), (1, 3), {"padding": (0, 1)}),
    "9x9, whose rows are a loop": ((1, 8, 7, 11), (9, 9), {"padding": (4, 4)}),
    "vectors of 8 bytes": ((1, 12, 6, 5), (3, 3), {}),
    "vectors of 4 bytes": ((1, 10, 6, 5), (3, 3), {}),
}


def group_of(case, dtype="float16", layout=True, is_any=False):
    """The group of a convolution with bias, residual and ReLU, its images channels-last.

    Of any batch, rows and columns if so.
    """
    shape, window, options = CASES[case]
    options = {"stride": 1, "padding": (1, 1), "dilation": 1, **options}
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(dtype)
    w = (rng.standard_normal((shape[1], 1, *window)) / np.sqrt(np.prod(window))).astype(dtype)
    b = rng.standard_normal((1, shape[1], 1, 1)).astype("float32")
    y = reference(x.astype("float64"), w.astype("float64"), **options)
    r = rng.standard_normal(y.shape).astype(dtype)

    def body(emit, x, r):
        y = emit(
            op.nn.conv2d(
                x,
                relax.const(w),
                options["stride"],
                options["padding"],
                options["dilation"],
                shape[1],
                out_dtype="float32",
            )
        )
        y = emit(op.add(y, relax.const(b)))
        return emit(
            op.astype(emit(op.nn.relu(emit(op.add(y, emit(op.astype(r, "float32")))))), dtype)
        )

    sizes = [shape, r.shape]
    if is_any:
        stride, padding = options["stride"], options["padding"]
        reach = [options["dilation"] * (size - 1) + 1 for size in window]
        found = [
            (e + 2 * p - r) // stride + 1 for e, p, r in zip(ANY[1:], padding, reach, strict=True)
        ]
        sizes = [(ANY[0], shape[1], *ANY[1:]), (ANY[0], shape[1], *found)]
    params = [tensor(name, *size, dtype=dtype) for name, size in zip("xr", sizes, strict=True)]
    members = group(params, body, CUDA)
    if layout:
        images = [v for v in (*members.inputs, *members.outputs) if v.constant is None]
        members = variant(members, dict.fromkeys(images, Layout(0))).group
    expected = np.maximum(y + b + r.astype("float64"), 0).transpose(NHWC)
    return members, {"x": x.transpose(NHWC), "r": r.transpose(NHWC)}, expected


def run(claim, arrays):
    """Run in the emulator over the packed weight; outputs were NaN before."""
    func, passed = kernel_of(claim, arrays, CUDA)
    launch(func, passed, CUDA.tvm_target())
    return passed[-1]


def kernel_of(claim, arrays, spec):
    """The kernel, and what it is called with."""
    emission = TEMPLATE.emit(claim, spec.tvm_target())
    passed = []
    for position, value in enumerate(claim.group.inputs):
        if value.constant is None:
            passed.append(np.ascontiguousarray(arrays[value.name.partition("_")[0]]))
        elif position in emission.packing:
            passed.append(gather(emission.packing[position], value.constant.value).numpy())
        else:
            passed.append(value.constant.value.numpy())
    (output,) = claim.group.outputs
    result = np.full(arrays["r"].shape, np.nan, output.dtype)
    return emission.kernels[0].func, [*passed, result]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_configuration_is_right(case):
    members, arrays, expected = group_of(case)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert isinstance(claim, Claim), claim
    configs = list(TEMPLATE.configs(claim, CUDA.device))
    assert len({tuple(c.items()) for c in configs}) == len(configs)
    for config in configs:
        chosen = TEMPLATE.configure(claim, config, CUDA.device)
        np.testing.assert_allclose(run(chosen, arrays), expected, atol=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["3x3", "5x5 strided", "dilated"])
def test_images_of_any_size(case):
    members, arrays, expected = group_of(case, is_any=True)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert claim.details.config.pixels > 1
    np.testing.assert_allclose(run(claim, arrays), expected, atol=3e-3)


def test_strips_of_several_pixels_are_among_the_configurations():
    claim = TEMPLATE.claim(group_of("3x3")[0], CUDA.device)
    pixels = {config["pixels"] for config in TEMPLATE.configs(claim, CUDA.device)}
    assert {1, 7} <= pixels


def test_float32_keeps_its_precision():
    members, arrays, expected = group_of("3x3", "float32")
    claim = TEMPLATE.claim(members, CUDA.device)
    np.testing.assert_allclose(run(claim, arrays), expected, atol=1e-6)


def test_images_of_the_graphs_layout_are_refused():
    refusal = TEMPLATE.claim(group_of("3x3", layout=False)[0], CUDA.device)
    assert isinstance(refusal, Refusal)
    assert "contiguous" in refusal.sentence


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(
    ("case", "dtype"), [("3x3", "float16"), ("5x5 strided", "bfloat16"), ("dilated", "float32")]
)
def test_amd_gpus_load_vectors(case, dtype, arch):
    members, arrays, expected = group_of(case, dtype)
    spec = parse(f"rocm:{arch}")
    claim = TEMPLATE.claim(members, spec.device)
    func, passed = kernel_of(claim, arrays, spec)
    ran = run_on_amd(func, arch, *passed, clocks=True)
    close = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-6}[dtype]
    np.testing.assert_allclose(passed[-1].astype("float64"), expected, atol=close)
    assert whole(ran, arch).narrow_loads == 0


def test_dense_convolutions_are_refused():
    w = relax.const(np.ones((16, 8, 3, 3), "float16"))

    def body(emit, x):
        return emit(op.nn.conv2d(x, w, padding=(1, 1), out_dtype="float32"))

    dense = group([tensor("x", 1, 8, 9, 9, dtype="float16")], body, CUDA)
    dense = variant(dense, {dense.inputs[0]: Layout(0)}).group
    assert isinstance(TEMPLATE.claim(dense, CUDA.device), Refusal)


def test_an_unknown_configuration_is_refused():
    claim = TEMPLATE.claim(group_of("3x3")[0], CUDA.device)
    config = {**next(TEMPLATE.configs(claim, CUDA.device)), "pixels": 3}
    assert isinstance(TEMPLATE.configure(claim, config, CUDA.device), Refusal)


@pytest.mark.cuda_toolchain
def test_loads_are_vectors_without_branches():
    claim = TEMPLATE.claim(group_of("3x3")[0], CUDA.device)
    wide = {"lanes": 8, "pixels": 1}
    config = next(c for c in TEMPLATE.configs(claim, CUDA.device) if wide.items() <= c.items())
    claim = TEMPLATE.configure(claim, config, CUDA.device)
    (made,) = TEMPLATE.emit(claim, CUDA.tvm_target()).kernels
    text = cuda_kernel(made.func)
    assert text.count("*(uint4*)(taps_ptr") == 9
    assert text.count("*(uint4*)(weight_ptr") == 9
    assert text.count("if (") <= 2  # rows and columns of the last block
