"""Run scheduled row programs on the CPU, GPU schedules too, and compare with float64."""

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_fusion.device import parse
from tvm_fusion.fusion.expressions import loads
from tvm_fusion.schedule.address import offset
from tvm_fusion.schedule.loops import product


def cpu_target(cpu="cpu"):
    return parse(cpu).tvm_target()


def gpu_target():
    return parse("cuda:sm_90a").tvm_target()


def build(func, target=None):
    target = target or cpu_target()
    with target:
        func = func.with_attr("global_symbol", "main")
        return tvm.compile(tvm.IRModule({"main": func}), target, tir_pipeline="tvm_fusion")


def serial(func, kinds=(tirx.ForKind.THREAD_BINDING,)):
    """Let one thread do everything: what blocks mean does not depend on the bindings."""

    def one_by_one(loop):
        if loop.kind not in kinds:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, one_by_one), order="post"))


def bounded(func):
    """Let one thread do everything, and every access raise that lies outside its buffer.

    A vector counts by its elements; what a condition keeps from being run does not count.
    """

    def end(index, lane):
        is_ramp = isinstance(index, tirx.Ramp)
        return index.base + index.stride * (lane * (index.lanes - 1)) if is_ramp else index

    def inside(buffer, indices):
        first, last = (offset(buffer, [end(i, lane) for i in indices]) for lane in (0, 1))
        return tirx.AssertStmt(
            tirx.And(first >= 0, last < product(buffer.shape)),
            ir.StringImm("IndexError"),
            [ir.StringImm(f"outside {buffer.name}")],
        )

    def watch(store):
        found = [load for e in (store.value, *store.indices) for load in loads(e)]
        checks = [inside(load.source, load.indices) for load in found]
        return tirx.SeqStmt([*checks, inside(store.buffer, store.indices), store])

    func = serial(func, (tirx.ForKind.THREAD_BINDING, tirx.ForKind.VECTORIZED))
    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, watch), order="post")
    return func.with_body(body)


def check(example, func, sizes=None, tolerance=5e-6):
    """Compare a scheduled function with the example's reference on fresh inputs."""

    def shape(buffer):
        return [int(e) if isinstance(e, tirx.IntImm) else sizes[e.name] for e in buffer.shape]

    rng = np.random.default_rng(len(example.inputs))
    inputs = [rng.standard_normal(shape(b)).astype(str(b.dtype)) for b in example.inputs]
    expected = [np.asarray(r) for r in example.reference(*inputs)]
    outputs = [
        tvm.runtime.tensor(np.full(r.shape, 99).astype(str(b.dtype)))
        for r, b in zip(expected, example.outputs, strict=True)
    ]
    build(func)["main"](*[tvm.runtime.tensor(a) for a in inputs], *outputs)
    for output, reference in zip(outputs, expected, strict=True):
        scale = max(np.abs(reference).max(initial=0), 1)
        assert np.abs(output.numpy().astype("float64") - reference).max() <= tolerance * scale
