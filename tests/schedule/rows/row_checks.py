"""Run scheduled row programs on the CPU, GPU schedules too, and compare with float64."""

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_fusion.device import parse


def cpu_target(cpu="cpu"):
    return parse(cpu).tvm_target()


def gpu_target():
    return parse("cuda:sm_90a").tvm_target()


def build(func, target=None):
    target = target or cpu_target()
    with target:
        return tvm.compile(tvm.IRModule({"main": func}), target, tir_pipeline="tvm_fusion")


def serial(func):
    """Let one thread do everything: what blocks mean does not depend on the bindings."""

    def unbind(loop):
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, unbind), order="post"))


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
