"""Maps before and behind a running sum are one kernel with it, where they read it in place."""

import numpy as np
import pytest
from amd_code import run_on_amd
from group_kernels import CPU, CUDA, check, close, compiles_for_cuda, group, kernel, tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.fusion.estimate import Estimator
from tvm_fusion.schedule.scan.template import PrefixSum

op = relax.op
specs = pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])


def log_sum_exp(emit, x, w):
    return op.log(emit(op.cumsum(emit(op.exp(x)), axis=1)))


def weighed(emit, x, w):
    return op.multiply(emit(op.cumsum(emit(op.multiply(x, x)), axis=1)), w)


def without_itself(emit, x, w):
    return op.subtract(emit(op.cumsum(x, axis=1, exclusive=True)), x)


def shared_map(emit, x, w):
    """The map before the sum is read behind it, too: it is computed again."""
    e = emit(op.exp(x))
    return op.divide(emit(op.cumsum(e, axis=1)), e)


BODIES = {
    log_sum_exp: lambda x, w: np.log(np.cumsum(np.exp(x), 1)),
    weighed: lambda x, w: np.cumsum(x * x, 1) * w,
    without_itself: lambda x, w: np.cumsum(x, 1) - 2 * x,
    shared_map: lambda x, w: np.cumsum(np.exp(x), 1) / np.exp(x),
}
SHAPES = {"vectors": (5, 128), "rest": (3, 131), "rounds": (2, 4096)}


@specs
@pytest.mark.parametrize("shape", SHAPES.values(), ids=[*SHAPES])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_are_one_kernel(body, shape, spec):
    params = [tensor("x", *shape), tensor("w", shape[1])]
    check(PrefixSum(spec is CUDA), params, body, lambda x, w: [BODIES[body](x, w)], spec, 2e-4)


def test_half_types():
    params = [tensor("x", 4, 64, dtype="float16"), tensor("w", 64, dtype="float16")]
    reference = BODIES[weighed]
    check(PrefixSum(True), params, weighed, lambda x, w: [reference(x, w)], CUDA, 4e-3)


def test_columns_on_a_cpu():
    def body(emit, x, w):
        return op.multiply(emit(op.cumsum(emit(op.exp(x)), axis=0)), w)

    params = [tensor("x", 9, 40), tensor("w", 40)]
    check(PrefixSum(False), params, body, lambda x, w: [np.cumsum(np.exp(x), 0) * w], CPU, 1e-5)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda emit, x: op.permute_dims(emit(op.cumsum(x, axis=1))), "not_in_place"),
        (lambda emit, x: op.cumsum(emit(op.cumsum(x, axis=1)), axis=1), "not_mine"),
        (lambda emit, x: op.cumsum(emit(op.nn.softmax(x)), axis=1), "not_in_place"),
    ],
)
def test_what_is_no_map_in_place_is_refused(body, code):
    found = PrefixSum(False).claim(group([tensor("x", 16, 16)], body), CPU.device)
    assert isinstance(found, Refusal)
    assert found.code == code


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a", "rocm:gfx942"])
def test_are_proposed(target):
    tvm_target = parse(target).tvm_target()
    mod = main_module([tensor("x", 37, 130), tensor("w", 130)], log_sum_exp)
    with tvm_target:
        assert Estimator(tvm_target).module(mod).kernels == 1


@pytest.mark.slow
def test_on_amd():
    params = [tensor("x", 3, 640, dtype="float16"), tensor("w", 640, dtype="float16")]
    spec = parse("rocm:gfx942")
    _, func = kernel(PrefixSum(True), group(params, weighed, spec), spec)
    x, w = (np.full((3, 640), 0.25, "float16"), np.linspace(0, 1, 640).astype("float16"))
    y = np.empty((3, 640), "float16")
    run_on_amd(func, "gfx942", x, w, y)
    close([y], [np.cumsum(x.astype("f8") ** 2, 1) * w], 2e-3)


@pytest.mark.cuda_toolchain
def test_compile_for_cuda():
    half = [tensor("x", 5, 512, dtype="float16"), tensor("w", 512, dtype="float16")]
    odd = [tensor("x", 5, 131), tensor("w", 131)]
    cases = {f"{len(p)}{b.__name__}{p[0]}": (p, b) for p in (half, odd) for b in BODIES}
    assert compiles_for_cuda(PrefixSum(True), cases)
