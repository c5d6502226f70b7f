"""Measure layers in this process: ours and oneDNN (through PyTorch) take turns.

Both read and write the blocked layout, with weights packed before. Of each the quickest call
counts. With one thread its CPU time is taken, which leaves out when other processes had the core.
Threads of a pool spin for a while before they sleep, on cores that the other engine is to have: a
turn is many calls, behind a pause.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
import tvm
from torch.utils import mkldnn as mkldnn_utils
from tvm import relax, te, tirx

from tvm_fusion import transform
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, local, loop, sequence
from tvm_fusion.core.untouched import SCHEDULED
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.convolution.template import ConvDetails, CpuConvolution
from tvm_fusion.schedule.cpu.register_tile import VectorUnit, each
from tvm_fusion.schedule.cpu.schedule import schedule_cpu

from .layers import NETWORKS, Layer

STEPS, UNROLLED = 1 << 12, 8  # a branch for each 28 of Zen 5 costs 7 %


def peak(clock: Callable[[], float]) -> float:
    """Measure fused multiply-adds of independent registers, in GFLOP/s of one thread."""
    unit = VectorUnit.of(parse("cpu").device)
    rows = unit.registers - 4
    x = tirx.decl_buffer([unit.lanes], "float32", "x")
    y = tirx.decl_buffer([rows, unit.lanes], "float32", "y")
    acc = local("acc", [rows, unit.lanes], "float32")

    def add(i: Any, lane: Any) -> tirx.Stmt:
        value = load(acc, [i, lane]) * load(x, [lane]) + load(x, [lane])
        return tirx.BufferStore(acc, value, [i, lane])

    begin = each(acc, lambda i, lane: tirx.BufferStore(acc, load(x, [lane]), [i, lane]))
    end = each(acc, lambda i, lane: tirx.BufferStore(y, load(acc, [i, lane]), [i, lane]))
    steps = loop("k", index(STEPS), lambda _: tirx.SeqStmt([each(acc, add)] * UNROLLED))
    func = tirx.PrimFunc([x, y], block("root", block("tile", sequence([begin, steps, end]), [acc])))
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tvm.compile(module, parse("cpu").tvm_target(), tir_pipeline="tvm_fusion")
    tensors = [np.full(unit.lanes, 0.5, "float32"), np.zeros((rows, unit.lanes), "float32")]
    arguments = [tvm.runtime.tensor(a) for a in tensors]
    best = float("inf")
    for _ in range(200):
        start = clock()
        built["main"](*arguments)
        best = min(best, clock() - start)
    return 2 * STEPS * UNROLLED * rows * unit.lanes / best / 1e9


SECONDS, CALLS = 0.8, (10, 2000)
TURN, PAUSE = 20, 0.01  # calls of a turn; seconds before it
TOLERANCE = 1e-4
STEP = relax.const(np.float32(2.0**-12))  # of sums of bytes, for each result of eight bits


def main() -> int:
    """Print a line of JSON for each layer; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--network", choices=NETWORKS, default="ResNet-50")
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    print(json.dumps({"peak_gflops": peak(clock), "call_us": empty_call(clock)}), flush=True)
    for layer in NETWORKS[args.network]:
        if args.only in layer.name:
            found = compare(layer, clock, args.batch)
            print(json.dumps({"layer": layer.name, **found}), flush=True)
    return 0


def compare(layer: Layer, clock: Callable[[], float], batch: int = 1) -> dict[str, Any]:
    """Time a layer of some images, after comparing the results with float64."""
    image, weight, bias = draw(layer, batch)
    ours, result, _ = build(layer, image, weight, bias)
    theirs, other = onednn(layer, image, weight, bias)
    expected = reference(layer, image, weight, bias)
    errors = [float(np.abs(found - expected).max()) for found in (result(), other())]
    if max(errors) > TOLERANCE:
        return {"error": f"results differ from float64 by {errors}"}
    best = [float("inf"), float("inf")]
    calls, end = 0, time.monotonic() + SECONDS
    while calls < CALLS[0] or (time.monotonic() < end and calls < CALLS[1]):
        for number, call in enumerate((ours, theirs)):
            time.sleep(PAUSE)
            for _ in range(TURN):
                start = clock()
                call()
                best[number] = min(best[number], clock() - start)
        calls += TURN
    return {"flops": batch * layer.flops, "ours_us": best[0] * 1e6, "theirs_us": best[1] * 1e6}


def draw(layer: Layer, batch: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw an image, a weight and a bias."""
    rng = np.random.default_rng(0)
    shape = (layer.k, layer.c // layer.groups, layer.window, layer.window)
    weight = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")
    bias = rng.standard_normal(layer.k).astype("float32")
    image = rng.standard_normal((batch, layer.c, layer.size, layer.size)).astype("float32")
    return image, weight, bias


def reference(layer: Layer, image: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Compute a layer in float64."""
    return torch.nn.functional.conv2d(
        *(torch.from_numpy(a.astype("float64")) for a in (image, weight, bias)),
        layer.stride,
        layer.padding,
        1,
        layer.groups,
    ).numpy()


def build(
    layer: Layer,
    image: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    flags: Collection[str] = (),
):
    """Compile a layer between blocked layouts; a plain image where its channels are few.

    Parameters
    ----------
    image, weight, bias
        In plain layouts; of an image of uint8 the bias is int32, and results are quantized again.
    flags
        What the user allows.

    Returns
    -------
    run, result : callable
        Call the kernel; call it and give its result in the plain layout.
    configuration : object
        Of the kernel.
    """
    lanes = VectorUnit.of(parse("cpu").device).lanes
    is_plain = layer.c < lanes
    builder = relax.BlockBuilder()
    shape = image.shape if is_plain else blocked_shape(image.shape, lanes)
    dtype, is_bytes = str(image.dtype), image.dtype == "uint8"
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x if is_plain else builder.emit_te(unblock, x, layer.c, lanes)
            conv = (layer.stride, layer.padding, 1, layer.groups)
            w, b = (relax.const(tvm.runtime.tensor(a)) for a in (weight, bias.reshape(-1, 1, 1)))
            sums = "int32" if is_bytes else dtype
            y = builder.emit(relax.op.nn.conv2d(y, w, *conv, out_dtype=sums))
            y = builder.emit(relax.op.add(y, b))
            if is_bytes:
                y = builder.normalize(relax.op.multiply(relax.op.astype(y, "float32"), STEP))
                y = builder.normalize(relax.op.clip(relax.op.round(y), 0, 255))
                y = builder.emit(relax.op.astype(y, "uint8"))
            y = builder.emit_output(builder.call_te(to_blocks, y, lanes))
        builder.emit_func_output(y)
    spec = parse("cpu").permitting(flags)
    with spec.tvm_target():
        mod = transform.Legalize()(builder.get())
    members = Group(Graph(mod, mod["main"], mod["main"].body.blocks[0]).operators)
    claim = CpuConvolution().claim(members, spec.device)
    if isinstance(claim, Refusal):
        raise SystemExit(claim.sentence)
    emission = CpuConvolution().emit(claim, spec.tvm_target())
    functions = {"main": emission.kernels[0].func}
    for position, packing in emission.packing.items():
        functions[f"pack{position}"] = schedule_cpu(packing, spec.tvm_target()).mod["main"]
    functions = {n: f.with_attr("global_symbol", n) for n, f in functions.items()}
    built = tvm.compile(tvm.IRModule(functions), spec.tvm_target(), tir_pipeline="tvm_fusion")
    given = image if is_plain else numpy_blocks(image, lanes)
    arguments = []
    for position, value in enumerate(members.inputs):
        array = tvm.runtime.tensor(given) if value.constant is None else value.constant.value
        if position in emission.packing:
            packed = emission.packing[position].params[-1].ty
            shape = [int(d) for d in packed.shape]
            array, plain = tvm.runtime.empty(shape, str(packed.dtype)), array
            built[f"pack{position}"](plain, array)
        arguments.append(array)
    out = blocked_shape((len(image), layer.k, layer.out_size, layer.out_size), lanes)
    y = tvm.runtime.tensor(np.full(out, 99 if is_bytes else np.nan).astype(dtype))
    kernel = built["main"]

    def run() -> None:
        kernel(*arguments, y)

    def result() -> np.ndarray:
        run()
        n, blocks, rows, columns, _ = out
        plain = y.numpy().transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, rows, columns)
        return plain[:, : layer.k]

    return run, result, claim.details_as(ConvDetails).config


def onednn(layer: Layer, image: np.ndarray, weight: np.ndarray, bias: np.ndarray):
    """Make the same layer of PyTorch on oneDNN's own layouts."""
    options = (layer.window, layer.stride, layer.padding, 1, layer.groups)
    module = torch.nn.Conv2d(layer.c, layer.k, *options).eval()
    module.weight.data[:] = torch.from_numpy(weight)
    module.bias.data[:] = torch.from_numpy(bias)
    module = mkldnn_utils.to_mkldnn(module)
    x = torch.from_numpy(image).to_mkldnn()

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return module(x)

    return call, lambda: call().to_dense().numpy()


def empty_call(clock: Callable[[], float]) -> list[float]:
    """Time the smallest layer, ours and oneDNN's: what a call costs besides the convolution."""
    layer = Layer(32, 16, 2)
    found = compare(layer, clock)
    return [found["ours_us"], found["theirs_us"]]


def blocked_shape(shape, lanes: int) -> tuple[int, ...]:
    """Return the shape of ``[n, c / lanes, h, w, lanes]``."""
    n, c, h, w = shape
    return n, -(-c // lanes), h, w, lanes


def unblock(a: te.Tensor, c: int, lanes: int) -> te.Tensor:
    """Read a blocked image as a plain one."""
    n, _, h, w, _ = (int(d) for d in a.shape)
    return te.compute((n, c, h, w), lambda i, k, y, x: a[i, k // lanes, y, x, k % lanes])


def to_blocks(a: te.Tensor, lanes: int) -> te.Tensor:
    """Write a plain image in blocks; channels beyond the last are zero."""
    n, c, h, w = (int(d) for d in a.shape)

    def element(i, k, y, x, lane):
        inside = a[i, k * lanes + lane, y, x]
        if c % lanes == 0:
            return inside
        return tirx.if_then_else(k * lanes + lane < c, inside, tirx.const(0, str(a.dtype)))

    return te.compute(blocked_shape((n, c, h, w), lanes), element)


def numpy_blocks(a: np.ndarray, lanes: int) -> np.ndarray:
    """Do the same in numpy."""
    n, c, h, w = a.shape
    padded = np.zeros((n, -(-c // lanes) * lanes, h, w), a.dtype)
    padded[:, :c] = a
    return np.ascontiguousarray(padded.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2))


if __name__ == "__main__":
    os._exit(main())  # without waiting for threads that spin
