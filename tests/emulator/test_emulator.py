"""The emulator fails on kernels that are wrong on a GPU, however seldom one would show it."""

import numpy as np
import pytest
from emulator.launch import launch
from emulator.memory import EmulationError
from emulator.plant import WAIT, in_fewer_stages, plant, with_text, without_barrier
from group_kernels import CUDA, array, arrays, extents, group, tensor
from tvm import ir, relax, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script import tirx as T

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction

op = relax.op
TARGET = CUDA.tvm_target()


@T.prim_func(s_tir=True)
def neighbours(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("all"):
                T.reads(x[0:256])
                T.writes(y[0:256])
                held = T.sblock_alloc_buffer((256,), scope="shared")
                held[t] = x[t]
                y[t] = held[255 - t]
                held[t] = x[t] + T.float32(1)
                y[t] = y[t] + held[(t + 128) % 256]


def run(func):
    x = np.random.default_rng(0).standard_normal(256).astype("float32")
    y = np.empty_like(x)
    launch(func, [x, y], TARGET)
    return x, y


def test_barriers_order_accesses():
    x, y = run(neighbours)
    np.testing.assert_array_equal(y, x[::-1] + (np.roll(x, -128) + np.float32(1)))


@pytest.mark.parametrize(
    ("barrier", "message"),
    [
        (0, "read without a barrier after the write"),
        (1, "written without a barrier after a read"),
        (2, "read without a barrier after the write"),
    ],
)
def test_a_missing_barrier(monkeypatch, barrier, message):
    plant(monkeypatch, *without_barrier(barrier))
    with pytest.raises(EmulationError, match=message):
        run(neighbours)


def gemv():
    """Columns of a weight that are copied to shared memory three steps ahead."""
    params = [tensor("x", 1, 4096, dtype="float16"), tensor("w", 4096, 64, dtype="float16")]
    members = group(params, lambda emit, x, w: op.matmul(x, w, "float32"), CUDA)
    return GpuContraction(), params, members


def decoding():
    """Keys and values that a warp's threads copy for one another, two steps ahead."""
    params = [tensor(n, 4, 8, 1 if n == "q" else 700, 128, dtype="float16") for n in "qkv"]

    def body(emit, q, k, v):
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])), "float32"))
        return op.matmul(emit(op.astype(emit(op.nn.softmax(scores)), "float16")), v)

    return Attention(True), params, group(params, body, CUDA)


def emulated(template, params, members):
    claim = template.claim(members, CUDA.device)
    emission = template.emit(claim, TARGET)
    inputs = arrays(params)
    held = {("input", i): array(v, inputs) for i, v in enumerate(members.inputs)}
    made = {"output": [v.type for v in members.outputs], "workspace": emission.workspaces}
    for kind, types in made.items():
        held |= {(kind, i): np.zeros(extents(t), str(t.dtype)) for i, t in enumerate(types)}
    for one in emission.kernels:
        launch(one.func, [held[s.kind, s.index] for s in (*one.reads, *one.writes)], TARGET)
    return held["output", 0]


COPIES = "before its copy was waited for"
PIPELINES = {
    "gemv": (gemv, 3),
    "decoding": (decoding, 2),
}


def planted(what, stages):
    if what == "a wait too few":
        return with_text(WAIT, lambda found: f"wait_group {int(found[1]) + 1};")
    if what == "no wait":
        return with_text(WAIT, "wait_group 9;")
    if what == "no commit":
        return with_text(r"cp\.async\.commit_group;", "cp.async.wait_group 9;")
    return in_fewer_stages(stages)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_right(name):
    make, _ = PIPELINES[name]
    assert np.isfinite(emulated(*make()).astype("float32")).all()


def test_an_unaligned_copy(monkeypatch):
    def change(call):
        if call_name(call) != "address_of" or call.args[0].source.scope() != "shared.dyn":
            return call
        return tirx.address_of(tirx.BufferLoad(call.args[0].source, [call.args[0].indices[0] + 1]))

    plant(monkeypatch, ir.Call, change)
    with pytest.raises(EmulationError, match="a vector of 16 bytes is unaligned"):
        emulated(*gemv())


@pytest.mark.parametrize("what", ["a wait too few", "no wait", "no commit", "a stage too few"])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_wrong_pipeline(name, what, monkeypatch):
    make, stages = PIPELINES[name]
    plant(monkeypatch, *planted(what, stages))
    with pytest.raises(EmulationError, match=f"{COPIES}|without a barrier"):
        emulated(*make())


def test_a_missing_barrier_of_a_warp(monkeypatch):
    """Threads of a warp read what others copied."""
    plant(monkeypatch, *with_text(r"(?<=;)\s*__syncwarp\(\);", ""))
    with pytest.raises(EmulationError, match="read without a barrier"):
        emulated(*decoding())


@T.prim_func(s_tir=True)
def divergent(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("all"):
                T.reads(x[0:64])
                T.writes(y[0:64])
                if t < 40:
                    T.evaluate(T.tvm_storage_sync("shared"))
                y[t] = x[t]


@T.prim_func(s_tir=True)
def outside(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("all"):
                T.reads(x[0:64])
                T.writes(y[0:64])
                y[t] = x[t * 2 % 65]


@pytest.mark.parametrize(
    ("func", "sizes", "message"),
    [
        (divergent, (64, 64), "not all threads of a block"),
        (outside, (64, 64), "x: an index lies outside"),
    ],
)
def test_what_a_gpu_leaves_undefined(func, sizes, message):
    with pytest.raises(EmulationError, match=message):
        launch(func, [np.zeros(size, "float32") for size in sizes], TARGET)


@pytest.mark.parametrize(
    "call",
    [
        cuda_func_call("clock", source_code="__device__ int clock() { return 1; }"),
        cuda_func_call("twice", source_code='{ asm("bar.sync 0;"); asm("bar.sync 0;"); }'),
        tirx.call_intrin("int32", "tirx.popcount", tirx.IntImm("int32", 5)),
        tirx.call_intrin("void", "tirx.tvm_storage_sync", "cluster"),
    ],
    ids=["function", "assembly", "intrinsic", "barrier"],
)
def test_what_is_not_known_is_refused(monkeypatch, call):
    plant(monkeypatch, tirx.Evaluate, lambda stmt: tirx.Evaluate(call))
    with pytest.raises(EmulationError, match=r"no such (device function|barrier|intrinsic)"):
        run(neighbours)
