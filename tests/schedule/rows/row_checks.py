"""Run scheduled row programs, those of GPUs in the emulator, and compare with float64."""

import numpy as np
import tvm
from emulator.launch import is_for_gpu, launch
from tvm import tirx

from tvm_fusion.device import parse


def cpu_target(cpu="cpu"):
    return parse(cpu).tvm_target()


def gpu_target():
    return parse("cuda:sm_90a").tvm_target()


def build(func, target=None):
    target = target or cpu_target()
    with target:
        func = func.with_attr("global_symbol", "main")
        return tvm.compile(tvm.IRModule({"main": func}), target, tir_pipeline="tvm_fusion")


def call(func, *arrays):
    """All arrays behind a call of a function, of a GPU in the emulator."""
    if is_for_gpu(func):
        launch(func, arrays, gpu_target())
        return arrays
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    build(func)["main"](*tensors)
    return [t.numpy() for t in tensors]


def check(example, func, sizes=None, tolerance=5e-6):
    """Compare a scheduled function with the example's reference on fresh inputs."""

    def shape(buffer):
        return [int(e) if isinstance(e, tirx.IntImm) else sizes[e.name] for e in buffer.shape]

    rng = np.random.default_rng(len(example.inputs))
    inputs = [rng.standard_normal(shape(b)).astype(str(b.dtype)) for b in example.inputs]
    expected = [np.asarray(r) for r in example.reference(*inputs)]
    outputs = [
        np.full(r.shape, 99).astype(str(b.dtype))
        for r, b in zip(expected, example.outputs, strict=True)
    ]
    outputs = call(func, *inputs, *outputs)[len(inputs) :]
    for output, reference in zip(outputs, expected, strict=True):
        scale = max(np.abs(reference).max(initial=0), 1)
        assert np.abs(output.astype("float64") - reference).max() <= tolerance * scale
