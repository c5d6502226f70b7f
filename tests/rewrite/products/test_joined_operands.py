"""Products by weights that are computed of constants, joined: the constants stay packed."""

from collections import Counter

import numpy as np
import pytest
from relax_modules import module_of
from relax_modules import typed_module as module
from tvm import relax
from tvm.ir import GenericConst

from tvm_fusion import transform
from tvm_fusion.core.constants.evaluate import evaluate_exactly, operand_of
from tvm_fusion.core.constants.numpy_types import result_dtype
from tvm_fusion.core.decisions import recording
from tvm_fusion.frontend.operators.packed_weights import (
    Packing,
    RelaxOperators,
    dequantize,
    split_planes,
)

op = relax.op
RNG = np.random.default_rng()
X = relax.TensorType((3, 64), "float16")
FORMATS = {  # what a packing has besides 4 bits and a scale for each 16 of 64 columns
    "4 bits": {"zero": 8},
    "5 bits": {"planes": (4, 1)},
    "8 bits": {"planes": (8,)},
    "zeros": {"names": ("zeros",)},
    "minimums": {"names": ("minimums",)},
    "blocks of blocks": {"together": 2, "names": ("super_scales",)},
    "padded rows": {"columns": 60},
}


def packed(rows, planes=(4,), names=(), columns=64, **given):
    """A packing with arrays of random numbers."""
    packing = Packing(rows, columns, 16, planes, **given)
    numbers = RNG.integers(0, 1 << sum(planes), (rows, 4, 16)).astype("uint8")
    half = {n: RNG.standard_normal((rows, 4)).astype("float16") for n in ("scales", *names)}
    if "super_scales" in names:
        half["scales"] = RNG.integers(0, 16, (rows, 4)).astype("uint8")
        half["super_scales"] = half["super_scales"][:, ::2]
    return packing, {**split_planes(numbers, planes), **half}


def product(emit, x, packing, arrays):
    constants = {name: relax.const(array) for name, array in arrays.items()}
    w = dequantize(packing, constants, "float16", RelaxOperators(emit))
    return emit(op.matmul(x, emit(op.permute_dims(w, [1, 0]))))


def bindings(mod, name="main"):
    return [b for block in mod[name].body.blocks for b in block.bindings]


def calls(mod):
    return Counter(b.value.op.name for b in bindings(mod) if isinstance(b.value, relax.Call))


def weights(mod, name="main"):
    """What the products of a function are multiplied with, in numbers."""
    known, found = {}, []

    def number(expr):
        if isinstance(expr, relax.Tuple) and any(hash(field) in known for field in expr.fields):
            return list(map(number, expr.fields))
        return known[hash(expr)] if hash(expr) in known else operand_of(expr)

    for binding in bindings(mod, name):
        value = binding.value
        if isinstance(value, relax.Call):
            if value.op.name == "relax.matmul":
                found.append(known[hash(value.args[1])])
            elif value.op.name != "relax.split":
                exact = evaluate_exactly(value, list(map(number, value.args)))
                known[hash(binding.var)] = exact.astype(result_dtype(value))
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_packed_weights_are_joined(form):
    sizes = (6, 2, 4)
    several = [packed(rows, **FORMATS[form]) for rows in sizes]
    columns = FORMATS[form].get("columns", 64)
    x = relax.TensorType((3, columns), "float16")
    mod = module(lambda emit, x: [product(emit, x, *one) for one in several], x)
    with recording() as log:
        after = transform.JoinMatmuls()(mod)
    relax.analysis.well_formed(after)
    assert [d.code for d in log] == ["joined"]
    arrays = {n: np.concatenate([found[n] for _, found in several]) for n in several[0][1]}
    alone = module(lambda emit, x: [product(emit, x, packed(12, **FORMATS[form])[0], arrays)], x)
    assert calls(after) == calls(alone) + Counter({"relax.split": 1})
    (joined,) = weights(after)
    np.testing.assert_array_equal(joined, np.concatenate(weights(mod), axis=1))


def test_numbers_packed_along_the_columns_of_a_product():
    """As GPTQ's zero points are: rows of groups, columns eight to a word."""

    def zeros(emit, columns):
        words = relax.const(RNG.integers(0, 1 << 28, (2, columns // 8)).astype("int32"))
        shifts = relax.const(np.arange(0, 32, 4, dtype="int32").reshape(1, 1, 8))
        each = emit(op.right_shift(emit(op.expand_dims(words, 2)), shifts))
        digits = emit(op.bitwise_and(each, relax.const(np.array(15, "int32"))))
        numbers = emit(op.reshape(digits, (2, 1, columns)))
        scales = relax.const(RNG.standard_normal((2, 32, columns)).astype("float16"))
        scaled = emit(op.multiply(emit(op.astype(numbers, "float16")), scales))
        return emit(op.reshape(scaled, (64, columns)))

    def body(emit, x):
        return [emit(op.matmul(x, zeros(emit, columns))) for columns in (16, 24)]

    mod = module(body, X)
    after = transform.JoinMatmuls()(mod)
    assert calls(after)["relax.matmul"] == 1
    np.testing.assert_array_equal(weights(after)[0], np.concatenate(weights(mod), axis=1))


def test_functions_that_share_packed_weights_share_the_joined_ones():
    several = [packed(rows, zero=8) for rows in (6, 2)]
    constants = [(p, {n: relax.const(a) for n, a in arrays.items()}) for p, arrays in several]

    def body(emit, x):
        made = [dequantize(*c, "float16", RelaxOperators(emit)) for c in constants]
        return [emit(op.matmul(x, emit(op.permute_dims(w, [1, 0])))) for w in made]

    functions = {n: ([relax.Var("x", X)], body) for n in ("prefill", "decode")}
    after = transform.JoinMatmuls()(module_of(functions))
    held = []
    for name in functions:
        assert len(weights(after, name)) == 1
        operands = [a for b in bindings(after, name) for a in getattr(b.value, "args", ())]
        held.append({hash(a) for a in operands if isinstance(a, GenericConst) and a.ty.ndim == 3})
    assert held[0] == held[1]


def test_a_packed_weight_that_something_else_reads_stays():
    def body(emit, x):
        packing, arrays = packed(6, zero=8)
        constants = {name: relax.const(array) for name, array in arrays.items()}
        w = dequantize(packing, constants, "float16", RelaxOperators(emit))
        first = emit(op.matmul(x, emit(op.permute_dims(w, [1, 0]))))
        return [first, product(emit, x, *packed(2, zero=8)), emit(op.exp(w))]

    mod = module(body, X)
    with recording() as log:
        assert transform.JoinMatmuls()(mod).same_as(mod)
    assert [d.code for d in log] == ["weight_shared"]


@pytest.mark.parametrize(
    ("one", "other", "codes"),
    [
        ({"zero": 8}, {"planes": (8,)}, ["kind_differs"] * 2),
        ({"zero": 8}, {"zero": 7}, ["packed_apart"] * 2),  # one number that all elements share
        ({"zero": 8}, {"zero": 8, "size": 32}, ["packed_apart"] * 2),
    ],
)
def test_weights_of_different_packings_stay(one, other, codes):
    def body(emit, x):
        found = []
        for given in (one, other):
            packing, arrays = packed(6, **{k: v for k, v in given.items() if k != "size"})
            if "size" in given:
                packing = Packing(6, 64, 32, (4,), zero=8)
                arrays = {
                    n: a[:, ::2] if n == "scales" else a.reshape(6, 2, 16)
                    for n, a in arrays.items()
                }
            found.append(product(emit, x, packing, arrays))
        return found

    mod = module(body, X)
    with recording() as log:
        assert transform.JoinMatmuls()(mod).same_as(mod)
    assert [d.code for d in log] == codes
