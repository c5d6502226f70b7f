"""A GEMV loads a constant weight before the kernel before has ended."""

import numpy as np
import pytest
from group_kernels import CUDA, arrays, cuda_kernel, run, tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction

op = relax.op
X, W = tensor("x", 1, 2048, dtype="float16"), tensor("w", 2048, 64, dtype="float16")
GAIN = tensor("gain", 2048, dtype="float16")


def emitted(params, body, is_copied=True):
    with CUDA.tvm_target():
        func = (mod := transform.Legalize()(main_module(params, body)))["main"]
    members = Group(Graph(mod, func, func.body.blocks[0]).operators)
    claim = GpuContraction().claim(members, CUDA.device)
    assert (claim.details.config.gemm.cp_async_stages > 0) == is_copied
    return members, GpuContraction().emit(claim, CUDA.tvm_target()).kernels[0].func


@pytest.mark.parametrize("has_norm", [False, True])
def test_a_weight_is_asked_for_before_the_wait(has_norm):
    weight = arrays([W])["w"]

    def body(emit, x, gain):
        rows = emit(op.nn.rms_norm(x, gain, [-1], 1e-5)) if has_norm else x
        return op.matmul(rows, relax.const(weight), "float32")

    members, func = emitted([X, GAIN], body)
    text = cuda_kernel(func)
    wait = text.index("griddepcontrol_wait()", text.index("main_kernel"))
    copies = text.index("cp_async", text.index("__launch_bounds__"))
    assert copies < wait < min(text.index(read) for read in ("x_ptr[", "x_ptr +") if read in text)
    given = arrays([X, GAIN])
    (found,) = run(func, members, given, CUDA, 1)
    x = given["x"].astype("float64")
    if has_norm:
        x = x / np.sqrt((x * x).mean() + 1e-5) * given["gain"]
    wanted = x @ weight
    assert np.abs(found - wanted).max() <= 2.0**-10 * np.abs(wanted).max()


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("terms", [2048, 4360])  # one round of loads, and several with a rest
def test_a_weight_along_k_is_loaded_into_registers_before_the_wait(terms, has_norm):
    params = [tensor("x", 1, terms, dtype="float16"), tensor("gain", terms, dtype="float16")]
    weight = arrays([tensor("w", 264, terms, dtype="float16")])["w"]

    def body(emit, x, gain):
        rows = emit(op.nn.rms_norm(x, gain, [-1], 1e-5)) if has_norm else x
        return op.matmul(rows, emit(op.permute_dims(relax.const(weight))), "float32")

    members, func = emitted(params, body, is_copied=False)
    text = cuda_kernel(func)
    start = text.index("__launch_bounds__")
    wait = text.index("griddepcontrol_wait()", start)
    assert text.index("*)(constant_ptr", start) < wait < text.index("*)(x_ptr", start)
    given = arrays(params)
    (found,) = run(func, members, given, CUDA, 1)
    x = given["x"].astype("float64")
    if has_norm:
        x = x / np.sqrt((x * x).mean() + 1e-5) * given["gain"]
    wanted = x @ weight.astype("float64").T
    assert np.abs(found - wanted).max() <= 2.0**-10 * np.abs(wanted).max()


def test_what_a_kernel_may_have_written_is_read_behind_it():
    _, func = emitted([X, W], lambda emit, x, w: op.matmul(x, w, "float32"))
    assert "griddepcontrol" not in cuda_kernel(func)
