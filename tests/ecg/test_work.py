"""Counts against formulas: arithmetic, compulsory traffic, cheapness."""

import pytest
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.ecg import work
from tvm_fusion.ecg.work import (
    assumed_flops,
    at,
    bytes_of,
    flops,
    is_cheap,
)

OP, NN = relax.op, relax.op.nn
N = tirx.Var("n", "int64")


def kernel(operator, *shapes, dtypes=(), target="cpu"):
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtypes[i] if dtypes else "float32"))
        for i, shape in enumerate(shapes)
    ]
    with parse(target).tvm_target():
        mod = transform.Legalize()(main_module(params, operator(*params)))
    (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return func


@pytest.mark.parametrize(
    ("func", "operations"),
    [
        (kernel(OP.add, (5, 7), (7,)), 35),
        (kernel(OP.matmul, (5, 7), (7, 9)), 2 * 5 * 7 * 9),
        (kernel(OP.exp, (5, 7)), 16 * 35),
        (kernel(OP.sqrt, (5, 7)), 4 * 35),
        (kernel(lambda x: OP.sum(x, 1), (5, 7)), 35),
        (kernel(lambda x: OP.permute_dims(x), (5, 7)), 0),
        (kernel(lambda x: OP.strided_slice(x, [0], [1], [3]), (9, 7)), 0),
        (kernel(lambda x, y: OP.concat([x, y], 0), (3, 7), (2, 7)), 0),
        (
            kernel(lambda x, i: OP.take(x, i, 0), (100, 7), (3,), dtypes=("float32", "int64")),
            0,
        ),
        # Sum, mean, centred squares (two differences and a product each), 1 / sqrt, result.
        (
            kernel(lambda x, w, b: NN.layer_norm(x, w, b, [-1]), (5, 7), (7,), (7,)),
            35 + 5 * 4 + 35 * 4 + 5 * (4 + 1 + 4) + 35 * 4,
        ),
        (
            kernel(lambda x, w: NN.conv2d(x, w, padding=1), (1, 8, 9, 9), (4, 8, 3, 3)),
            2 * 4 * 81 * 8 * 9,
        ),
        (kernel(OP.matmul, (5, 7), (7, 9), dtypes=("float16",) * 2), 630),
        # A choice.
        (kernel(OP.where, (5, 7), (5, 7), (5, 7), dtypes=("bool", "int8", "int8")), 35),
        # Foreign code by address.
        (kernel(OP.sort, (5, 700), dtypes=("int32",)), 0),
    ],
)
def test_counts(func, operations):
    assert at(flops(func)) == operations


def test_symbolic():
    func = kernel(OP.matmul, (N, 7), (7, 9))
    assert not isinstance(flops(func), int)
    assert at(flops(func)) == 2 * 128 * 63
    assert at(flops(func), default=3) == at(flops(func), {"n": 3}) == 2 * 3 * 63


def test_sizes():
    assert bytes_of((3, 5), "float16") == 30
    assert bytes_of((3,), "int4") == 2
    assert bytes_of((3,), "bool") == 3
    assert bytes_of((), "float64") == 8
    assert at(bytes_of((N, 5), "float32"), {"n": 2}) == 40
    # Larger than an int32.
    assert bytes_of((2**20, 2**20), "float32") == 2**42


def test_an_extent_that_the_assumed_dimension_makes_negative_counts_as_one():
    frames = (N - 512) // 160 + 1
    assert at(frames) == 1
    assert at(bytes_of((N, frames, frames), "float32")) == 128 * 4
    assert at(frames, {"n": 0}) == -3  # no assumption
    assert at(N // 256) == 1
    assert at(N // 256, {"n": 200}) == 0
    conv = kernel(
        lambda x, w: NN.conv1d(x, w, strides=160), (1, 1, N), (5, 1, 512), dtypes=("float32",) * 2
    )
    assert assumed_flops(conv) == 2 * 5 * 512
    assert not is_cheap(conv)


@pytest.mark.parametrize(
    ("operator", "shapes", "cheap"),
    [
        (OP.add, [(5, 7), (5, 7)], True),
        (NN.relu, [(N, 7)], True),
        (OP.divide, [(5, 7), (7,)], True),
        (lambda x: OP.reshape(x, (35,)), [(5, 7)], True),
        (lambda x: OP.broadcast_to(x, (5, 7)), [(7,)], True),
        (OP.exp, [(5, 7)], False),
        (NN.gelu, [(5, 7)], False),
        (lambda x: OP.max(x, 1), [(5, 7)], False),
        (OP.matmul, [(5, 7), (7, 3)], False),
        (NN.softmax, [(5, 7)], False),
        (lambda x: OP.cumsum(x, 1), [(5, 7)], False),
    ],
)
def test_cheap(operator, shapes, cheap):
    assert is_cheap(kernel(operator, *shapes)) is cheap


def test_a_sort_is_not_cheap():
    assert not is_cheap(kernel(OP.sort, (5, 7), dtypes=("int32",)))


def test_a_function_is_surveyed_once_to_tell_whether_it_is_cheap(monkeypatch):
    surveyed = []
    survey = work._survey
    monkeypatch.setattr(work, "_survey", lambda func: surveyed.append(func) or survey(func))
    func = kernel(OP.add, (5, 7), (5, 7))
    assert is_cheap(func)
    once = len(surveyed)
    assert all(is_cheap(func) for _ in range(3))
    assert len(surveyed) == once > 0


@pytest.mark.parametrize("operator", [OP.sort, OP.argsort])
def test_sorts_for_a_gpu_have_finite_work(operator):
    """TVM's loop over positions that a binary search has found."""
    func = kernel(operator, (5, 7), dtypes=("int32",), target="cuda:sm_90a")
    assert at(flops(func)) >= 0
