"""Matrix products of one left operand become one: modules before and after, numbers, kernels."""

import numpy as np
import pytest
import tvm
from group_kernels import CPU, CUDA
from relax_modules import typed_module as module
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.deploy.count import count

op = relax.op
RNG = np.random.default_rng(0)
M = tirx.Var("m", "int64")
A, B, C = (RNG.standard_normal((6, columns)).astype("float32") for columns in (5, 3, 7))
BIASES = [RNG.standard_normal(w.shape[1]).astype("float32") for w in (A, B, C)]


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


def with_biases(emit, found, biases):
    if not biases:
        return found
    return [emit(op.add(p, relax.const(b))) for p, b in zip(found, biases, strict=True)]


def products(*weights, biases=()):
    """Products of one operand with matrices, each with its bias where there are some."""

    def body(emit, x):
        found = [emit(op.matmul(x, relax.const(w))) for w in weights]
        return with_biases(emit, found, biases)

    return body


def joined(*weights, biases=()):
    """The same by one product."""

    def body(emit, x):
        wide = emit(op.matmul(x, relax.const(np.concatenate(weights, axis=1))))
        ends = np.cumsum([w.shape[1] for w in weights])[:-1]
        split = emit(op.split(wide, [int(e) for e in ends], axis=-1))
        found = [emit(relax.TupleGetItem(split, i)) for i in range(len(weights))]
        return with_biases(emit, found, biases)

    return body


def rewritten(mod):
    """The module after the pass, which has nothing left to do, and what it decided."""
    with recording() as log:
        after = transform.JoinMatmuls()(mod)
    relax.analysis.well_formed(after)  # raises
    assert transform.JoinMatmuls()(after).same_as(after)
    return after, log


def check_untouched(mod, *codes):
    after, log = rewritten(mod)
    assert after.same_as(mod)
    assert [d.code for d in log] == list(codes)
    assert all(d.verdict == "refused" for d in log)


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6), (6,), (M, 6), (2, M, 6)], ids=str)
@pytest.mark.parametrize("biases", [(), BIASES], ids=["plain", "bias"])
def test_products_of_one_operand_become_one(shape, biases):
    before = module(products(A, B, C, biases=biases), tensor(*shape))
    after, (decision,) = rewritten(before)
    assert_structural_equal(after, module(joined(A, B, C, biases=biases), tensor(*shape)))
    assert (decision.verdict, decision.code) == ("accepted", "joined")


def test_half_precision_with_float32_sums():
    weights = [relax.const(w.astype("float16")) for w in (A, B)]

    def body(emit, x):
        return [emit(op.matmul(x, w, "float32")) for w in weights]

    after, _ = rewritten(module(body, tensor(M, 6, dtype="float16")))
    wide = after["main"].body.blocks[0].bindings[0]
    assert str(wide.value.attrs.out_dtype) == "float32"
    assert str(wide.value.args[1].ty.dtype.dtype) == "float16"
    assert str(wide.var.ty.dtype.dtype) == "float32"


def test_the_same_matrices_on_another_operand_are_joined_once():
    weights = [relax.const(w) for w in (A, B)]

    def body(emit, x, y):  # the products of two operands take turns
        return [emit(op.matmul(v, w)) for w in weights for v in (x, y)]

    after, log = rewritten(module(body, tensor(4, 6), tensor(2, 6)))
    first, second = (c.args[1] for c in calls(after, "relax.matmul"))
    assert hash(first) == hash(second)  # one object
    assert [d.code for d in log] == ["joined", "joined"]


def test_no_matrix_stays_beside_the_joined_one():
    after, _ = rewritten(module(products(A, B, C), tensor(4, 6)))
    (matrix,) = constants(after)
    np.testing.assert_array_equal(matrix.value.numpy(), np.concatenate([A, B, C], axis=1))


def test_a_matrix_that_something_else_reads_stays():
    shared = relax.const(A)

    def body(emit, x):
        found = [emit(op.matmul(x, w)) for w in (shared, relax.const(B), relax.const(C))]
        return [*found, emit(op.exp(shared))]

    after, log = rewritten(module(body, tensor(4, 6)))
    shapes = [tuple(c.args[1].ty.shape.values) for c in calls(after, "relax.matmul")]
    assert sorted(shapes) == [(6, 5), (6, 10)]
    assert [d.code for d in log] == ["weight_shared", "joined"]


def test_a_matrix_of_two_products_of_different_groups_stays():
    one, other = relax.const(A), relax.const(B)

    def body(emit, x, y):
        return [emit(op.matmul(x, one)), emit(op.matmul(x, other)), emit(op.matmul(y, one))]

    check_untouched(module(body, tensor(4, 6), tensor(2, 6)), "weight_shared")


def test_single_products_stay_without_a_word():
    check_untouched(module(products(A), tensor(4, 6)))


def test_different_sums_are_different_operands():
    def body(emit, x, y):
        return [emit(op.matmul(x, relax.const(A))), emit(op.matmul(y, relax.const(B[:4])))]

    check_untouched(module(body, tensor(4, 6), tensor(3, 4)))


def test_computed_matrices_stay():
    def body(emit, x, w):
        return [emit(op.matmul(x, w)), emit(op.matmul(x, relax.const(A)))]

    check_untouched(module(body, tensor(4, 6), tensor(6, 5)), "not_constant")


def test_a_product_by_its_sibling_stays():
    def body(emit, x):
        first = emit(op.matmul(x, relax.const(RNG.standard_normal((6, 6)).astype("float32"))))
        return [emit(op.matmul(x, first)), first]

    check_untouched(module(body, tensor(6, 6)), "not_constant")


def test_batches_of_matrices_stay():
    def body(emit, x):
        several = relax.const(np.stack([A, A + 1]))
        return [emit(op.matmul(x, several)), emit(op.matmul(x, relax.const(B)))]

    check_untouched(module(body, tensor(2, 4, 6)), "not_a_matrix")


def test_operands_of_unknown_rank_stay():
    unknown = relax.TensorType(dtype="float32")
    check_untouched(module(products(A, B), unknown), "rank_unknown", "rank_unknown")


def test_results_of_different_types_stay():
    weights = [relax.const(w.astype("float16")) for w in (A, B)]

    def body(emit, x):
        return [
            emit(op.matmul(x, w, d)) for w, d in zip(weights, ("float32", "float16"), strict=True)
        ]

    check_untouched(module(body, tensor(4, 6, dtype="float16")), "kind_differs", "kind_differs")


def test_foreign_functions_stay():
    mod = module(products(A, B), tensor(4, 6))
    mod["main"] = mod["main"].with_attr("Codegen", "someone")
    check_untouched(mod)


def test_the_stage_joins():
    before = module(products(A, B), tensor(4, 6))
    canonical = relax.transform.CanonicalizeBindings()(module(joined(A, B), tensor(4, 6)))
    assert_structural_equal(transform.Rewrite()(before), canonical)


def calls(mod, name):
    return [
        b.value
        for b in mod["main"].body.blocks[0].bindings
        if isinstance(b.value, relax.Call) and getattr(b.value.op, "name", "") == name
    ]


def constants(mod):
    found = []

    def visit(expr):
        if isinstance(expr, tvm.ir.GenericConst):
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"].body, visit)
    return found


# Numbers, and kernels -----------------------------------------------------------------------------

HEADS, DIM, MODEL, HIDDEN = 3, 32, 20, 48


def weight(*shape):
    return RNG.standard_normal(shape).astype("float32")


QKV = [weight(MODEL, heads * DIM) for heads in (HEADS, 1, 1)]
QKV_BIAS = [weight(w.shape[1]) for w in QKV]
GATE, UP = weight(MODEL, HIDDEN), weight(MODEL, HIDDEN)
COS, SIN = weight(DIM), weight(DIM)


def heads(emit, x):
    """Projections for attention: bias, heads, a scale on one, another transposed."""
    results = []
    for number, (w, b) in enumerate(zip(QKV, QKV_BIAS, strict=True)):
        y = emit(op.add(emit(op.matmul(x, relax.const(w))), relax.const(b)))
        batch, rows, columns = y.ty.shape.values
        y = emit(op.reshape(y, (batch, rows, columns // DIM, DIM)))
        y = emit(op.permute_dims(y, [0, 2, 1, 3]))
        if number == 0:
            y = emit(op.multiply(y, relax.const(0.25, "float32")))
        results.append(y)
    return results


def heads_reference(x):
    results = []
    for number, (w, b) in enumerate(zip(QKV, QKV_BIAS, strict=True)):
        y = (x @ w + b).reshape(*x.shape[:2], -1, DIM).transpose(0, 2, 1, 3)
        results.append(y * 0.25 if number == 0 else y)
    return results


def gated(emit, x):
    """A gated layer: silu(gate) * up."""
    gate, up = (emit(op.matmul(x, relax.const(w))) for w in (GATE, UP))
    silu = emit(op.multiply(gate, emit(op.sigmoid(gate))))
    return emit(op.multiply(silu, up))


def gated_reference(x):
    gate = x @ GATE
    return [gate / (1 + np.exp(-gate)) * (x @ UP)]


def rotated(emit, x):
    """Two projections whose heads are rotated by halves, and one that is not."""
    results = []
    for number, w in enumerate(QKV):
        y = emit(op.matmul(x, relax.const(w)))
        batch, rows, columns = y.ty.shape.values
        y = emit(op.reshape(y, (batch, rows, columns // DIM, DIM)))
        if number < 2:
            half = DIM // 2
            end = emit(op.strided_slice(y, [3], [half], [DIM], [1]))
            begin = emit(op.strided_slice(y, [3], [0], [half], [1]))
            turned = emit(op.concat([emit(op.negative(end)), begin], axis=-1))
            turned = emit(op.multiply(turned, relax.const(SIN)))
            y = emit(op.add(emit(op.multiply(y, relax.const(COS))), turned))
        results.append(y)
    return results


def rotated_reference(x):
    results = []
    for number, w in enumerate(QKV):
        y = (x @ w).reshape(*x.shape[:2], -1, DIM)
        if number < 2:
            begin, end = np.split(y, 2, axis=-1)
            y = y * COS + np.concatenate([-end, begin], axis=-1) * SIN
        results.append(y)
    return results


LAYERS = {
    "heads": (heads, heads_reference),
    "gated": (gated, gated_reference),
    "rotated": (rotated, rotated_reference),
}
ONE_KERNEL = [(name, spec) for name in LAYERS for spec in (CPU, CUDA)]


@pytest.mark.parametrize("shape", [(1, 13, MODEL), (2, M, MODEL)], ids=["static", "symbolic"])
@pytest.mark.parametrize(
    ("name", "spec"), ONE_KERNEL, ids=[f"{name}-{spec.device.kind}" for name, spec in ONE_KERNEL]
)
@pytest.mark.slow
def test_one_kernel(name, spec, shape):
    target = spec.tvm_target()
    mod = module(LAYERS[name][0], tensor(*shape))
    with target:
        lowered = relax.get_pipeline("tvm_fusion", target=target)(mod)
    counted = count(lowered, target, dims={"m": 13}, tir_pipeline="tvm_fusion")
    assert counted.kernels == 1


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.slow
def test_numbers(name):
    body, reference = LAYERS[name]
    target = CPU.tvm_target()
    with target:
        built = tvm.compile(
            module(body, tensor(2, M, MODEL)),
            target,
            relax_pipeline="tvm_fusion",
            tir_pipeline="tvm_fusion",
        )
    machine = relax.VirtualMachine(built, tvm.cpu())
    for rows in (1, 17):
        x = weight(2, rows, MODEL)
        found = machine["main"](tvm.runtime.tensor(x))
        found = [found] if isinstance(found, tvm.runtime.Tensor) else found
        for got, want in zip(found, reference(x.astype("float64")), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)


def convolutions(*weights, **attrs):
    def body(emit, x):
        return [emit(op.nn.conv2d(x, relax.const(w), **attrs)) for w in weights]

    return body


W3 = np.random.default_rng(1).standard_normal((4, 6, 3, 3)).astype("float32")


def test_convolutions_of_one_image_become_one():
    def expected(emit, x):
        wide = emit(op.nn.conv2d(x, relax.const(np.concatenate([W3, W3[:2]])), padding=1))
        split = emit(op.split(wide, [4], axis=1))
        return [emit(relax.TupleGetItem(split, i)) for i in range(2)]

    image = tensor(2, 6, 5, 5)
    after, (decision,) = rewritten(module(convolutions(W3, W3[:2], padding=1), image))
    assert_structural_equal(after, module(expected, image))
    assert decision.code == "joined"


W1 = W3[:3, :, 1:2, 1:2].copy()


def of_windows(*convs, strides=1, **attrs):
    """Convolutions of one image by weights with their padding."""

    def body(emit, x):
        return [
            emit(op.nn.conv2d(x, relax.const(w), strides=strides, padding=p, **attrs))
            for w, p in convs
        ]

    return body


@pytest.mark.parametrize("strides", [1, 2])
def test_smaller_windows_are_enlarged(strides):
    """A pixel, and a window behind it, lie within three by three."""
    row = W3[:2, :, 1:2].copy()
    enlarged = [
        np.pad(w, [(0, 0), (0, 0), *p]) for w, p in ((W1, [(1, 1)] * 2), (row, [(1, 1), (0, 0)]))
    ]

    def expected(emit, x):
        weights = relax.const(np.concatenate([W3, *enlarged]))
        wide = emit(op.nn.conv2d(x, weights, strides=strides, padding=1))
        split = emit(op.split(wide, [4, 7], axis=1))
        return [emit(relax.TupleGetItem(split, i)) for i in range(3)]

    image = tensor(2, 6, 7, 9)
    mod = module(of_windows((W3, 1), (W1, 0), (row, (0, 1, 0, 1)), strides=strides), image)
    after = transform.JoinMatmuls(enlarge=True)(mod)
    assert_structural_equal(after, module(expected, image))
    assert transform.JoinMatmuls(enlarge=True)(after).same_as(after)
    assert transform.JoinMatmuls()(mod).same_as(mod)


@pytest.mark.parametrize(
    ("other", "attrs"),
    [((W1, 1), {}), ((W1, 0), {"dilation": 2})],
    ids=["another_extent", "gaps"],
)
def test_windows_of_other_extents_or_with_gaps_stay(other, attrs):
    padding = 2 if attrs else 1
    mod = module(of_windows((W3, padding), other, **attrs), tensor(2, 6, 7, 9))
    assert transform.JoinMatmuls(enlarge=True)(mod).same_as(mod)


@pytest.mark.parametrize(
    ("weights", "attrs", "codes"),
    [
        ((W3, W3[:, :, 1:2, 1:2].copy()), {}, ["kind_differs"] * 2),
        ((W3[:, :3].copy(), W3[:, :3].copy()), {"groups": 2}, ["groups"] * 2),
    ],
    ids=["another_window", "groups"],
)
def test_other_convolutions_stay(weights, attrs, codes):
    check_untouched(module(convolutions(*weights, **attrs), tensor(2, 6, 5, 5)), *codes)


def test_a_lone_product_of_two_inputs_stays():
    def body(emit, x, y):
        return [emit(op.matmul(x, y))]

    check_untouched(module(body, tensor(4, 6), tensor(6, 4)))
