"""Products of ragged rows on a CPU: blocks of rows of each group, and of those of none."""

import numpy as np
import pytest
import tvm
from group_kernels import CPU, built, close, group, kernel, run
from tvm import tirx

from tests.schedule.contraction.ragged_graphs import drawn, ends_of, expected, experts, gated
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.schedule.contraction.cpu.ragged_rows import RaggedTasks
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.stage.install import gather

pytestmark = pytest.mark.slow_beyond(2)

TEMPLATE = CpuContraction()


def made(m, k, n, finish, dtype, weight=None):
    """Parameters, the group, and its only kernel."""
    params, body = experts(m, 4, k, n, finish, dtype=dtype, weight=weight)
    members = group(params, body, CPU)
    return params, members, kernel(TEMPLATE, members, CPU)[1]


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_each_row_is_multiplied_by_its_groups_matrix(dtype):
    params, members, func = made(157, 51, 83, None, dtype)
    for ends in ends_of(157):
        inputs = drawn(params, ends)
        close(run(func, members, inputs, CPU), expected(None, **inputs))


def test_a_single_group():
    """An ordinary product, of which some rows are zeros."""
    params, body = experts(37, 1, 40, 48, dtype="float32")
    members = group(params, body, CPU)
    _, func = kernel(TEMPLATE, members, CPU)
    for ends in ([20], [0], [37]):
        inputs = drawn(params, ends)
        close(run(func, members, inputs, CPU), expected(None, **inputs))


@pytest.mark.slow
def test_any_number_of_rows():
    _, members, func = made(tirx.Var("rows", "int64"), 51, 83, None, "float32")
    static, _ = experts(5, 4, 51, 83, dtype="float32")
    for ends in ([1, 1, 4, 4], [0, 5, 5, 5]):
        inputs = drawn(static, ends)
        close(run(func, members, inputs, CPU), expected(None, **inputs))


def test_parts_of_columns_of_constant_weights():
    """Packed at compile time, with results of two columns each."""
    weight = np.random.default_rng().standard_normal((4, 96, 40)).astype("float32")
    params, body = experts(61, 4, 40, 96, gated, dtype="float32", weight=weight)
    members = group(params, body, CPU)
    claim = TEMPLATE.claim(members, CPU.device)
    assert isinstance(claim, Claim), claim
    assert claim.details.config.gemm.b_source == "packed"
    assert claim.flops < 20 * 61 * 40 * 96  # of one matrix for each row, read across its rows
    emission = TEMPLATE.emit(claim, CPU.tvm_target())
    ((position, packing),) = emission.packing.items()
    packed = gather(packing, members.inputs[position].constant.value)
    for ends in ends_of(61):
        inputs = drawn(params, ends) | {"w": weight}
        given = [inputs.get(v.name) for v in members.inputs]
        given[position] = packed
        result = tvm.runtime.tensor(np.full((61, 48), np.nan, "float16"))
        tensors = [x if x is packed else tvm.runtime.tensor(x) for x in given]
        built(emission.kernels[0].func, CPU)(*tensors, result)
        close([result.numpy()], expected(gated, **inputs), 2e-3)


@pytest.mark.slow
def test_no_rows_behind_the_last_group_are_left_out(monkeypatch):
    """A mistake: tasks end with the last group."""
    monkeypatch.setattr(RaggedTasks, "extent", lambda self, axis: axis.extent)
    params, members, func = made(61, 51, 83, None, "float32")
    inputs = drawn(params, [7, 7, 30, 50])
    with pytest.raises(AssertionError):
        close(run(func, members, inputs, CPU), expected(None, **inputs))
