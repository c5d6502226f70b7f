"""Dot-product instructions (VNNI, BF16): exact results, and the instruction in machine code."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import tvm
from group_kernels import CPU, check, group, kernel, tensor
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
m, n, k = (tirx.Var(name, "int64") for name in "mnk")
LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
PAIRS = list(itertools.product(LIMITS, repeat=2))


def matmul(emit, x, w):
    return op.matmul(x, w, out_dtype="int32")


def exact(x, w):
    return x.astype("int32") @ w.astype("int32")


def bytes_of(rng, dtype, shape):
    """Half of the elements are the smallest or the largest, which nothing may saturate."""
    low, high = LIMITS[dtype]
    drawn = rng.integers(low, high, shape, endpoint=True)
    extreme = rng.choice([low, high], shape)
    return np.where(rng.random(shape) < 0.5, drawn, extreme).astype(dtype)


def product(x, w, is_constant, body=matmul):
    """Compile and run a product whose left operand has a symbolic number of rows."""
    left = tensor("x", m, *x[0].shape[1:], dtype=str(x[0].dtype))
    right = relax.const(w) if is_constant else tensor("w", *w.shape, dtype=str(w.dtype))

    def result(emit, *_):
        return body(emit, left, right)

    built = tvm.compile(
        main_module([left] if is_constant else [left, right], result),
        CPU.tvm_target(),
        relax_pipeline="tvm_fusion",
        tir_pipeline="tvm_fusion",
    )
    run = relax.VirtualMachine(built, tvm.cpu())["main"]
    rest = [] if is_constant else [tvm.runtime.tensor(w)]
    return [run(tvm.runtime.tensor(a), *rest).numpy() for a in x]


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "input"])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_exact_for_all_bytes(left, right, is_constant):
    """Any number of rows; three terms and columns fewer than whole groups and vectors."""
    rng = np.random.default_rng(0)
    x = [bytes_of(rng, left, (rows, 83)) for rows in (1, 7, 150)]
    w = bytes_of(rng, right, (83, 45))
    for a, got in zip(x, product(x, w, is_constant), strict=True):
        np.testing.assert_array_equal(got, exact(a, w))


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_largest_sums(left, right):
    """Every term has the largest magnitude."""
    for a, b in itertools.product(LIMITS[left], LIMITS[right]):
        x, w = np.full((2, 4100), a, left), np.full((4100, 16), b, right)
        (got,) = product([x], w, True)
        np.testing.assert_array_equal(got, exact(x, w))


SHAPES = {
    "passes over the terms": ((23, 9000), (9000, 70)),
    "a batch": ((3, 21, 40), (3, 40, 35)),
    "rows of two axes": ((2, 13, 42), (42, 50)),
    "more rows than a block": ((401, 24), (24, 40)),
    "fewer terms than a group": ((5, 3), (3, 40)),
    "symbolic columns": ((19, 50), (50, n)),
    "symbolic terms": ((19, k), (k, 50)),
    "all symbolic": ((m, k), (k, n)),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case):
    x, w = SHAPES[case]
    params = [tensor("x", *x, dtype="int8"), tensor("w", *w, dtype="int8")]
    claim, _ = check(CpuContraction(), params, matmul, lambda x, w: [exact(x, w)], CPU, 0)
    assert claim.launches == 1


def test_casts_before_and_scales_after():
    """As importers write it: wider operands, and a result in float32 for each column."""
    params = [
        tensor("x", 31, 40, dtype="uint8"),
        tensor("w", 40, 77, dtype="int8"),
        tensor("scale", 77),
    ]

    def body(emit, x, w, scale):
        x, w = (emit(op.astype(y, "int32")) for y in (x, w))
        total = emit(op.astype(emit(op.matmul(x, w)), "float32"))
        return op.nn.relu(emit(op.multiply(total, scale)))

    def reference(x, w, scale):
        return [np.maximum(exact(x, w) * scale, 0)]

    check(CpuContraction(), params, body, reference, CPU)
    members = group(params, body, VNNI)
    assert "vpdpbusd" in assembly(kernel(CpuContraction(), members, VNNI)[1], VNNI)


def test_a_cast_that_changes_values_stays():
    """int8 seen as uint8 is another number: only casts that keep values are taken off."""
    params = [tensor("x", 31, 40, dtype="int8"), tensor("w", 40, 32, dtype="int8")]

    def body(emit, x, w):
        x = emit(op.astype(emit(op.astype(x, "uint8")), "int32"))
        return op.matmul(x, emit(op.astype(w, "int32")))

    def reference(x, w):
        return [exact(x.astype("uint8"), w)]

    check(CpuContraction(), params, body, reference, CPU, 0)


VNNI = parse("cpu:cascadelake")
INSTRUCTIONS = {
    "cpu:cascadelake": r"vpdpbusd\s+.*%zmm",
    "cpu:alderlake": r"vpdpbusd\s+.*%ymm",
    "cpu:skylake-avx512": None,
    "cpu:haswell": None,
    "cpu:neoverse-n1": None,
}


def assembly(func, spec):
    func = func.with_attr("global_symbol", "main")
    built = tvm.tirx.build(tvm.IRModule({"main": func}), spec.tvm_target(), pipeline="tvm_fusion")
    return built.inspect_source("asm")


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instructions(name):
    """The innermost loop stores nothing; targets without the instruction do without."""
    spec = parse(name)
    params = [tensor("x", 60, 64, dtype="uint8"), tensor("w", 64, 192, dtype="int8")]
    text = assembly(kernel(CpuContraction(), group(params, matmul, spec), spec)[1], spec)
    if INSTRUCTIONS[name] is None:
        assert "vpdpbusd" not in text
        return
    pattern = re.compile(INSTRUCTIONS[name])
    blocks = re.split(r"\n\.L\w+:", text)
    inner = max(blocks, key=lambda block: len(pattern.findall(block)))
    inner = re.split(r"\n\tj", inner)[0]
    assert len(pattern.findall(inner)) >= 12
    assert not re.search(r"\tvmov\w+\s+%\w+, .*\)", inner)


# bfloat16 ----------------------------------------------------------------------------------------


def halves(emit, x, w):
    return op.matmul(x, w, out_dtype="float32")


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "input"])
@pytest.mark.parametrize("terms", [64, 83])
def test_pairs_of_bfloat16(terms, is_constant):
    """Sums are float32, as exact as those of single products."""
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((rows, terms)).astype(ml_dtypes.bfloat16) for rows in (1, 7, 150)]
    w = rng.standard_normal((terms, 45)).astype(ml_dtypes.bfloat16)
    for a, got in zip(x, product(x, w, is_constant, halves), strict=True):
        expected = a.astype("float64") @ w.astype("float64")
        assert got.dtype == "float32"
        assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


def pairs(name):
    spec = parse(name)
    params = [tensor("x", 60, 64, dtype="bfloat16"), tensor("w", 64, 192, dtype="bfloat16")]
    func = kernel(CpuContraction(), group(params, halves, spec), spec)[1]
    return func.with_attr("global_symbol", "main"), spec


@pytest.mark.parametrize("name", ["cpu:znver4", "cpu:znver5"])
def test_instruction_for_pairs(name):
    """The innermost loop stores nothing, and calls nothing."""
    text = assembly(*pairs(name))
    blocks = re.split(r"\n\.L\w+:", text)
    inner = max(blocks, key=lambda block: block.count("vdpbf16ps"))
    inner = re.split(r"\n\tj", inner)[0]
    assert inner.count("vdpbf16ps") >= 12
    assert not re.search(r"\tvmov\w+\s+%\w+, .*\)|\tcall", inner)


@pytest.mark.parametrize("name", ["cpu:cooperlake", "cpu:haswell", "cpu:neoverse-n1"])
def test_pairs_without_the_instruction(name):
    text = assembly(*pairs(name))
    assert "vdpbf16ps" not in text
    assert re.search(r"vfmadd|fmla", text)


def test_kernels_of_one_module_share_the_function_for_pairs():
    func, spec = pairs("cpu:cooperlake")
    functions = {name: func.with_attr("global_symbol", name) for name in ("first", "second")}
    built = tvm.tirx.build(tvm.IRModule(functions), spec.tvm_target(), pipeline="tvm_fusion")
    assert "call <16 x float> @tvm_fusion_dot" not in built.inspect_source("ll")
