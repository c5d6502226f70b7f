"""Small products of different operands in one launch, on CPUs."""

import numpy as np
import pytest
import tvm
from group_kernels import CPU, CUDA, group, tensor
from relax_modules import main_module
from rounding import assert_products_close
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.device import parse
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.schedule.contraction.cpu.templates.grouped import GroupedGemm

op = relax.op


def products(emit, *operands):
    """Multiply pairs of operands."""
    return [op.matmul(a, b) for a, b in zip(operands[::2], operands[1::2], strict=True)]


def claimed(params, body, spec=CPU):
    return GroupedGemm().claim(group(params, body, spec), spec.device)


def compiled(params, body):
    """Compile a graph; also count the PrimFuncs that it calls."""
    target = parse("cpu").tvm_target()
    mod = main_module(params, body)
    with target:
        lowered = relax_pipeline(lower=False)(mod)
    kernels = [f for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    built = tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    return relax.VirtualMachine(built, tvm.cpu())["main"], len(kernels)


def test_products_of_other_shapes_are_one_kernel():
    rng = np.random.default_rng()
    w, v = (rng.standard_normal(s).astype("float32") for s in ((65, 48), (33, 17)))
    n = tirx.Var("n", "int64")
    params = [tensor("x", n, 65), tensor("y", 17, 33), tensor("z", 21, 40), tensor("u", 40, 37)]

    def body(emit, x, y, z, u):
        one = op.matmul(x, relax.const(w))
        two = op.nn.relu(emit(op.matmul(y, relax.const(v))))
        return [one, two, op.matmul(z, u)]

    main, kernels = compiled(params, body)
    assert kernels == 1
    x, y, z, u = (
        rng.standard_normal(s).astype("float32") for s in ((29, 65), (17, 33), (21, 40), (40, 37))
    )
    results = [r.numpy() for r in main(*(tvm.runtime.tensor(a) for a in (x, y, z, u)))]
    assert_products_close(results[0], x, w)
    assert np.all(results[1] >= 0)
    positive = results[1] > 0
    exact = y.astype("float64") @ v
    found = np.where(positive, results[1], np.minimum(exact, 0))
    assert_products_close(found, y, v)
    assert_products_close(results[2], z, u)


def test_large_products_keep_their_launches():
    given = [tensor(name, 300, 300) for name in "abcd"]
    refusal = claimed(given, products)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "large_products"


def test_what_depends_on_each_other_is_no_group():
    def chain(emit, a, b, c):
        return op.matmul(emit(op.matmul(a, b)), c)

    refusal = claimed([tensor(name, 20, 20) for name in "abc"], chain)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "products_in_a_row"


def test_a_constant_that_two_products_multiply():
    """It is packed for each kernel's rows."""
    w = np.random.default_rng().standard_normal((30, 40)).astype("float32")
    params = [tensor("x", 20, 30), tensor("y", 3, 30)]
    x, y = (np.random.default_rng().standard_normal((n, 30)).astype("float32") for n in (20, 3))

    def body(emit, x, y):
        shared = relax.const(w)
        return [op.matmul(x, shared), op.matmul(y, shared)]

    main, kernels = compiled(params, body)
    assert kernels == 2
    results = main(*(tvm.runtime.tensor(a) for a in (x, y)))
    for got, left in zip(results, (x, y), strict=True):
        assert_products_close(got.numpy(), left, w)


def test_products_that_read_one_input():
    """What both read in place is no obstacle."""
    shared = tensor("x", 20, 30)

    def body(emit, x, a, b):
        return [op.matmul(x, a), op.matmul(x, emit(op.permute_dims(b)))]

    found = claimed([shared, tensor("a", 30, 17), tensor("b", 40, 30)], body)
    assert isinstance(found, Claim)
    assert found.launches == 1
    assert len(found.details.gemms) == 2


@pytest.mark.parametrize("axis", [0, 1])
def test_concatenated_products_write_in_place(axis):
    """Beside a tensor that no product makes."""
    given = [(20, 30), (30, 17), (20, 25), (25, 17), (20, 17)]
    params = [tensor(f"x{i}", *shape) for i, shape in enumerate(given)]

    def body(emit, *x):
        one, two = (emit(op.matmul(a, b)) for a, b in ((x[0], x[1]), (x[2], x[3])))
        return op.nn.relu(emit(op.concat([one, x[4], two], axis)))

    main, kernels = compiled(params, body)
    assert kernels == 1
    x = [np.random.default_rng().standard_normal(s).astype("float32") for s in given]
    found = main(*(tvm.runtime.tensor(a) for a in x)).numpy()
    one, other, two = np.split(found, 3, axis)
    np.testing.assert_array_equal(other, np.maximum(x[4], 0))
    for got, a, b in ((one, x[0], x[1]), (two, x[2], x[3])):
        assert np.all(got >= 0)
        exact = a.astype("float64") @ b
        assert_products_close(np.where(got > 0, got, np.minimum(exact, 0)), a, b)


def test_not_for_gpus():
    given = [tensor(name, 20, 20) for name in "abcd"]
    assert isinstance(claimed(given, products, CUDA), Refusal)
