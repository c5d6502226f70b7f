"""Sorts by ranks: of any type, axis and length, ties in their order, the first of long rows."""

import numpy as np
import pytest
from group_kernels import CPU, CUDA, group, kernel, run, tensor
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.sort.template import RankSort

pytestmark = pytest.mark.slow_beyond(4)

op = relax.op
SPECS = CPU, CUDA


def order(x, axis, falls):
    """Places of a stable sort."""
    return np.argsort(-x.astype("int64") if falls else x, axis, kind="stable")


def drawn(shape, dtype):
    """Numbers of which many are equal, and the largest and smallest there are."""
    x = np.random.default_rng().integers(0, 7, shape).astype(dtype)
    if x.size > 3:
        x.flat[[1, x.size // 2]] = np.iinfo(dtype).max
        x.flat[[2, x.size - 1]] = np.iinfo(dtype).min + (dtype == "int64")
    return x


def sorted_by_kernel(x, body, spec=CUDA):
    members = group([tensor("x", *x.shape, dtype=str(x.dtype))], body, spec)
    claim, func = kernel(RankSort(spec is CUDA), members, spec)
    assert claim.launches == 1
    return claim.details.config, run(func, members, {"x": x}, spec)


SHAPES = [((3, 1), 1), ((37, 7), 1), ((2, 77, 3), 1), ((5, 130), -1)]


@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize(
    ("shape", "axis", "spec"),
    [(*case, spec) for spec in SPECS for case in SHAPES]
    + [((1030,), 0, CUDA), ((411,), 0, CPU), ((37, 411), 1, CPU)],
)
def test_places(shape, axis, dtype, falls, spec):
    x = drawn(shape, dtype)
    _, (places,) = sorted_by_kernel(x, lambda emit, x: op.argsort(x, axis, falls, "int32"), spec)
    np.testing.assert_array_equal(places, order(x, axis, falls))


@pytest.mark.parametrize("spec", SPECS, ids=["cpu", "cuda"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("parts", ["both", "values", "indices"])
def test_the_first(parts, k, spec):
    x = drawn((6, 45), "int32")
    _, found = sorted_by_kernel(x, lambda emit, x: op.topk(x, k, 1, parts, True, "int64"), spec)
    places = order(x, 1, True)[:, :k]
    right = {"values": [np.take_along_axis(x, places, 1)], "indices": [places]}
    right["both"] = right["values"] + right["indices"]
    for one, other in zip(found, right[parts], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wanted", [0, 1])
def test_the_result_that_is_read(wanted):
    x = drawn((6, 45), "int32")
    _, (found,) = sorted_by_kernel(
        x, lambda emit, x: emit(op.topk(x, 4, 1, "both", True, "int64"))[wanted]
    )
    places = order(x, 1, True)[:, :4]
    right = places if wanted else np.take_along_axis(x, places, 1)
    np.testing.assert_array_equal(found, right)


@pytest.mark.slow
def test_long_rows_in_chunks_and_slices():
    x = drawn((9001,), "int64")
    config, (values,) = sorted_by_kernel(x, lambda emit, x: op.sort(x))
    assert config.rounds > 1
    assert config.slices > 1
    np.testing.assert_array_equal(values, np.sort(x))


def test_many_rows_are_a_grid_that_devices_take():
    members = group([tensor("x", 70000, 40, dtype="int32")], lambda e, x: op.argsort(x), CUDA)
    _, func = kernel(RankSort(is_gpu=True), members, CUDA)
    bound = [x for x in find(func.body, tirx.For) if x.thread_binding is not None]
    extents = {x.thread_binding.thread_tag: int(x.extent) for x in bound}
    assert extents["blockIdx.x"] == 70000
    assert extents["blockIdx.y"] == 1  # which ends at 65,535


@pytest.mark.parametrize(
    ("body", "keys"),
    [(op.argsort, 512), (lambda x: op.topk(x, 3, ret_type="indices"), 128)],
    ids=["argsort", "topk"],
)
def test_long_rows_of_a_cpu_are_left_to_tvm(body, keys):
    found = [
        RankSort(is_gpu=False).claim(
            group([tensor("x", 4, n, dtype="int32")], lambda e, x: body(x), CPU), CPU.device
        )
        for n in (keys, keys + 1)
    ]
    assert [isinstance(one, Refusal) for one in found] == [False, True]


def test_rows_that_are_merged_are_left_to_tvm():
    for shape in [(1, 40000), (4000, 2000)]:
        members = group([tensor("x", *shape, dtype="int32")], lambda e, x: op.argsort(x), CUDA)
        assert isinstance(RankSort(is_gpu=True).claim(members, CUDA.device), Refusal)
