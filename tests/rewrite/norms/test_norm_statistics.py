"""Norms between two products become factors of rows: modules before and after, numbers, kernels."""

import numpy as np
import pytest
import tvm
from group_kernels import CUDA
from tvm import relax
from tvm.ir import assert_structural_equal

from tvm_fusion import FusionConfig
from tvm_fusion.core.decisions import recording
from tvm_fusion.report.planned import plan_model
from tvm_fusion.rewrite.norms.operators import row_values, statistics_of
from tvm_fusion.rewrite.norms.statistics import NormStatistics, fold

op = relax.op
RNG = np.random.default_rng(0)
ROWS, K, N = 96, 128, 72
EPSILON = 1e-3


def half(*shape, scale=1.0, center=0.0):
    return (center + scale * RNG.standard_normal(shape)).astype("float16")


W1, W2 = half(K, K, scale=K**-0.5), half(K, N, scale=K**-0.5)
SCALE, SHIFT = half(K, scale=0.2, center=1.0), half(K, scale=0.2)


def const(array):
    return relax.const(array, str(array.dtype))


def module(body, *types):
    """A module with one function of one dataflow block."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", t) for i, t in enumerate(types)]
    with builder.function("main", params):
        with builder.dataflow():
            results = [builder.emit_output(r) for r in body(builder, *params)]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def tensor(*shape, dtype="float16"):
    return relax.TensorType(shape, dtype)


def layer_norm(x, scale=None, shift=None):
    scale, shift = (const(c) if v is None else v for v, c in ((scale, SCALE), (shift, SHIFT)))
    return op.nn.layer_norm(x, scale, shift, axes=[-1], epsilon=EPSILON)


def rms_norm(x):
    return op.nn.rms_norm(x, const(SCALE), axes=[-1], epsilon=EPSILON)


def chain(norm, has_residual=False, w1=W1, w2=W2):
    """``norm(a W1 + b) W2``; a sum with another product reads the norm, too."""

    def body(builder, a, b):
        emit = builder.emit
        x = emit(op.add(emit(op.matmul(a, const(w1))), b))
        normed = emit(norm(x))
        product = emit(op.matmul(normed, const(w2), "float32"))
        if not has_residual:
            return [product]
        return [product, emit(op.add(emit(op.matmul(a, const(w1))), normed))]

    return body


GIVEN = (tensor(ROWS, K), tensor(ROWS, K))


def rewritten(mod):
    with CUDA.tvm_target():
        return NormStatistics()(mod)


def test_a_root_mean_square_norm():
    def expected(builder, a, b):
        emit = builder.emit
        x = emit(op.add(emit(op.matmul(a, const(W1))), b))
        squares = emit(builder.call_te(statistics_of(False), x))
        rstd = emit(builder.call_te(row_values(ROWS, K, EPSILON), squares))
        folded = (SCALE.astype("float64")[:, None] * W2.astype("float64")).astype("float16")
        product = emit(op.matmul(x, const(folded), "float32"))
        return [emit(op.reshape(emit(op.multiply(product, rstd)), (ROWS, N)))]

    assert_structural_equal(
        rewritten(module(chain(rms_norm), *GIVEN)), module(expected, *GIVEN), map_free_vars=True
    )


def operators(mod):
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append(expr.op.name)

    relax.analysis.post_order_visit(mod["main"].body, visit)
    return found


@pytest.mark.parametrize("has_residual", [False, True])
def test_a_layer_norm(has_residual):
    found = operators(rewritten(module(chain(layer_norm, has_residual), *GIVEN)))
    assert "relax.nn.layer_norm" not in found
    # Statistics of tiles, mean and factor of rows, the product behind them; the residual's rows.
    assert found.count("relax.call_tir") == (4 if has_residual else 3)


def compiled(mod):
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return lambda *given: [x.numpy() for x in machine["main"](*map(tvm.runtime.tensor, given))]


def error(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def exact(norm, x, scale, shift):
    x, scale, shift = (a.astype("float64") for a in (x, scale, shift))
    if norm is layer_norm:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * scale
    return x + shift if norm is layer_norm else x


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.slow
def test_numbers(norm, dtype):
    """Rows of any mean: as exact as a norm of its own, which rounds what the product reads."""
    eye, w2, scale, shift = (x.astype(dtype) for x in (np.eye(K), W2, SCALE, SHIFT))

    def of_type(x):
        if norm is layer_norm:
            return layer_norm(x, const(scale), const(shift))
        return op.nn.rms_norm(x, const(scale), axes=[-1], epsilon=EPSILON)

    def body(builder, a, b):
        emit = builder.emit
        same = emit(op.matmul(a, const(eye)))
        normed = emit(of_type(emit(op.add(same, b))))
        products = [emit(op.matmul(normed, const(w2), kind)) for kind in ("float32", dtype)]
        return [*products, emit(op.add(same, normed))]

    call = compiled(rewritten(module(body, *[tensor(ROWS, K, dtype=dtype)] * 2)))
    rounding = 2.0 ** (-8 if dtype == "bfloat16" else -11)
    for mean_of_deviation in (1.0, 30.0, 1000.0):
        rows = (mean_of_deviation + RNG.standard_normal((ROWS, K))).astype(dtype)
        product, rounded, residual = (x.astype("float64") for x in call(np.zeros_like(rows), rows))
        normed, w = exact(norm, rows, scale, shift), w2.astype("float64")
        own = error(normed.astype(dtype).astype("float64") @ w, normed @ w)
        # float32 holds a product of raw rows until their mean is taken off.
        of_sums = 2.0**-24 * mean_of_deviation * K**0.5
        of_product = max(1.2 * own, rounding / 3**0.5) + of_sums
        assert error(product, normed @ w) < of_product
        assert error(rounded, normed @ w) < of_product + rounding
        assert error(residual, normed) < rounding


def test_folded_matrix():
    made = fold(SCALE, W2, True).astype("float64")
    wanted = SCALE.astype("float64")[:, None] * W2.astype("float64")
    wanted -= wanted.mean(0)
    assert (np.abs(made - wanted) <= np.spacing(np.abs(made).astype("float16"))).all()
    assert (np.abs(made.sum(0)) < K * 2.0**-11 * np.abs(made).max(0)).all()


def with_product(dtype="float16", rows=ROWS, k=K, n=N, **options):
    """The chain at another size."""
    w1, w2 = np.ones((k, k), dtype), np.ones((k, n), dtype)
    ones = const(np.ones(k, dtype))

    def norm(x):
        return op.nn.layer_norm(x, ones, ones, axes=[-1], epsilon=EPSILON)

    body = chain(options.get("norm", norm), False, w1, w2)
    return module(body, tensor(rows, k, dtype=dtype), tensor(rows, k, dtype=dtype))


def of_an_input(builder, x):
    emit = builder.emit
    return [emit(op.matmul(emit(layer_norm(x)), const(W2)))]


def read_elsewhere(builder, a, b):
    emit = builder.emit
    normed = emit(layer_norm(emit(op.add(emit(op.matmul(a, const(W1))), b))))
    return [emit(op.matmul(normed, const(W2))), emit(op.add(normed, b))]


def as_a_result(builder, a, b):
    emit = builder.emit
    normed = emit(layer_norm(emit(op.add(emit(op.matmul(a, const(W1))), b))))
    return [emit(op.matmul(normed, const(W2))), normed]


def of_an_argument(builder, a, b, scale):
    emit = builder.emit
    x = emit(op.add(emit(op.matmul(a, const(W1))), b))
    return [emit(op.matmul(emit(layer_norm(x, scale)), const(W2)))]


def wide_norm(x):
    """A layer norm that computes from float32 to float32."""
    weights = (const(v.astype("float32")) for v in (SCALE, SHIFT))
    return op.nn.layer_norm(x, *weights, axes=[-1], epsilon=EPSILON)


def between_casts(builder, a, b):
    """A sum in float32, its norm in float32, products of the norm's half version."""
    emit = builder.emit
    x = emit(op.add(emit(op.matmul(a, const(W1), "float32")), emit(op.astype(b, "float32"))))
    rounded = emit(op.astype(emit(wide_norm(x)), "float16"))
    return [emit(op.matmul(rounded, const(W2), "float32"))]


REFUSED = {
    "between_casts": (module(between_casts, *GIVEN), "store them as float16"),
    "too_small": (
        module(chain(layer_norm, w2=W2 * np.float16(2**-8)), *GIVEN),
        "underflows float16",
    ),
    "too_large": (module(chain(layer_norm, w2=W2 * np.float16(2**15)), *GIVEN), "overflows or"),
    "few_rows": (with_product(rows=63), "at least 64"),
    "narrow": (with_product(k=96), "multiple of 64"),
    "wide": (with_product(k=2112), "at most 2048"),
    "odd_columns": (with_product(n=75), "a multiple of 8 columns"),
    "float32": (with_product("float32"), None),
    "no_product_before": (module(of_an_input, tensor(ROWS, K)), "the sum of a product"),
    "read_elsewhere": (module(read_elsewhere, *GIVEN), "readers other than"),
    "as_a_result": (module(as_a_result, *GIVEN), "readers other than"),
    "many_results": (with_product(rows=4096, k=768, n=3072), "3.6 us by the model"),
    "no_constant": (module(of_an_argument, *GIVEN, tensor(K)), "constant weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays(name):
    mod, says = REFUSED[name]
    with recording() as decisions:
        assert_structural_equal(rewritten(mod), mod)
    found = [d.sentence for d in decisions if d.code == "no_norm_statistics"]
    assert [says in s for s in found] == ([True] if says else [])


def layers(builder, a, b):
    """Two layers of a feed-forward network, each with its norm in front."""
    emit = builder.emit
    h = emit(op.add(emit(op.matmul(a, const(W1))), b))
    for _ in range(2):
        y = emit(op.nn.relu(emit(op.matmul(emit(layer_norm(h)), const(half(K, 4 * K))))))
        h = emit(op.add(emit(op.matmul(y, const(half(4 * K, K)))), h))
    return [emit(op.matmul(emit(layer_norm(h)), const(W2)))]


@pytest.mark.parametrize(("spec", "kernels"), [("cuda:sm_90a", 6), ("cuda:sm_80", 9)])
def test_kernels(spec, kernels):
    found = plan_model(module(layers, *GIVEN), spec, FusionConfig())
    assert sum(c.launches for plan in found.plans.values() for c in plan.claims) == kernels


def projections(builder, a, b):
    """Query, key and value of a norm, each with its bias."""
    emit = builder.emit
    normed = emit(layer_norm(emit(op.add(emit(op.matmul(a, const(W1))), b))))
    parts = emit(op.split(emit(op.matmul(normed, const(half(K, 3 * K)))), 3, -1))
    return [op.add(emit(relax.TupleGetItem(parts, i)), const(half(K))) for i in range(3)]


def test_a_split_behind_a_norm_is_of_the_product():
    found = plan_model(module(projections, *GIVEN), "cuda:sm_90a", FusionConfig())
    assert sum(c.launches for plan in found.plans.values() for c in plan.claims) == 2


def test_a_switch():
    config = FusionConfig(without=["norm_statistics"])
    found = plan_model(module(layers, *GIVEN), "cuda:sm_90a", config)
    assert sum(c.launches for plan in found.plans.values() for c in plan.claims) == 9


def wide_layers(builder, a, b):
    """The two layers, as a model in float32 has them."""
    emit = builder.emit

    def product(x, columns):
        weight = half(x.ty.shape.values[-1].value, columns).astype("float32")
        return emit(op.matmul(x, const(weight)))

    h = emit(op.add(product(a, K), b))
    for _ in range(2):
        y = emit(op.nn.relu(product(emit(wide_norm(h)), 4 * K)))
        h = emit(op.add(product(y, K), h))
    return [product(emit(wide_norm(h)), N)]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_model_in_float32_keeps_its_norms_and_says_why(precision):
    wide = [tensor(ROWS, K, dtype="float32")] * 2
    config = FusionConfig(precision=precision)
    with recording() as decisions:
        plan_model(module(wide_layers, *wide), "cuda:sm_90a", config)
    found = [d.sentence for d in decisions if d.code == "no_norm_statistics"]
    assert len(found) == 3
    assert all("may overflow" in s for s in found)
