"""DLight's rules under guard; no GPU and no CUDA compiler is needed to schedule."""

import pytest
from relax_modules import main_module
from tvm import relax, tirx
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.schedule.gpu.dlight import check_gpu


@pytest.fixture(scope="module")
def target():
    return parse("cuda:sm_90a").tvm_target()


def tensor(name, *shape):
    return relax.Var(name, relax.TensorType(shape, "float32"))


def module(params, operator):
    return main_module(params, operator(*params))


@pytest.mark.parametrize(
    "operator",
    [relax.op.nn.softmax, relax.op.exp, lambda x: relax.op.sum(x, 1), relax.op.permute_dims],
)
def test_every_kernel_is_bound_to_threads(target, operator):
    n = tirx.Var("n", "int64")
    with target:
        mod = transform.Legalize()(module([tensor("x", n, 100)], operator))
        mod = transform.ScheduleKernels()(mod)
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert kernels
    for func in kernels:
        assert "threadIdx.x" in func.script()
        assert check_gpu(func, target) is None


def copy_through(scope, rows, threads=128):
    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((rows, 256), "float32"), b: T.Buffer((rows, 256), "float32")):
        for _i in T.thread_binding(1, "blockIdx.x"):
            with T.sblock("all"):
                T.reads(a[0:rows, 0:256])
                T.writes(b[0:rows, 0:256])
                s = T.sblock_alloc_buffer((rows, 256), "float32", scope=scope)
                for t in T.thread_binding(threads, "threadIdx.x"):
                    for r, k in T.grid(rows, 2):
                        s[r, t % 128 + 128 * k] = a[r, t % 128 + 128 * k]
                    for r, k in T.grid(rows, 2):
                        b[r, t % 128 + 128 * k] = s[r, t % 128 + 128 * k]

    return func


@pytest.mark.parametrize(
    ("scope", "rows", "threads", "fits"),
    [
        ("shared", 48, 128, True),  # 48 KiB
        ("shared", 64, 128, False),  # 64 KiB: too much to declare statically
        ("shared.dyn", 64, 128, True),
        ("shared.dyn", 256, 128, False),  # 256 KiB: more than an H100 has
        ("shared", 1, 2048, False),
    ],
)
def test_limits_of_a_block(target, scope, rows, threads, fits):
    complaint = check_gpu(copy_through(scope, rows, threads), target)
    assert (complaint is None) == fits
    assert fits or "threads or" in complaint
