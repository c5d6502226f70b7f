"""Kernels of recurrent layers against float64 numpy, on a CPU and in the emulator of GPUs."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from emulator.launch import is_for_gpu, launch
from group_kernels import CPU, CUDA, built
from relax_modules import main_module
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.core.recurrent.buffers import declared
from tvm_fusion.core.recurrent.cell import Activation, Recurrence
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.errors import UserError
from tvm_fusion.frontend.operators import recurrence
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.recurrent import config, template
from tvm_fusion.schedule.recurrent.template import Recurrent
from tvm_fusion.schedule.stage.install import gather

pytestmark = pytest.mark.slow_beyond(2)

SIGMOID, TANH, RELU = Activation("Sigmoid"), Activation("Tanh"), Activation("Relu")
LSTM = Recurrence("lstm", "iofc", (False,), ((SIGMOID, TANH, TANH),))
GRU = Recurrence("gru", "zrh", (False,), ((SIGMOID, TANH),))
RESET_AFTER = replace(GRU, reset_after=True, gates="rzh", optional=("bias",))
RNN = Recurrence("rnn", "h", (False,), ((TANH,),))
ALL = ("initial_h", "initial_c", "peepholes", "lengths")
FUNCTIONS = {"Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Tanh": np.tanh,
             "Relu": lambda x: np.maximum(x, 0)}  # fmt: skip
specs = pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])


def both_ways(layer):
    """The layer in both directions, with another activation on the way back."""
    back = (*layer.activations[0][:-1], RELU)
    return replace(layer, reverse=(False, True), activations=(layer.activations[0], back))


def numpy_layer(layer, given):
    """What a layer computes, row by row, in float64."""
    x, weights = given["projected"], given["weights"]
    if layer.input_axes == "BT":
        x = x.swapaxes(0, 1)
    (steps, batch, _), (d, _, hidden) = x.shape, weights.shape
    y = np.zeros((steps, d, batch, hidden))
    last = {s: np.zeros((d, batch, hidden)) for s in "hc"}
    for i in range(d):
        acts = [FUNCTIONS[a.name] for a in layer.activations[i]]
        for b in range(batch):
            h, c = (given[f"initial_{s}"][i, b] if f"initial_{s}" in given else np.zeros(hidden)
                    for s in "hc")  # fmt: skip
            length = given["lengths"][b] if "lengths" in given else steps
            times = range(length)
            for t in reversed(times) if layer.reverse[i] else times:
                into = by_gate(layer, np.split(x[t, b], d)[i])
                r = by_gate(layer, weights[i])
                h, c = cell(layer, acts, into, r, h, c, given, i)
                y[t, i, b] = h
            if length:
                last["h"][i, b], last["c"][i, b] = h, c
    order = ["TDBH".index(a) for a in layer.output_axes]
    return {"outputs": y.transpose(order), "last_h": last["h"], "last_c": last["c"]}


def by_gate(layer, rows):
    return dict(zip(layer.gates, np.split(rows, len(layer.gates)), strict=True))


def cell(layer, acts, x, r, h, c, given, i):
    if layer.cell == "rnn":
        return acts[0](x["h"] + r["h"] @ h), c
    if layer.cell == "gru":
        z, reset = (acts[0](x[g] + r[g] @ h) for g in "zr")
        if layer.reset_after:
            n = acts[1](x["h"] + reset * (r["h"] @ h + given["bias"][i]))
        else:
            n = acts[1](x["h"] + r["h"] @ (reset * h))
        return (1 - z) * n + z * h, c
    p = given["peepholes"][i] if "peepholes" in given else np.zeros(3 * len(h))
    pi, po, pf = np.split(p, 3)
    put, forget = acts[0](x["i"] + r["i"] @ h + pi * c), acts[0](x["f"] + r["f"] @ h + pf * c)
    c = forget * c + put * acts[1](x["c"] + r["c"] @ h)
    return acts[0](x["o"] + r["o"] @ h + po * c) * acts[2](c), c


def module(layer, steps, batch, hidden, dtype="float32", wanted=None):
    """A function that runs a layer over its operands; the weights are constant."""
    buffers = declared(layer, steps, batch, hidden, dtype).buffers
    rng = np.random.default_rng()
    shape = [int(d) for d in buffers["weights"].shape]
    weights = (rng.standard_normal(shape) / np.sqrt(hidden)).astype(dtype)
    params = {
        name: relax.Var(name, relax.TensorType(list(buffers[name].shape), str(buffers[name].dtype)))
        for name in layer.operands
        if name != "weights"
    }
    builder = relax.BlockBuilder()
    with builder.function("main", [*params.values()]):
        with builder.dataflow():
            operands = {**params, "weights": relax.const(weights, dtype)}
            found = recurrence.run(builder, layer, operands)
            found = dict(zip(layer.results, found, strict=True))
            results = [builder.emit_output(found[n]) for n in wanted or layer.results]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.get(), weights


def claimed(layer, spec, *sizes, **options):
    mod, weights = module(layer, *sizes, **options)
    func = mod["main"]
    with spec.tvm_target():
        members = Group(Graph(mod, func, func.body.blocks[0]).operators[:1])
    return Recurrent(spec is CUDA).claim(members, spec.device), weights


def check(layer, spec, steps=4, batch=3, hidden=7, dtype="float32", tolerance=1e-5, wanted=None):
    """Make the kernel, and run it on random operands."""
    claim, weights = claimed(layer, spec, steps, batch, hidden, dtype=dtype, wanted=wanted)
    assert isinstance(claim, Claim), claim
    emission = claim.template.emit(claim, spec.tvm_target())
    (kernel,) = emission.kernels
    rng = np.random.default_rng()
    given = {"weights": weights}
    passed = []
    for number, value in enumerate(claim.group.inputs):
        if value.is_constant:
            ((position, packing),) = emission.packing.items()
            assert position == number
            packed = gather(packing, tvm.runtime.tensor(weights))
            if packed is None:
                packed = packed_by_kernel(packing, weights)
            passed.append(packed.numpy())
            continue
        shape = [sized(d) for d in value.shape]
        if value.dtype == "int32":
            made = rng.integers(0, sized(steps) + 1, shape).astype("int32")
        else:
            made = rng.standard_normal(shape).astype(dtype)
        given[value.name] = made
        passed.append(made)
    results = []
    for slot in kernel.writes:
        values = claim.group.outputs if slot.kind == "output" else emission.workspaces
        value = values[slot.index]
        shape = value.shape if slot.kind == "output" else value.shape.values
        kind = value.dtype if slot.kind == "output" else value.dtype.dtype
        results.append(np.full([sized(d) for d in shape], 7).astype(str(kind)))
    if is_for_gpu(kernel.func):
        launch(kernel.func, [*passed, *results], CUDA.tvm_target())
    else:
        tensors = [tvm.runtime.tensor(r) for r in results]
        built(kernel.func, spec)(*map(tvm.runtime.tensor, passed), *tensors)
        results = [t.numpy() for t in tensors]
    wide = {n: a if a.dtype == "int32" else a.astype("float64") for n, a in given.items()}
    expected = numpy_layer(layer, wide)
    for name, result in zip(wanted or layer.results, results, strict=False):
        np.testing.assert_allclose(result, expected[name], rtol=0, atol=tolerance)
    return claim


def sized(extent):
    return int(extent) if isinstance(extent, int | tirx.IntImm) else 5


def packed_by_kernel(packing, weights):
    buffer = packing.params[-1].ty
    packed = tvm.runtime.empty([int(d) for d in buffer.shape], str(buffer.dtype))
    built(packing, CPU)(tvm.runtime.tensor(weights), packed)
    return packed


@specs
@pytest.mark.parametrize(
    "layer", [LSTM, GRU, RESET_AFTER, RNN], ids=["lstm", "gru", "after", "rnn"]
)
@pytest.mark.parametrize(("batch", "hidden"), [(1, 16), (3, 7), (7, 37)])
def test_cells(layer, batch, hidden, spec):
    assert check(layer, spec, 4, batch, hidden).launches == 1


@pytest.mark.slow
@specs
@pytest.mark.parametrize(
    "layer", [LSTM, GRU, RESET_AFTER, RNN], ids=["lstm", "gru", "after", "rnn"]
)
def test_both_directions_lengths_and_initial_states(layer, spec):
    names = ALL if layer is LSTM else ("initial_h", "lengths")
    layer = replace(both_ways(layer), optional=(*layer.optional, *names))
    check(layer, spec, 5, 4, 21)


@specs
@pytest.mark.parametrize("axes", ["TBDH", "BTDH"])
def test_orders_of_axes(axes, spec):
    check(replace(both_ways(GRU), input_axes="BT", output_axes=axes), spec)


@pytest.mark.slow
def test_many_rows_are_shared_out():
    """Whole tiles, several tasks, and a last task of fewer rows."""
    claim = check(LSTM, CPU, 3, 43, 18)
    assert claim.parallelism > 1
    assert check(LSTM, CPU, 3, 32, 18).parallelism > 1


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("layer", [LSTM, GRU, RESET_AFTER], ids=["lstm", "gru", "after"])
def test_threads_share_the_steps_of_one_task(layer, monkeypatch):
    monkeypatch.setattr(config, "PARALLEL_STEP", 1)
    claim = check(layer, CPU, 5, 2, 75)
    assert claim.details.config.shares_steps
    assert not check(both_ways(layer), CPU, 5, 2, 75).details.config.shares_steps


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@specs
def test_symbolic_steps_and_rows(spec):
    steps, batch = tirx.Var("T", "int64"), tirx.Var("B", "int64")
    check(replace(LSTM, optional=("initial_h",)), spec, steps, batch, 19)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@specs
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-12)])
def test_types(dtype, tolerance, spec):
    check(LSTM, spec, dtype=dtype, tolerance=tolerance)
    check(RNN, spec, dtype=dtype, tolerance=tolerance)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@specs
@pytest.mark.parametrize("wanted", [("outputs",), ("last_h",), ("last_h", "last_c")])
def test_results_that_nothing_reads_are_not_written(wanted, spec):
    check(LSTM, spec, wanted=wanted)


def test_large_states_are_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr(template, "STATIC_SHARED_BYTES", 4 * 40)
    assert isinstance(claimed(RNN, CUDA, 2, 1, 40)[0], Claim)
    with pytest.raises(UserError, match=r"of 41 units.* take 164 bytes.*; expected at most 160"):
        tvm_fusion.compile(module(RNN, 2, 1, 41)[0], "cuda:sm_90a")


def test_other_operators_are_refused():
    mod = main_module([x := relax.Var("x", relax.TensorType([3, 4], "float32"))], relax.op.exp(x))
    with CPU.tvm_target():
        mod = tvm_fusion.transform.Legalize()(mod)
    members = Group(Graph(mod, mod["main"], mod["main"].body.blocks[0]).operators)
    assert Recurrent(False).claim(members, CPU.device).code == "not_mine"


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "rocm:gfx942"])
def test_one_kernel_for_all_steps(target):
    mod, _ = module(both_ways(LSTM), 6, 2, 33)
    text = str(tvm_fusion.explain(mod, target=target))
    assert "by recurrent" in text
    assert "1 kernel" in text
