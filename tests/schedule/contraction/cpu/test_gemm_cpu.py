"""GEMM on a CPU: packed constants, passes over K, edges, symbolic extents."""

import re

import numpy as np
import pytest
import tvm
from assembly import inner_block
from group_kernels import CPU, check, group, kernel, run, tensor
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.device import parse
from tvm_fusion.device.probe import host_cpu
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
m, n, k = (tirx.Var(name, "int64") for name in "mnk")


def matmul(emit, x, w):
    return op.matmul(x, w)


def product(x, w):
    return [x @ w]


# Inputs that are not constant -------------------------------------------------------------------

SHAPES = {
    "one row": ((1, 70), (70, 45)),
    "one tile": ((5, 33), (33, 70)),
    "rows beyond the last whole block": ((100, 300), (300, 96)),
    "a last panel of one column": ((40, 64), (64, 65)),
    "many terms, in passes": ((23, 2600), (2600, 130)),
    "more rows than a block": ((301, 40), (40, 40)),
    "tasks of several parts, in passes": ((331, 1100), (1100, 200)),
    "a batch": ((3, 21, 40), (3, 40, 35)),
    "rows of two axes": ((2, 13, 40), (40, 50)),
    "symbolic rows": ((m, 50), (50, 77)),
    "symbolic columns": ((19, 50), (50, n)),
    "symbolic terms": ((19, k), (k, 50)),
    "all symbolic": ((m, k), (k, n)),
}


@pytest.mark.parametrize("case", SHAPES)
def test_products(case):
    x, w = SHAPES[case]
    claim, _ = check(CpuContraction(), [tensor("x", *x), tensor("w", *w)], matmul, product, CPU)
    assert claim.launches == 1


def test_a_product_of_empty_k_is_zero():
    members = group([tensor("x", 19, k), tensor("w", k, 50)], matmul, CPU)
    _, func = kernel(CpuContraction(), members, CPU)
    nothing = {"x": np.zeros((19, 0), "float32"), "w": np.zeros((0, 50), "float32")}
    (result,) = run(func, members, nothing, CPU)
    np.testing.assert_array_equal(result, np.zeros((19, 50)))


@pytest.mark.slow
@pytest.mark.parametrize("terms", [48, 50])
def test_k_contiguous_b_is_copied_by_cache_lines(terms):
    params = [tensor("x", 2, 37, terms), tensor("w", 2, 41, terms)]

    def body(emit, x, w):
        return op.matmul(x, emit(op.permute_dims(w, [0, 2, 1])))

    check(CpuContraction(), params, body, lambda x, w: [x @ w.transpose(0, 2, 1)], CPU)


def test_the_first_operand_may_be_b():
    """The transposed product stores rows of the other operand side by side."""
    params = [tensor("x", 33, 20), tensor("w", 20, 50)]

    def body(emit, x, w):
        return op.matmul(emit(op.permute_dims(w)), emit(op.permute_dims(x)))

    check(CpuContraction(), params, body, lambda x, w: [w.T @ x.T], CPU)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("columns", [64, 65])
def test_long_results_and_several(columns):
    params = [tensor("x", 31, 40), tensor("w", 40, columns), tensor("b", columns)]

    def body(emit, x, w, b):
        total = emit(op.add(emit(op.matmul(x, w)), b))
        return [op.tanh(emit(op.exp(emit(op.sin(total))))), total]

    def expected(x, w, b):
        total = x @ w + b
        return [total, np.tanh(np.exp(np.sin(total)))]

    check(CpuContraction(), params, body, expected, CPU)


@pytest.mark.parametrize("width", [128, 96])
def test_slices_of_the_columns(width):
    """Boundaries between panels choose once for a vector, others once for each element."""
    params = [tensor("x", 31, 40), tensor("w", 40, 3 * width)]

    def body(emit, x, w):
        parts = emit(op.split(emit(op.matmul(x, w)), 3, axis=1))
        return [emit(op.nn.relu(relax.TupleGetItem(parts, i))) for i in range(3)]

    expected = lambda x, w: np.split(np.maximum(x @ w, 0), 3, axis=1)  # noqa: E731
    check(CpuContraction(), params, body, expected, CPU)


def test_float64_has_half_as_many_lanes():
    params = [tensor("x", 31, 40, dtype="float64"), tensor("w", 40, 77, dtype="float64")]
    check(CpuContraction(), params, matmul, product, CPU, 1e-13)


def test_integers():
    params = [tensor("x", 31, 40, dtype="int8"), tensor("w", 40, 77, dtype="int8")]

    def body(emit, x, w):
        return op.matmul(x, w, out_dtype="int32")

    claim, _ = check(
        CpuContraction(),
        params,
        body,
        lambda x, w: [x.astype("int32") @ w.astype("int32")],
        CPU,
        0,
    )
    assert claim.launches == 1


# Constants ---------------------------------------------------------------------------------------


def chain(rows, *weights):
    """``tanh(x @ w)`` with constant weights, one after the other."""

    def body(emit, y):
        for w in weights:
            y = emit(op.tanh(emit(op.matmul(y, relax.const(w)))))
        return y

    return main_module([tensor("x", rows, weights[0].shape[0])], body)


def constants_of(mod):
    found = []
    main = mod["main"]
    relax.analysis.post_order_visit(
        main, lambda e: found.append(e) if isinstance(e, tvm.ir.GenericConst) else None
    )
    return found


def weight(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) / 8).astype("float32")


def planned(mod):
    return relax_pipeline(target=CPU.tvm_target(), lower=False)(mod)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("rows", [1, 7, 37])
def test_constants_are_packed_at_compile_time(rows):
    weights = [weight(450, 177), weight(177, 450, seed=1)]
    mod = chain(rows, *weights)
    kernels = [f for f in planned(mod).functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 2  # and none that packs
    assert sorted(len(c.value.shape) for c in constants_of(planned(mod))) == [3, 3]
    x = weight(rows, 450, seed=2)
    built = tvm.compile(
        mod, CPU.tvm_target(), relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    actual = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    expected = x.astype("float64")
    for w in weights:
        expected = np.tanh(expected @ w)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_a_constant_is_packed_once():
    w = weight(48, 48)
    x, constant = tensor("x", 20, 48), relax.const(w)

    def result(emit, *_):
        y = emit(op.matmul(x, constant))
        y = emit(op.matmul(emit(op.nn.softmax(y)), constant))
        return y

    found = constants_of(planned(main_module([x], result)))
    assert all(c.same_as(found[0]) for c in found)


def test_one_kernel_for_constants_of_one_shape():
    mod = planned(chain(16, weight(32, 32), weight(32, 32, seed=1), weight(32, 32, seed=2)))
    assert sum(isinstance(f, tirx.PrimFunc) for f in mod.functions.values()) == 1
    assert len({c.value.numpy().tobytes() for c in constants_of(mod)}) == 3


def test_a_weight_that_is_an_input_is_not_packed():
    members = group([tensor("x", 37, 50), tensor("w", 50, 77)], matmul)
    template = CpuContraction()
    emission = template.emit(template.claim(members, CPU.device), CPU.tvm_target())
    assert not emission.packing


INSTRUCTIONS = {  # what multiplies whole registers
    "cpu:x86-64": r"mulps\s+%xmm",
    "cpu:haswell": r"vfmadd231ps\s+.*%ymm",
    "cpu:skylake-avx512": r"vfmadd231ps\s+.*%zmm",
    "cpu:neoverse-n1": r"fmla\s+v\d+\.4s",
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_tiles_stay_in_registers(name):
    """The innermost loop loads, multiplies and adds; it stores nothing."""
    spec = parse(name)
    members = group([tensor("x", 60, 64), tensor("w", 64, 192)], matmul, spec)
    func = kernel(CpuContraction(), members, spec)[1]
    inner, count = inner_block(func, spec, INSTRUCTIONS[name])
    assert count >= 12
    assert not re.search(r"\tv?mov[au]ps\s+%\w+, .*\)|\tst[pr]\s", inner)


@pytest.mark.skipif("avx2" not in host_cpu().features, reason="this CPU has no AVX2")
def test_avx2_is_right():
    spec = parse("cpu:haswell")
    check(CpuContraction(), [tensor("x", 37, 70), tensor("w", 70, 101)], matmul, product, spec)


@pytest.mark.parametrize(("rows", "expected"), [(5, False), (60, True)])
def test_the_next_panel_of_a_constant_is_prefetched(rows, expected):
    """While several tiles keep the processor busy; a single one waits for memory anyway."""
    mod = planned(chain(rows, weight(64, 192)))
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    func = func.with_attr("global_symbol", "main")
    built = tvm.tirx.build(tvm.IRModule({"main": func}), CPU.tvm_target(), pipeline="tvm_fusion")
    assert ("llvm.prefetch" in built.inspect_source("ll")) == expected
