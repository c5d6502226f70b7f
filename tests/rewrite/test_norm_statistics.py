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
from tvm_fusion.rewrite.folded_norm import fold
from tvm_fusion.rewrite.norm_operators import row_values, statistics_of
from tvm_fusion.rewrite.norm_statistics import NormStatistics

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
    """``norm(a W1 + b) W2``; the norm is a result, too, as a residual would read it."""

    def body(builder, a, b):
        emit = builder.emit
        x = emit(op.add(emit(op.matmul(a, const(w1))), b))
        normed = emit(norm(x))
        product = emit(op.matmul(normed, const(w2), "float32"))
        return [product, emit(op.add(normed, b))] if has_residual else [product]

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
        rstd = emit(builder.call_te(row_values(ROWS, K, EPSILON, False), squares))
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
    # Statistics of tiles, the factor of the product, mean and factor of the residual.
    assert found.count("relax.call_tir") == (3 if has_residual else 2)


def run(mod, *arrays):
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return [x.numpy() for x in machine["main"](*map(tvm.runtime.tensor, arrays))]


def exact(norm, x):
    x = x.astype("float64")
    if norm is layer_norm:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * SCALE.astype("float64")
    return x + SHIFT.astype("float64") if norm is layer_norm else x


@pytest.mark.parametrize("center", [5.0, 100.0])
@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_numbers(norm, center):
    """Rows of any mean: of their rounded elements, products are as exact as half types are."""
    given = half(ROWS, K), half(ROWS, K, center=center)
    mod = rewritten(module(chain(norm, True, np.eye(K, dtype="float16")), *GIVEN))
    product, residual = run(mod, *given)
    rows = (given[0] + given[1]).astype("float16")
    normed = exact(norm, rows)
    wanted = normed @ W2.astype("float64")
    size = np.abs(normed).max() + 5 + center
    assert np.abs(product - wanted).max() < 2**-11 * size * 6
    wide = normed + given[1].astype("float64")
    assert np.abs(residual - wide).max() < 2**-10 * np.abs(wide).max() + 2**-11 * 8


def test_columns_add_up_to_zero():
    made = fold(SCALE, W2, True).astype("float64")
    wanted = SCALE.astype("float64")[:, None] * W2.astype("float64")
    wanted -= wanted.mean(0)
    unit = np.spacing(np.abs(made).max(0).astype("float16")).astype("float64")
    assert (np.abs(made.sum(0)) < 4 * unit).all()
    assert (np.abs(made - wanted) <= 1.2 * unit).all()


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


def of_an_argument(builder, a, b, scale):
    emit = builder.emit
    x = emit(op.add(emit(op.matmul(a, const(W1))), b))
    return [emit(op.matmul(emit(layer_norm(x, scale)), const(W2)))]


REFUSED = {
    "too_small": (module(chain(layer_norm, w2=W2 * np.float16(2**-8)), *GIVEN), "too small"),
    "too_large": (module(chain(layer_norm, w2=W2 * np.float16(2**15)), *GIVEN), "too large"),
    "few_rows": (with_product(rows=63), "at least 64"),
    "narrow": (with_product(k=96), "multiple of 64"),
    "wide": (with_product(k=2112), "at most 2048"),
    "odd_columns": (with_product(n=75), "multiple of 8 columns"),
    "float32": (with_product("float32"), None),
    "no_product_before": (module(of_an_input, tensor(ROWS, K)), "the sum of a product"),
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


def test_a_switch():
    config = FusionConfig(without=["norm_statistics"])
    found = plan_model(module(layers, *GIVEN), "cuda:sm_90a", config)
    assert sum(c.launches for plan in found.plans.values() for c in plan.claims) == 9
