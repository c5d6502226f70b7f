"""Small products of different operands in one launch, on GPUs."""

import numpy as np
import pytest
from group_kernels import CUDA, arrays, check, group, kernel, run, shared_bytes, tensor
from nvcc import machine_code, needs_nvcc
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import ir, relax, tirx

from tests.schedule.contraction.gemm_graphs import with_epilogue
from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.device import parse
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.schedule.contraction.gpu.grouped_gemm_template import GpuGroupedGemm
from tvm_fusion.schedule.contraction.mma import grouped_choice as grouped_gemm_choice

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
TEMPLATE = GpuGroupedGemm()
AMPERE = parse("cuda:sm_80")
# Of 3xTF32, in units of float32: x = hi + lo with lo < 2**-11 x, each rounded to 2**-22 x; lo * lo
# is left out. 3 * 2**-22 of a term, and a rounding where the sums meet.
SPLIT_ROUNDINGS = 3 * 4 + 1


def operands(*shapes, dtype="float16"):
    """Pairs of matrices of M, K and N."""
    found = []
    for number, (m, k, n) in enumerate(shapes):
        found.append(tensor(f"a{number}", m, k, dtype=dtype))
        found.append(tensor(f"b{number}", k, n, dtype=dtype))
    return found


def products(emit, *given):
    """Multiply pairs of operands."""
    pairs = zip(given[::2], given[1::2], strict=True)
    return [op.matmul(a, b, "float32") for a, b in pairs]


def claimed(params, body, spec=CUDA):
    return TEMPLATE.claim(group(params, body, spec), spec.device)


def launches(params, body):
    """Count the kernels that a planned graph calls."""
    target = CUDA.tvm_target()
    with target:
        lowered = relax_pipeline(lower=False)(main_module(params, body))
    bindings = [b for part in lowered["main"].body.blocks for b in part.bindings]
    calls = [b.value for b in bindings if isinstance(b.value, relax.Call)]
    return sum(call.op.name == "relax.call_tir" for call in calls if isinstance(call.op, ir.Op))


SHAPES = {
    "odd": [(33, 65, 48), (17, 33, 65)],
    "aligned": [(40, 64, 72), (24, 48, 40), (64, 32, 16)],
    "five": [(33, 20, 31), (16, 64, 64), (9, 17, 8), (50, 33, 21), (70, 16, 10)],
    "long": [(40, 512, 24), (20, 384, 56)],
}


CASES = [(name, dtype, CUDA) for name in SHAPES for dtype in ("float16", "float32")]
CASES += [("five", "bfloat16", CUDA), ("long", "float16", AMPERE), ("odd", "float32", AMPERE)]
CASES += [("five", "float16", parse("rocm:gfx942")), ("five", "bfloat16", parse("rocm:gfx1100"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "spec"), CASES, ids=[f"{n}-{d}-{s.text}" for n, d, s in CASES]
)
def test_computes_products_of_other_shapes(name, dtype, spec):
    params = operands(*SHAPES[name], dtype=dtype)
    members = group(params, products, spec)
    claim, func = kernel(TEMPLATE, members, spec)
    assert claim.shared_bytes == shared_bytes(func)
    given = arrays(params, int(np.random.default_rng().integers(1 << 30)))
    found = run(func, members, given, kernels=1)
    for number, result in enumerate(found):
        a, b = (given[f"{side}{number}"].astype("float64") for side in "ab")
        terms = a.shape[-1] + (SPLIT_ROUNDINGS if dtype == "float32" else 0)
        assert_sums_close(result, a @ b, np.abs(a) @ np.abs(b), terms)


@pytest.mark.slow
def test_each_has_its_epilogue():
    """Bias, ReLU and a residual; a permutation; an activation of an operand; different types."""
    first, body, reference = with_epilogue(41, 50, 67)
    second = operands((37, 24, 30), (20, 40, 26))
    third = operands((35, 18, 22), dtype="float32")
    third = [tensor(f"c{n}", *x.ty.shape, dtype="float32") for n, x in enumerate(third)]

    def bodies(emit, *given):
        x, a, b, c, d, e, f = given[:5], *given[5:]
        return [
            *body(emit, *x[:4]),
            op.permute_dims(emit(op.tanh(emit(op.matmul(x[4], a, "float32"))))),
            op.matmul(emit(op.nn.relu(b)), c, "float32"),
            op.multiply(emit(op.matmul(d, e, "float32")), f),
        ]

    scale = tensor("s", 22)

    def references(*given):
        x, a, b, c, d, e, f = given[:5], *given[5:]
        return [*reference(*x[:4]), np.tanh(x[4] @ a).T, np.maximum(b, 0) @ c, d @ e * f]

    claim, _ = check(TEMPLATE, [*first, *second, *third, scale], bodies, references, CUDA, 2e-3)
    assert len(claim.details.config.tiles) == 4


def test_blocks_have_one_number_of_threads_and_ranks():
    found = claimed(operands((256, 512, 512), (64, 2048, 256), (512, 256, 128)), products)
    config = found.details.config
    assert len({tile.threads for tile in config.tiles}) == 1
    assert len({tile.tile.split_k for tile in config.tiles}) == 1
    assert found.parallelism == sum(int(tile.blocks) for tile in config.tiles)
    assert found.shared_bytes == max(tile.shared_bytes for tile in config.tiles)


def test_batches():
    params = [tensor("x", 3, 20, 24, dtype="float16"), tensor("w", 3, 24, 33, dtype="float16")]
    params += operands((19, 32, 40))

    def body(emit, x, w, a, b):
        return [op.matmul(x, w, "float32"), op.matmul(a, b, "float32")]

    check(TEMPLATE, params, body, lambda x, w, a, b: [x @ w, a @ b], CUDA)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("split_k", [1, 4])
def test_concatenated_products_write_in_place(axis, split_k, monkeypatch):
    """Beside a tensor that no product makes, whose blocks fill clusters, too."""
    monkeypatch.setattr(grouped_gemm_choice, "SPLIT_K", (split_k,))
    uncached = grouped_gemm_choice._grouped_shapes.__wrapped__
    monkeypatch.setattr(grouped_gemm_choice, "_grouped_shapes", uncached)
    rows, columns = ((20, 31, 43), (27, 27, 27)) if axis == 0 else ((29, 29, 29), (20, 33, 40))
    params = operands((rows[0], 640, columns[0]), (rows[1], 576, columns[1]))
    params.append(tensor("c", rows[2], columns[2]))

    def body(emit, a, b, c, d, other):
        one, two = (emit(op.matmul(x, y, "float32")) for x, y in ((a, b), (c, d)))
        return op.nn.relu(emit(op.concat([one, other, two], axis)))

    def reference(a, b, c, d, other):
        return [np.maximum(np.concatenate([a @ b, other, c @ d], axis), 0)]

    claim, _ = check(TEMPLATE, params, body, reference, CUDA)
    assert {tile.tile.split_k for tile in claim.details.config.tiles} == {split_k}
    assert launches(params, body) == 1


def test_one_kernel_is_planned():
    """Products that read nothing of each other, and those of one operand."""
    assert launches(operands((128, 768, 768), (33, 65, 48)), products) == 1
    x, *rest = operands((77, 768, 320), (77, 768, 640))
    params = [x, rest[0], rest[2]]

    def body(emit, x, a, b):
        return [op.matmul(x, a, "float32"), op.nn.relu(emit(op.matmul(x, b, "float32")))]

    assert launches(params, body) == 1


def test_products_that_keep_the_device_busy_have_launches_each():
    for shape in ((2048, 2048, 2048), (512, 1024, 1024)):
        refusal = claimed(operands(shape, shape), products)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "large_products"
        assert launches(operands(shape, shape), products) == 2


def test_no_more_products_than_a_kernel_takes():
    """What is left over begins another group."""
    shapes = [(33, 65, 48)] * 11
    assert isinstance(claimed(operands(*shapes), products), Refusal)
    assert launches(operands(*shapes), products) == 2


def test_what_depends_on_each_other_is_no_group():
    def chain(emit, a, b, c):
        return op.matmul(emit(op.matmul(a, b)), c)

    params = [tensor(name, 20, 20, dtype="float16") for name in "abc"]
    assert claimed(params, chain).code == "products_in_a_row"


def test_symbolic_rows_and_other_devices():
    n = tirx.Var("n", "int64")
    params = operands((n, 64, 64), (32, 64, 64))
    assert isinstance(claimed(params, products), Refusal)
    shapes = (33, 65, 48), (17, 33, 65)
    for spec, dtype in (
        ("cuda:sm_75", "bfloat16"),
        ("rocm:gfx1100", "float32"),
        ("cpu", "float16"),
    ):
        params = operands(*shapes, dtype=dtype)
        assert isinstance(claimed(params, products, parse(spec)), Refusal)
    older = claimed(operands(*shapes), products, parse("cuda:sm_75"))
    assert not any(tile.problem.is_async for tile in older.details.config.tiles)


@pytest.mark.cuda_toolchain
@needs_nvcc
@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        ([(128, 768, 768)] * 5, "float16"),
        ([(256, 512, 512), (64, 2048, 256), (512, 256, 128)], "float16"),
        ([(33, 65, 48), (17, 33, 65)], "float32"),
    ],
)
def test_nothing_is_spilled(shapes, dtype):
    """Registers of a kernel are those of the product that takes most."""
    claim, func = kernel(TEMPLATE, group(operands(*shapes, dtype=dtype), products, CUDA), CUDA)
    made = machine_code({"main": func})["main"]
    assert made.stack_bytes == made.spilled_bytes == 0
    assert isinstance(claim, Claim)
