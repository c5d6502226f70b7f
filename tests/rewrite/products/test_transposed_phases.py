"""Transposed convolutions as convolutions of all phases."""

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import relax

from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.rewrite.products.transposed_phases import Phases, TransposedConvByPhases
from tvm_fusion.transform import Rewrite

op = relax.op
CPU = parse("cpu").tvm_target()


CONVOLUTIONS = (op.nn.conv1d_transpose, op.nn.conv2d_transpose, op.nn.conv3d_transpose)


def transposed(x, w, strides, padding, more, groups):
    """Spread every pixel over the window, in float64."""
    n, c, *sizes = x.shape
    _, k, *taps = w.shape
    each = [(h - 1) * s + r + m for h, s, r, m in zip(sizes, strides, taps, more, strict=True)]
    y = np.zeros((n, groups, k, *each))
    own = w.reshape(groups, c // groups, k, *taps)
    for place in np.ndindex(*sizes):
        pixel = x[(slice(None), slice(None), *place)].reshape(n, groups, -1)
        part = np.einsum("ngc,gck...->ngk...", pixel, own)
        firsts = [i * s for i, s in zip(place, strides, strict=True)]
        y[(..., *(slice(i, i + r) for i, r in zip(firsts, taps, strict=True)))] += part
    inside = [slice(p, h - p) for p, h in zip(padding, each, strict=True)]
    return y[(..., *inside)].reshape(n, groups * k, *(s.stop - s.start for s in inside))


def module(x, w, **options):
    convolve = CONVOLUTIONS[x.ndim - 3]
    return main_module(
        [relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))],
        lambda emit, x: convolve(x, relax.const(w), **options),
    )


def names(mod):
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append(expr.op.name)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def rewritten(mod):
    with CPU:
        return TransposedConvByPhases()(mod)


def run(mod, x):
    built = tvm.compile(mod, "llvm")
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


@st.composite
def problems(draw):
    taps = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = tuple(draw(st.integers(0, r - 1)) for r in taps)
    sizes = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    results = [
        (n - 1) * s + r - 2 * p for n, s, r, p in zip(sizes, strides, taps, padding, strict=True)
    ]
    assume(min(results) > 0)
    return taps, strides, padding, sizes, results


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_weight_has_every_phase(problem, seed):
    """In numpy alone: window, padding and weight of the convolution."""
    taps, strides, padding, sizes, results = problem
    rng = np.random.default_rng(seed)
    for size, s, p, r, count in zip(sizes, strides, padding, taps, results, strict=True):
        dimension = Phases(s, p, r)
        x, w = rng.standard_normal(size), rng.standard_normal(r)
        full = np.zeros((size - 1) * s + r)
        for i in range(size):
            full[i * s : i * s + r] += x[i] * w
        expected = full[p : len(full) - p]
        outputs = -(-count // s)
        before, behind = dimension.pads(size, outputs)
        if min(before, behind) < 0:
            continue
        padded = np.pad(x, (before, behind))
        for phase in range(s):
            places = [dimension.tap(phase, j) for j in range(dimension.window)]
            own = np.array([0.0 if t is None else w[t] for t in places])
            y = np.array([padded[o : o + len(own)] @ own for o in range(outputs)])
            wanted = expected[phase::s]
            np.testing.assert_allclose(y[: len(wanted)], wanted, atol=1e-12)


CASES = {
    "2x2, blocks of pixels": ((2, 2), (2, 2), (0, 0), 1),
    "4x4, halved": ((4, 4), (2, 2), (1, 1), 1),
    "3x3, without strides": ((3, 3), (1, 1), (1, 1), 1),
    "rows and columns differ": ((3, 4), (3, 2), (0, 1), 1),
    "phases without taps": ((2, 3), (3, 3), (0, 0), 1),
    "groups": ((3, 2), (1, 2), (1, 0), 3),
    "one dimension": ((4,), (2,), (1,), 1),
    "three dimensions": ((2, 3, 4), (2, 1, 2), (0, 1, 1), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_against_float64(case):
    taps, strides, padding, groups = CASES[case]
    rng = np.random.default_rng()
    x = rng.standard_normal((2, 6, *(4, 7, 3)[: len(taps)])).astype("float32")
    w = rng.standard_normal((6, 5, *taps)).astype("float32")
    options = {"strides": strides, "padding": padding, "groups": groups}
    mod = module(x, w, **options)
    extents = [int(d) for d in mod["main"].ret_ty.shape.values[2:]]
    if any(n % s for n, s in zip(extents, strides, strict=True)):
        options["output_padding"] = tuple(-n % s for n, s in zip(extents, strides, strict=True))
        mod = module(x, w, **options)
    found = rewritten(mod)
    assert not any("transpose" in name for name in names(found) if "conv" in name)
    assert tvm_ffi.structural_equal(found["main"].ret_ty, mod["main"].ret_ty)
    wide = [a.astype("float64") for a in (x, w)]
    rest = strides, padding, options.get("output_padding", (0,) * len(taps)), groups
    size = transposed(*map(np.abs, wide), *rest)
    terms = 6 // groups * int(np.prod(taps))
    assert_sums_close(run(found, x), transposed(*wide, *rest), size, terms + 1)


def test_what_stays():
    x, w = np.zeros((1, 4, 5, 5), "float32"), np.zeros((4, 3, 3, 3), "float32")
    uneven = module(x, w, strides=2)  # 11 rows
    assert "relax.nn.conv2d_transpose" in names(rewritten(uneven))
    cut = module(x, np.zeros((4, 3, 1, 1), "float32"), padding=1)
    with recording() as decisions:
        assert "relax.nn.conv2d_transpose" in names(rewritten(cut))
    assert [(d.code, d.verdict, d.sentence) for d in decisions] == [
        ("transposed_conv", "refused", "Its padding is wider than its window.")
    ]
    depthwise = module(x, w, groups=4, strides=1)
    assert "relax.nn.conv2d_transpose" in names(rewritten(depthwise))
    dilated = module(x, w, dilation=2, strides=1)
    assert "relax.nn.conv2d_transpose" in names(rewritten(dilated))
    even = module(x, w, strides=2, output_padding=1)
    with recording() as decisions:
        assert "relax.nn.conv2d_transpose" not in names(rewritten(even))
    assert [(d.code, d.verdict, d.sentence) for d in decisions] == [
        ("transposed_conv", "accepted", "It is a convolution of 4 phases, without zero stuffing.")
    ]
    with parse("rocm:gfx942").tvm_target():
        assert "relax.nn.conv2d_transpose" in names(TransposedConvByPhases()(even))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_on_gpus(dtype):
    """CPUs have no convolutions of them that are worth it."""
    kind = getattr(ml_dtypes, dtype, dtype)
    x, w = np.zeros((1, 4, 5, 5), kind), np.ones((4, 3, 2, 2), kind)
    mod = module(x, w, strides=2)
    assert "relax.nn.conv2d_transpose" in names(rewritten(mod))
    with parse("cuda:sm_90a").tvm_target():
        assert "relax.nn.conv2d_transpose" not in names(TransposedConvByPhases()(mod))


def test_a_rule_of_the_rewriting_stage():
    x, w = np.zeros((1, 4, 5, 5), "float32"), np.ones((4, 3, 2, 2), "float32")
    mod = module(x, w, strides=2)
    with CPU:
        assert "relax.nn.conv2d_transpose" not in names(Rewrite()(mod))
        kept = Rewrite(without=["transposed_phases"])(mod)
    assert "relax.nn.conv2d_transpose" in names(kept)
