"""Constant weights lie along K for tensor cores and GEMV, and float8 ones stay float8."""

import ml_dtypes
import numpy as np
import pytest
from relax_modules import main_module
from tvm import IRModule, relax
from tvm.ir import GenericConst

from tvm_fusion.core.constants.weight_names import WeightNames, derived, tracking
from tvm_fusion.core.flags import TF32
from tvm_fusion.device import parse
from tvm_fusion.frontend.normalize.constants.fold import FoldConstants
from tvm_fusion.transform import Rewrite

op = relax.op
K, N = 512, 768
TYPES = {"float8_e4m3fn": "float16", "int8": "int32", "float32": None}


def weights(dtype):
    values = 9 * np.random.default_rng().standard_normal((K, N))
    return values.astype(getattr(ml_dtypes, dtype) if "float8" in dtype else dtype)


def product(dtype, rows=32, turned=False):
    stored, wide = weights(dtype), TYPES[dtype]
    x = relax.Var("x", relax.TensorType((rows, K), dtype))

    def body(emit, x):
        w = relax.const(stored.T.copy() if turned else stored, dtype)
        a, b = (emit(op.astype(v, wide)) if wide else v for v in (x, w))
        b = emit(op.permute_dims(b)) if turned else b
        return op.matmul(a, b, "int32" if dtype == "int8" else "float32")

    return main_module([x], body), stored


def steps(*rows, dtype="float16"):
    """Functions that multiply one weight by so many rows each."""
    stored, mods = weights(dtype), {}
    weight, total = relax.const(stored), "int32" if dtype == "int8" else "float32"
    for number, count in enumerate(rows):
        x = relax.Var("x", relax.TensorType((1, count, K), dtype))
        name = "main" if number == 0 else f"other{number}"
        func = main_module([x], lambda emit, x: op.matmul(x, weight, total))["main"]
        mods[name] = func.with_attr("global_symbol", name)
    return IRModule(mods), stored


def constants(mod, name="main"):
    found = []

    def visit(expr):
        if isinstance(expr, GenericConst) and len(expr.value.shape) == 2:
            found.append(expr)

    relax.analysis.post_order_visit(mod[name], visit)
    return found


def rewritten(mod, spec, **options):
    with spec.tvm_target():
        return Rewrite(**options)(mod)


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_transposed(dtype):
    spec = parse("cuda:sm_90a").permitting([TF32])
    mod, stored = product(dtype)
    (found,) = constants(rewritten(mod, spec))
    assert str(found.ty.dtype.dtype) == dtype
    np.testing.assert_array_equal(found.value.numpy(), stored.T)


@pytest.mark.parametrize(
    ("dtype", "rows", "target", "options"),
    [
        ("float32", 32, "cuda:sm_90a", {}),
        ("float8_e4m3fn", 32, "cuda:sm_80", {}),
        ("int8", 8, "cuda:sm_90a", {}),
        ("int8", 32, "cuda:sm_90a", {"without": ["weights_along_k"]}),
        ("int8", 32, "cpu", {}),
    ],
)
def test_others_stay(dtype, rows, target, options):
    mod, stored = product(dtype, rows)
    (found,) = constants(rewritten(mod, parse(target), **options))
    np.testing.assert_array_equal(found.value.numpy(), stored)


@pytest.mark.parametrize(
    ("rows", "target", "dtype"),
    [
        *((1, target, "float16") for target in ("cuda:sm_90a", "rocm:gfx942", "rocm:gfx1100")),
        (2, "cuda:sm_80", "float16"),
        (1, "cuda:sm_90a", "int8"),
    ],
)
def test_functions_that_share_a_weight_read_it_along_k(rows, target, dtype):
    mod, stored = steps(rows, 128, dtype=dtype)
    made = rewritten(mod, parse(target))
    for name in ("main", "other1"):
        (found,) = constants(made, name)
        np.testing.assert_array_equal(found.value.numpy(), stored.T)


@pytest.mark.parametrize(
    ("rows", "target"), [((8, 128), "cuda:sm_90a"), ((8,), "rocm:gfx942"), ((1,), "cpu")]
)
def test_weights_of_others_stay_along_n(rows, target):
    mod, stored = steps(*rows)
    (found,) = constants(rewritten(mod, parse(target)))
    np.testing.assert_array_equal(found.value.numpy(), stored)


def test_a_weight_that_is_transposed_back_has_its_own_name():
    weight = relax.const(np.ones((3, 5), "float16"))
    names = WeightNames([("fc.weight", weight)])
    with tracking(names):
        once = derived(relax.const(np.ones((5, 3), "float16")), "permute_dims", [weight])
        twice = derived(relax.const(np.ones((3, 5), "float16")), "permute_dims", [once])
    named = names.of(main_module([], lambda emit: op.add(emit(op.permute_dims(twice)), once)))
    assert (named[once], named[twice]) == ("permute_dims(fc.weight)", "fc.weight")


def test_the_rewriting_is_repeatable():
    spec = parse("cuda:sm_90a")
    mod, stored = product("int8")
    (found,) = constants(rewritten(rewritten(mod, spec), spec))
    np.testing.assert_array_equal(found.value.numpy(), stored.T)


def test_a_cast_of_a_float8_matrix_is_not_folded():
    mod, _ = product("float8_e4m3fn")
    (found,) = constants(FoldConstants()(mod))
    assert str(found.ty.dtype.dtype) == "float8_e4m3fn"


def test_the_flag_is_read_back_from_a_target():
    spec = parse("cuda:sm_80,sm_90a").permitting([TF32])
    assert TF32 in map(str, spec.tvm_target().keys)
    again = parse(spec.tvm_target())
    assert again.archs == spec.archs
    assert all(device.rounds_to_tf32 for device in again.devices)
    assert not parse("cuda:sm_90a").device.rounds_to_tf32
    assert parse("cpu").permitting([TF32]) == parse("cpu")
