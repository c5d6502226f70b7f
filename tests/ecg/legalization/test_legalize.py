"""Operators become PrimFuncs that carry their records; kernels stay kernels."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx
from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.ecg.record import record_of


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def legalize(target, shape, *operators):
    x = relax.Var("x", relax.TensorType(shape, "float32"))

    def result(emit, *_):
        value = x
        for operator in operators:
            value = emit(operator(value))
        return value

    with target:
        return transform.Legalize()(main_module([x], result))


def test_nothing_but_kernels_is_left(target):
    mod = legalize(target, (5, 7), relax.op.exp, lambda x: relax.op.topk(x, 2)[0])
    assert "R.exp" not in mod["main"].script()
    assert "R.topk" not in mod["main"].script()


def test_nothing_is_computed_of_which_only_the_shape_is_read(target):
    mod = legalize(target, (5, 7), relax.op.exp, relax.op.ones_like)
    (kernel,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    assert record_of(kernel).name == "relax.ones_like"
    assert "call_tir(exp" not in mod["main"].script()


def test_hints_for_layouts_go(target):
    """They name a buffer inside, which a scheduled kernel does not declare."""
    mod = legalize(target, (2, 7, 3, 8), lambda x: relax.op.nn.attention(x, x, x))
    assert "layout_free" not in mod.script()


def test_scheduled_functions_stay_as_they_are(target):
    mod = legalize(target, (5, 7), relax.op.exp)
    with target:
        scheduled = transform.ScheduleKernels()(mod)
        tvm.ir.assert_structural_equal(transform.Legalize()(scheduled), scheduled)


def tensor(name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def records(mod):
    return sorted(
        record_of(func).name for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)
    )


@pytest.mark.parametrize("rows", [5, tirx.Var("n", "int64")])
def test_equal_operators_share_a_function(target, rows):
    def body(emit, x, b, c):
        for bias in (b, c, b):
            x = emit(relax.op.nn.relu(emit(relax.op.add(x, bias))))
        return relax.op.add(x, x)

    params = [tensor("x", (rows, 7)), tensor("b", (7,)), tensor("c", (7,))]
    with target:
        mod = transform.Legalize()(main_module(params, body))
    assert records(mod) == ["relax.add", "relax.add", "relax.nn.relu"]
    relax.analysis.well_formed(mod)
    calls = [b.value for b in mod["main"].body.blocks[0].bindings]
    assert [call.args[0].name_hint for call in calls] == ["add", "relu"] * 3 + ["add1"]
    # Each call keeps its own operands.
    assert [call.args[1].fields[1].name for call in calls[:6:2]] == ["b", "c", "b"]


def test_same_shapes_and_other_attributes(target):
    def body(emit, x):
        first = emit(relax.op.nn.softmax(x, 0))
        return relax.op.nn.softmax(first, 1)

    with target:
        mod = transform.Legalize()(main_module([tensor("x", (5, 5))], body))
    axes = {
        record_of(f).attrs["axis"] for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)
    }
    assert axes == {0, 1}


def test_symbols_of_the_same_name_are_not_mixed_up(target):
    def body(emit, x, y):
        first = emit(relax.op.exp(x))
        return relax.Tuple([first, emit(relax.op.exp(y))])

    n, other = tirx.Var("n", "int64"), tirx.Var("n", "int64")
    with target:
        mod = transform.Legalize()(main_module([tensor("x", (n,)), tensor("y", (other,))], body))
    relax.analysis.well_formed(mod)
    first, second = mod["main"].ret_ty.fields
    assert first.shape[0].same_as(n)
    assert second.shape[0].same_as(other)
    assert records(mod) == ["relax.exp"]


@pytest.mark.parametrize("rows", [5, tirx.Var("n", "int64")])
def test_one_pass_gives_equal_operators_of_two_modules_one_function(target, rows):
    def body(emit, x):
        half = emit(relax.op.multiply(x, relax.const(0.5, "float32")))
        return relax.op.strided_slice(half, [1], [0], [3])

    def functions(legalize):
        mod = legalize(main_module([tensor("x", (rows, 7))], body))
        return {g.name_hint: f for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}

    legalize = transform.Legalize()
    with target:
        first, second, apart = (functions(p) for p in (legalize, legalize, transform.Legalize()))
    assert set(first) == {"multiply", "strided_slice"}
    assert all(first[name].same_as(second[name]) for name in first)
    assert not any(first[name].same_as(apart[name]) for name in first)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tuples_are_taken_apart(target, dtype):
    pair = relax.TupleType([relax.TensorType((3, 7), dtype), relax.TensorType((7, 2), dtype)])
    with target:
        mod = main_module([relax.Var("pair", pair)], lambda _, p: relax.op.einsum(p, "ij,jk->ik"))
        mod = transform.Legalize()(mod)
    relax.analysis.well_formed(mod)
    assert records(mod) == ["relax.einsum"]


def test_half_constants_stay_half(target):
    weight = relax.const(np.ones((7, 3), "float16"))
    with target:
        mod = main_module([tensor("x", (5, 7), "float16")], lambda _, x: relax.op.matmul(x, weight))
        mod = transform.Legalize()(mod)
    (call,) = [b.value for b in mod["main"].body.blocks[0].bindings]
    assert call.args[1].fields[1].same_as(weight)
    assert [str(p.ty.dtype) for p in mod["matmul"].params] == ["float16"] * 3


def test_padding_stays_half(target):
    params = [tensor("x", (1, 3, 9, 9), "float16"), tensor("w", (4, 3, 3, 3), "float16")]
    with target:
        mod = main_module(params, lambda _, x, w: relax.op.nn.conv2d(x, w, padding=1))
        func = transform.Legalize()(mod)["conv2d"]
    types = {b.name: str(b.ty.dtype) for b in func.body.block.alloc_buffers}
    assert types == {"pad_temp": "float16", "conv2d_nchw_wide": "float32"}


@pytest.mark.parametrize(
    ("cpu", "dtype", "accumulator"),
    [
        ("x86-64-v3", "float16", "float32"),
        ("x86-64-v4", "float16", "float32"),
        ("x86-64-v4", "bfloat16", "float32"),
        ("sapphirerapids", "bfloat16", "float32"),
        ("sapphirerapids", "float16", None),  # has arithmetic of float16
    ],
)
def test_cpus_accumulate_maxima_in_a_type_that_they_compute(cpu, dtype, accumulator):
    x = tensor("x", (1, 3, 9, 9), dtype)
    with parse(f"cpu:{cpu}").tvm_target():
        mod = main_module([x], lambda _, x: relax.op.nn.max_pool2d(x, (3, 3)))
        func = transform.Legalize()(mod)["max_pool2d"]
    types = {b.name: str(b.ty.dtype) for b in func.body.block.alloc_buffers}
    assert types.get("pool_max_wide") == accumulator


def test_wide_results_of_half_operands_are_stocks(target):
    params = [tensor("x", (5, 7), "float16"), tensor("w", (7, 3), "float16")]
    mod = main_module(params, lambda _, x, w: relax.op.matmul(x, w, out_dtype="float32"))
    with target:
        ours, stock = transform.Legalize()(mod), relax.transform.LegalizeOps()(mod)
    tvm.ir.assert_structural_equal(ours["matmul"].without_attr("tvm_fusion.op"), stock["matmul"])


def test_float32_is_stocks(target):
    mod = main_module([tensor("x", (5, 7))], lambda _, x: relax.op.nn.softmax(x, 0))
    with target:
        ours, stock = transform.Legalize()(mod), relax.transform.LegalizeOps()(mod)
    tvm.ir.assert_structural_equal(ours["softmax"].without_attr("tvm_fusion.op"), stock["softmax"])
    tvm.ir.assert_structural_equal(ours["main"].ret_ty, stock["main"].ret_ty)


def test_scans_of_half_types_are_recorded_as_a_fallback(target):
    mod = main_module([tensor("x", (5, 7), "bfloat16")], lambda _, x: relax.op.cumprod(x, 0))
    with target, recording() as decisions:
        mod = transform.Legalize()(mod)
    assert records(mod) == ["relax.astype", "relax.astype", "relax.cumprod"]
    assert [(d.producer, d.code) for d in decisions] == [("relax.cumprod", "converted_around")]


@pytest.mark.parametrize("device", ["cpu", "cuda:sm_90a", "rocm:gfx942"])
def test_running_sums_along_rows_are_one_function_that_is_not_scheduled(device):
    mod = main_module([tensor("x", (5, 7), "bfloat16")], lambda _, x: relax.op.cumsum(x, 1))
    with parse(device).tvm_target():
        mod = transform.Legalize()(mod)
    assert records(mod) == ["relax.cumsum"]
    assert "tirx.is_scheduled" not in mod["cumsum"].attrs
    assert [str(p.dtype) for p in mod["cumsum"].params] == ["bfloat16", "bfloat16"]


def test_scans_on_a_gpu():
    mod = main_module(
        [tensor("x", (5, tirx.Var("n", "int64")))], lambda _, x: relax.op.cumsum(x, 1)
    )
    with parse("cuda:sm_90a").tvm_target():
        mod = transform.Legalize()(mod)
    relax.analysis.well_formed(mod)
    assert records(mod) == ["relax.cumsum"]


def test_what_tvm_refuses_stays(target):
    params = [tensor("x", (1, 3, 9, 9)), tensor("w", (4, 3, 3, 3))]
    mod = main_module(params, lambda _, x, w: relax.op.nn.conv2d(x, w, out_layout="NHWC"))
    with target:
        assert "R.nn.conv2d" in transform.Legalize()(mod)["main"].script()


def test_shapes_known_at_run_time_only(target):
    """A legalization of several steps: the slice has the record, its shape function has none."""
    ints = [tensor(name, (2,), "int64") for name in ("begin", "end", "strides")]
    params = [tensor("x", (9, 7)), *ints]
    with target:
        mod = main_module(params, lambda _, x, b, e, s: relax.op.dynamic_strided_slice(x, b, e, s))
        mod = transform.Legalize()(mod)
    found = [record_of(f) for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert [r.name for r in found if r is not None] == ["relax.dynamic_strided_slice"]
    assert len(found) == 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_and_quotients_with_the_constant_zero(target, dtype):
    """TVM folds them to 0 where they are NaN, and refuses to divide by a literal zero."""
    x = np.array([2, -3, np.nan, np.inf, 0], dtype)
    zero = np.zeros((), dtype)

    def body(emit, x):
        constant = relax.const(zero)
        results = [relax.op.multiply(x, constant), relax.op.multiply(constant, x)]
        results += [relax.op.divide(x, constant), relax.op.divide(constant, x)]
        results += [relax.op.floor_mod(x, constant)]
        return relax.Tuple([emit(result) for result in results])

    # Without laws, of which some hold for finite numbers only.
    stages = (transform.Legalize, transform.FuseOperators, transform.ScheduleKernels)
    with target:
        mod = Sequential([stage() for stage in (*stages, transform.LowerToVM)])(
            main_module([tensor("x", x.shape, dtype)], body)
        )
        executable = tvm.compile(
            mod, target, relax_pipeline=Sequential([]), tir_pipeline="tvm_fusion"
        )
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    with np.errstate(all="ignore"):
        expected = [x * zero, zero * x, x / zero, zero / x, np.mod(x, zero)]
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), right)
