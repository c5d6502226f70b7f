"""Functions whose launches become one CUDA graph, run on the CPU with graphs that are played."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from cpu_programs import unbound
from emulator.launch import launch
from tvm import relax, te, tirx
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

from tvm_fusion.core.decisions import recording
from tvm_fusion.deploy.build.lower import LowerToVM
from tvm_fusion.deploy.count import count
from tvm_fusion.deploy.cuda_graph import capture
from tvm_fusion.deploy.cuda_graph.capture import CAPTURED, CaptureLaunches
from tvm_fusion.deploy.cuda_graph.copies import copies
from tvm_fusion.deploy.cuda_graph.static_inputs import STATIC_INPUTS
from tvm_fusion.deploy.cuda_graph.weights_tuple import MAY_PASS_TUPLE, passes_tuple

GRAPH = PassContext(config={"relax.backend.use_cuda_graph": True})
ROWS, COLUMNS = 3, 127
SHAPE = (ROWS, COLUMNS)


def tensor(name, shape=SHAPE):
    return relax.Var(name, relax.TensorType(shape, "float32"))


def module(body, inputs, weights=(), static=()):
    """A function of ``call_tir`` only: ``body(add, *params)``, where ``add`` is a kernel."""
    builder = relax.BlockBuilder()
    params = [tensor(name) for name in (*inputs, *weights)]

    def add(a, b):
        def compute(x, y):
            return te.compute(SHAPE, lambda i, j: 2 * x[i, j] + y[i, j], "sum")

        return builder.emit_te(compute, a, b, primfunc_name_hint="add")

    def accumulate(into, a):
        gvar = builder.add_func(_accumulate, "accumulate")
        return builder.emit(relax.op.call_tir_inplace(gvar, (into, a), [0], into.ty))

    add.view = lambda a, *shape: builder.emit(relax.op.reshape(a, shape))
    add.accumulate = accumulate
    with builder.function("main", params, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            result = body(add, *params)
            whole = relax.Tuple(list(result)) if isinstance(result, tuple) else result
            output = builder.emit_output(whole)
        builder.emit_func_output(output)
    mod = builder.get()
    if static:
        mod.update_func(
            mod.get_global_var("main"), mod["main"].with_attr(STATIC_INPUTS, list(static))
        )
    return mod


def residual(add, x, y, w):
    a = add(x, w)
    b = add(a, y)
    c = add(b, x)
    d = add(c, b)
    return add(d, w)


def two_results(add, x, y, w):
    a = add(x, w)
    b = add(a, y)
    c = add(b, x)
    d = add(c, b)
    return add(d, b), b, x


def views(add, x, y, w):
    """Kernels read an input through a view, and results are views of a kernel's and an input."""
    flat = add.view(x, ROWS * COLUMNS)
    a = add(add.view(flat, *SHAPE), w)
    b = add(a, y)
    c = add(b, a)
    return add.view(add(c, b), COLUMNS, ROWS), flat, add.view(c, ROWS * COLUMNS)


def one_view(add, x, w):
    """The only result is a view of what the last kernel writes."""
    result = add.view(x, ROWS * COLUMNS)
    for _ in range(5):
        result = add.view(add(add.view(result, *SHAPE), w), ROWS * COLUMNS)
    return result


def one_reader(add, x, w):
    """The kernel that reads the input comes late, the one that writes the result early."""
    a = add(w, w)
    b = add(a, a)
    c = add(x, w)
    d = add(b, a)
    e = add(d, c)
    return add(e, c)


def written(add, x, state, w):
    """A kernel writes over an input, which is a result as well; others read it afterwards."""
    a = add(x, w)
    state = add.accumulate(state, a)
    b = add(a, state)
    c = add(b, x)
    return add(c, b), state


@T.prim_func(private=True, s_tir=True)
def _accumulate(into: T.Buffer(SHAPE, "float32"), a: T.Buffer(SHAPE, "float32")):
    for i, j in T.grid(*SHAPE):
        with T.sblock("accumulate"):
            vi, vj = T.axis.remap("SS", [i, j])
            into[vi, vj] = into[vi, vj] + a[vi, vj]


def called(mod):
    """Names of what a function calls, in order."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, tvm.ir.Call) and "call_tir" in str(binding.value.op):
                found.append(binding.value.args[0].name_hint)
    return found


class Graphs:
    """CUDA graphs that are played: what was captured runs again over the same tensors."""

    def __init__(self):
        self.captured, self.allocated, self.played = {}, {}, 0

    def run_or_capture(self, context, function, args, entry, *key):
        name = (int(entry), *(int(i) for k in key for i in k))
        self.captured.setdefault(name, args)
        self.played += 1
        return self._invoke(context, function, *self.captured[name])

    def get_cached_alloc(self, context, function, entry):
        if int(entry) not in self.allocated:
            self.allocated[int(entry)] = self._invoke(context, function)
        return self.allocated[int(entry)]

    def _invoke(self, context, function, *args):
        return tvm_ffi.get_global_func("vm.builtin.invoke_closure")(context, function, *args)


@pytest.fixture
def graphs(monkeypatch):
    found = Graphs()
    for name in ("run_or_capture", "get_cached_alloc"):
        full = f"vm.builtin.cuda_graph.{name}"
        tvm_ffi.register_global_func(full, getattr(found, name), override=True)
    yield found
    for name in ("run_or_capture", "get_cached_alloc"):
        tvm_ffi.registry.remove_global_func(f"vm.builtin.cuda_graph.{name}")


def machine(mod):
    target = tvm.target.Target("llvm")
    mod = CaptureLaunches()(mod)
    for gvar, func in list(mod.functions.items()):
        if isinstance(func, tirx.PrimFunc):
            mod.update_func(gvar, unbound(func))
    with target, GRAPH:
        mod = LowerToVM()(mod)
    built = tvm.compile(mod, target, relax_pipeline=None, tir_pipeline="tvm_fusion")
    return relax.VirtualMachine(built, tvm.cpu())


def draw(count, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(SHAPE).astype("float32") for _ in range(count)]


def sums(a, b):
    return 2 * a.astype("float64") + b.astype("float64")


sums.view = lambda a, *shape: a.reshape(shape)
sums.accumulate = lambda into, a: into + a


def leaves(result):
    return [r.numpy() for r in result] if isinstance(result, tvm_ffi.Array) else [result.numpy()]


def several_weights(add, x, y, u, v, w):
    """Captured kernels, the first and the last read weights; one is a result itself."""
    a = add(x, u)
    b = add(a, v)
    c = add(b, u)
    d = add(c, y)
    return add(d, w), v


@pytest.mark.parametrize("static", [(), (1,)])
def test_weights_are_one_tuple_where_the_caller_knows(graphs, static):
    mod = module(several_weights, "xy", "uvw", static)
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr(MAY_PASS_TUPLE, True))
    run = machine(mod)
    weights = draw(3, 0)
    whole = tvm_ffi.convert([*map(tvm.runtime.tensor, weights)])
    y = tvm.runtime.tensor(np.empty(SHAPE, "float32"))
    for seed in range(1, 4):
        x, fresh = draw(2, seed)
        y.copyfrom(fresh)
        results = leaves(run["main"](tvm.runtime.tensor(x), y, whole))
        for got, want in zip(results, several_weights(sums, x, fresh, *weights), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    assert len(graphs.captured) == 1
    ((arguments),) = graphs.captured.values()
    assert any(isinstance(argument, tvm_ffi.Array) for argument in arguments)


def test_weights_are_parameters_where_the_caller_does_not_know():
    mod = CaptureLaunches()(module(several_weights, "xy", "uvw"))
    for knows in (False, True):
        if knows:
            mod.update_func(mod.get_global_var("main"), mod["main"].with_attr(MAY_PASS_TUPLE, True))
        with tvm.target.Target("llvm"), GRAPH:
            lowered = LowerToVM()(mod)
        assert passes_tuple(lowered, "main") == knows
        assert len(lowered["main"].params) == (3 if knows else 5)


@pytest.mark.parametrize("static", [(), (1,), (0, 1)])
@pytest.mark.parametrize("body", [residual, two_results, views])
def test_results_follow_the_inputs_of_every_call(graphs, body, static):
    run = machine(module(body, "xy", "w", static))
    (w,) = draw(1, 0)
    weight = tvm.runtime.tensor(w)
    kept = []
    for seed in range(1, 4):
        x, y = draw(2, seed)
        kept.append([tvm.runtime.tensor(a) for a in (x, y)])  # other addresses every time
        results = leaves(run["main"](*kept[-1], weight))
        expected = body(sums, x, y, w)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    assert graphs.played == 3
    assert len(graphs.captured) == (3 if static else 1)  # addresses are part of what is looked up


def test_views_need_no_copies(graphs):
    mod = module(one_view, "x", "w")
    assert not any("copy" in name for name in called(CaptureLaunches()(mod)))
    run, (w,) = machine(mod), draw(1, 0)
    results = []
    for seed in range(1, 3):
        (x,) = draw(1, seed)
        results.append(run["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)))
    for seed, result in enumerate(results, start=1):
        want = one_view(sums, draw(1, seed)[0], w)
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-3)


def test_static_inputs_that_stay_are_captured_once(graphs):
    run = machine(module(residual, "xy", "w", (1,)))
    x, y, w = map(tvm.runtime.tensor, draw(3, 0))
    for seed in range(3):
        (fresh,) = draw(1, seed)
        y.copyfrom(fresh)  # in place, as a cache is written
        (got,) = leaves(run["main"](x, y, w))
        want = residual(sums, x.numpy(), fresh, w.numpy())
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    assert len(graphs.captured) == 1


def test_what_is_written_over_an_input_stays_there(graphs):
    mod = module(written, ("x", "state"), "w", (1,))
    names = called(CaptureLaunches()(mod))
    run = machine(mod)
    (before, w), (state, weight) = draw(2, 0), map(tvm.runtime.tensor, draw(2, 0))
    for seed in range(1, 4):
        (x,) = draw(1, seed)
        result, after = run["main"](tvm.runtime.tensor(x), state, weight)
        want, before = written(sums, x, before, w)
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(state.numpy(), before, rtol=1e-5, atol=1e-3)
        assert after.same_as(state) or after.numpy().ctypes.data == state.numpy().ctypes.data
    assert len(graphs.captured) == 1
    assert names.count("accumulate") == 1
    assert sum("copy" in name for name in names) == 1  # of x, which two kernels read


def test_earlier_results_stay_as_they_are(graphs):
    run = machine(module(two_results, "xy", "w"))
    arguments = [[*map(tvm.runtime.tensor, draw(3, seed))] for seed in range(2)]
    weight = arguments[0][2]
    first = run["main"](*arguments[0][:2], weight)
    before = leaves(first)
    run["main"](*arguments[1][:2], weight)
    for old, now in zip(before, leaves(first), strict=True):
        np.testing.assert_array_equal(old, now)


def test_one_reader_is_launched_first_and_one_writer_last():
    mod = CaptureLaunches()(module(one_reader, "x", "w"))
    assert mod["main"].attrs[CAPTURED]
    names = called(mod)
    assert len(names) == 6
    assert not any("copy" in name for name in names)
    values = [b.value for b in mod["main"].body.blocks[0].bindings]
    assert values[0].args[1].fields[0].same_as(mod["main"].params[0])
    assert mod["main"].body.body.same_as(mod["main"].body.blocks[0].bindings[-1].var)


def test_several_readers_and_results_are_one_copy_each():
    names = called(CaptureLaunches()(module(two_results, "xy", "w")))
    assert [i for i, name in enumerate(names) if "copy" in name] == [0, len(names) - 1]
    assert len(names) == 5 + 2


def test_static_inputs_are_read_where_they_are():
    mod = CaptureLaunches()(module(residual, "xy", "w", (0, 1)))
    assert not any("copy" in name for name in called(mod))


def test_what_would_be_copied_for_longer_than_launches_take_stays(monkeypatch):
    mod = module(residual, "xy", "w")
    inputs = 2 * ROWS * COLUMNS * 4
    monkeypatch.setattr(capture, "BYTES_A_LAUNCH", inputs / 5)
    assert CAPTURED in CaptureLaunches()(mod)["main"].attrs
    monkeypatch.setattr(capture, "BYTES_A_LAUNCH", inputs / 5 - 1)
    with recording() as decisions:
        assert CAPTURED not in CaptureLaunches()(mod)["main"].attrs
    assert [d.code for d in decisions] == ["not_captured"]
    assert "static" in decisions[0].sentence
    static = module(residual, "xy", "w", (0,))
    assert CAPTURED in CaptureLaunches()(static)["main"].attrs


def test_few_launches_stay_as_they_are():
    mod = module(lambda add, x, y: add(add(add(x, y), y), x), "xy")
    tvm.ir.assert_structural_equal(CaptureLaunches()(mod), relax.transform.Normalize()(mod))


def test_symbolic_shapes_stay_as_they_are():
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(5):
                y = builder.emit_te(lambda a: te.compute(a.shape, lambda i: a[i] + 1), y)
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    mod = builder.get()
    assert CAPTURED not in CaptureLaunches()(mod)["main"].attrs


@pytest.mark.parametrize(
    "tensors",
    [
        [((), "float32")],
        [((1,), "int64"), ((129,), "float16")],
        [((3, 8), "float16"), ((1000,), "int32"), ((5, 2, 6), "bool"), ((7, 4), "bfloat16")],
    ],
)
def test_copies_are_exact(tensors):
    func = copies([relax.TensorType(shape, dtype) for shape, dtype in tensors])
    rng = np.random.default_rng(0)
    sources, results = [], []
    for shape, dtype in tensors:
        kind = tvm.runtime.empty(shape, dtype).numpy().dtype
        bits = rng.integers(
            0, 2 if dtype == "bool" else 256, (*shape, kind.itemsize), dtype="uint8"
        )
        sources.append(bits.view(kind).reshape(shape))
        results.append(np.zeros(shape, kind))
    launch(func, [*sources, *results], tvm.target.Target({"kind": "cuda", "arch": "sm_90"}))
    for source, result in zip(sources, results, strict=True):
        assert source.tobytes() == result.tobytes()


@pytest.mark.parametrize(("body", "copying"), [(residual, 1), (two_results, 2)])
def test_the_host_launches_three_times(body, copying):
    mod = module(body, "xy", "w")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    with target:
        mod = tvm.s_tir.dlight.ApplyDefaultSchedule(tvm.s_tir.dlight.gpu.Fallback())(mod)
    with target, GRAPH:
        lowered = LowerToVM()(mod)
    counted = count(lowered, target)
    assert counted.host_launches == 3
    assert counted.kernels == 5 + copying
