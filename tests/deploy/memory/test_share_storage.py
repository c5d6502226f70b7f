"""Intermediate tensors in fewer bytes of storage: assignments before and after, and results."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relax_modules import typed_module
from tvm import ir, relax, te, tirx

from tvm_fusion.deploy.build.lower import LowerToVM
from tvm_fusion.deploy.memory.share_storage import ShareStorage

CPU = tvm.target.Target("llvm")


def sum_into(builder, size, *tensors):
    """Emit the sum of tensors of any sizes, each repeated or cut to one size."""

    def element(*args):
        def value(i):
            parts = [a[i % a.shape[0]] for a in args]
            return sum(parts[1:], parts[0]) + tirx.const(1, "float32")

        return te.compute((size,), value)

    return builder.emit_te(element, *tensors)


def numpy_sum(size, *arrays):
    return sum(np.resize(a, size) for a in arrays) + 1


def module(size, body):
    """Make a function of one tensor; ``body(builder, x)`` emits its result."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((size,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(body(builder, x))
        builder.emit_func_output(y)
    return builder.get()


def planned(mod, target=CPU, function="main"):
    """Plan memory as LowerToVM does, and list the bytes of the storages before and after."""
    steps = relax.transform
    for one in (steps.ToNonDataflow(), steps.RemovePurityChecking(), steps.CallTIRRewrite()):
        mod = one(mod)
    before = steps.StaticPlanBlockMemory()(mod)
    with target:
        after = ShareStorage()(before)
    return before, after, storages(before[function]), storages(after[function])


def storages(func):
    calls = []
    tvm_ffi.structural_walk(func.body, (ir.Call, calls.append))
    found = [c for c in calls if getattr(c.op, "name", "") == "relax.memory.alloc_storage"]
    sizes = [c.args[0].values[0] for c in found]
    return sorted(int(s) for s in sizes if isinstance(s, tirx.IntImm))


def run(mod, x):
    with CPU:
        built = tvm.compile(LowerToVM()(mod), CPU, relax_pipeline=None)
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def check(mod, x, expected):
    np.testing.assert_allclose(run(mod, x), expected, rtol=1e-6)


def residual(builder, x):
    a = sum_into(builder, 64, x)
    b = sum_into(builder, 64, a)  # a is dead behind it
    small = sum_into(builder, 8, b)
    c = sum_into(builder, 64, b, small)
    return sum_into(builder, 64, c)


def numpy_residual(x):
    b = numpy_sum(64, numpy_sum(64, x))
    return numpy_sum(64, numpy_sum(64, b, numpy_sum(8, b)))


def test_a_small_tensor_does_not_take_a_large_storage():
    mod = module(64, residual)
    _, _, before, after = planned(mod)
    assert before == [256, 256, 256]  # fails when TVM plans by size
    assert after == [32, 256, 256]
    x = np.random.default_rng().standard_normal(64).astype("float32")
    check(mod, x, numpy_residual(x))


def test_nothing_changes_without_a_gain():
    def chain(builder, x):
        for _ in range(5):
            x = sum_into(builder, 64, x)
        return x

    before, after, *_ = planned(module(64, chain))
    assert after["main"].same_as(before["main"])


def test_other_targets_keep_their_plan():
    before, after, *_ = planned(module(64, residual), tvm.target.Target("cuda"))
    assert after["main"].same_as(before["main"])


def test_a_view_keeps_its_tensor():
    """b is read through a view behind the kernels that would overwrite it."""

    def body(builder, x):
        a = sum_into(builder, 64, x)
        b = sum_into(builder, 64, a)
        view = builder.emit(relax.op.reshape(b, (8, 8)))
        small = sum_into(builder, 8, a)
        c = sum_into(builder, 64, small)
        d = sum_into(builder, 64, c, small)
        flat = builder.emit(relax.op.reshape(view, (64,)))
        return sum_into(builder, 64, d, flat)

    mod = module(64, body)
    x = np.random.default_rng().standard_normal(64).astype("float32")
    a = numpy_sum(64, x)
    b, small = numpy_sum(64, a), numpy_sum(8, a)
    c = numpy_sum(64, small)
    check(mod, x, numpy_sum(64, numpy_sum(64, c, small), b))


def test_symbolic_shapes_keep_their_plan():
    x = relax.TensorType((tirx.Var("n", "int64"),), "float32")
    exp = relax.op.exp
    mod = typed_module(lambda emit, x: exp(emit(exp(emit(exp(x))))), x)
    mod = relax.transform.LegalizeOps()(mod)
    before, after, *_ = planned(mod)
    assert after["main"].same_as(before["main"])


@st.composite
def programs(draw):
    """Steps: the size of a tensor, and which earlier ones it sums."""
    steps = []
    for number in range(draw(st.integers(3, 9))):
        sources = draw(st.lists(st.integers(0, number), min_size=1, max_size=3))
        steps.append((draw(st.sampled_from([3, 8, 33, 64])), tuple(sources)))
    return steps


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_drawn_programs(steps):
    """Results are those of numpy, and storages take no more bytes than TVM's."""

    def body(builder, x):
        values = [x]
        for size, sources in steps:
            values.append(sum_into(builder, size, *(values[s] for s in sources)))
        return values[-1]

    mod = module(37, body)
    _, _, before, after = planned(mod)
    assert sum(after) <= sum(before)
    x = np.random.default_rng().standard_normal(37).astype("float32")
    values = [x]
    for size, sources in steps:
        values.append(numpy_sum(size, *(values[s] for s in sources)))
    np.testing.assert_allclose(run(mod, x), values[-1], rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_bytes_of_other_types(dtype):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for size in (64, 64, 8):
                last = y
                y = builder.emit_te(lambda t, n=size: te.compute((n,), lambda i: t[i]), y)
            y = builder.emit_te(lambda s, t: te.compute((64,), lambda i: s[i] + t[i % 8]), last, y)
            y = builder.emit_output(builder.emit_te(lambda t: te.compute((64,), lambda i: t[i]), y))
        builder.emit_func_output(y)
    *_, after = planned(builder.get())
    bits = tvm.DataType(dtype).bits
    assert after == [bits, 8 * bits, 8 * bits]
