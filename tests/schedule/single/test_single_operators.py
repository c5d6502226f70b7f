"""The fallback claims any one operator, and schedules also what no program expresses."""

import numpy as np
import pytest
from group_kernels import CPU, CUDA, arrays, close, group, kernel, run, tensor
from tvm import relax, s_tir, te

from tvm_fusion.core.contract.template import Claim
from tvm_fusion.core.decisions import recording
from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.single.template import Single

op = relax.op
SPECS = pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
CASES = {
    "map": ([tensor("x", 7, 33)], lambda emit, x: op.exp(x), lambda x: [np.exp(x)]),
    "several stages": (
        [tensor("x", 7, 33)],
        lambda emit, x: op.nn.softmax(x),
        lambda x: [np.exp(x) / np.exp(x).sum(-1, keepdims=True)],
    ),
    "tensor passed twice": (
        [tensor("x", 7, 33)],
        lambda emit, x: op.multiply(x, x),
        lambda x: [x * x],
    ),
    "scatter": (
        [tensor("x", 3, 7), tensor("i", 2, 7, dtype="int64"), tensor("u", 2, 7)],
        lambda emit, x, i, u: op.scatter_elements(x, i, u, axis=0, reduction="add"),
        None,
    ),
}


@SPECS
@pytest.mark.parametrize("case", CASES)
def test_always_claimed_and_scheduled(case, spec):
    params, body, _ = CASES[case]
    members = group(params, body, spec)
    with recording() as decisions:
        claim, func = kernel(Single(spec is CUDA), members, spec)
    assert claim.launches >= 1
    # What has no loops to reorder keeps plain loops on a CPU, and that is recorded.
    plain = [d for d in decisions if d.code == "unscheduled"]
    assert bool(plain) == (spec is CPU and case == "scatter")
    if spec is CUDA:
        assert "threadIdx.x" in func.script()


@pytest.mark.parametrize("case", CASES)
def test_numbers(case):
    params, body, reference = CASES[case]
    members = group(params, body)
    _, func = kernel(Single(False), members, CPU)
    inputs = arrays(params)
    if reference is None:
        expected = inputs["x"].astype("float64")
        for row, column in np.ndindex(inputs["i"].shape):
            expected[inputs["i"][row, column], column] += inputs["u"][row, column]
        expected = [expected]
    else:
        expected = reference(*(x.astype("float64") for x in inputs.values()))
    close(run(func, members, inputs), expected)


def test_half_precision_product():
    params = [tensor("x", 9, 16, dtype="float16"), tensor("w", 16, 12, dtype="float16")]
    members = group(params, lambda emit, x, w: op.matmul(x, w))
    _, func = kernel(Single(False), members, CPU)
    inputs = arrays(params)
    close(run(func, members, inputs), [inputs["x"].astype("float64") @ inputs["w"]], 2e-3)


def test_launches_follow_the_structure():
    softmax, exp = (
        group([tensor("x", 7, 33)], lambda emit, x, f=f: f(x)) for f in (op.nn.softmax, op.exp)
    )
    launches = [Single(False).claim(g, CPU.device).launches for g in (softmax, exp)]
    assert launches[1] == 1
    assert launches[0] > 1


def test_two_operators_are_refused():
    members = group([tensor("x", 7)], lambda emit, x: op.exp(emit(op.tanh(x))))
    answer = Single(False).claim(members, CPU.device)
    assert not isinstance(answer, Claim)
    assert answer.code == "one_operator_only"


@pytest.mark.parametrize("reduction", ["mul", "max"])
def test_zeros_are_computed_in_an_operator_where_they_can_be_merged(reduction):
    """TVM's scatters have buffers that begin at a symbol, which FuseTIR does not merge."""

    def body(emit, i, u):
        return emit(op.scatter_elements(emit(op.zeros((3, 7), "int8")), i, u, 0, reduction))

    members = group([tensor("i", 2, 7, dtype="int64"), tensor("u", 2, 7, dtype="int8")], body)
    template = Single(False)
    claim = template.claim(members, CPU.device)
    assert not isinstance(claim, Claim) or template.emit(claim, CPU.tvm_target()).kernels


@SPECS
@pytest.mark.parametrize("read", [0, 1])
def test_results_that_nothing_reads_are_workspaces(read, spec):
    """A GPU kernel cannot allocate them."""

    def extremes(x):
        return te.compute(x.shape, lambda *i: (x(*i) + 1, x(*i) * 2), name="two")

    def body(emit, x):
        both = emit.__self__.emit_te(extremes, x)
        return emit(relax.TupleGetItem(both, read))

    members = group([tensor("x", 7, 33)], body, spec)
    template = Single(spec is CUDA)
    claim = template.claim(members, spec.device)
    emission = template.emit(claim, spec.tvm_target())
    (made,) = emission.kernels
    kinds = ["workspace", "output"] if read else ["output", "workspace"]
    assert [slot.kind for slot in made.writes] == kinds
    (unread,) = emission.workspaces
    assert [int(d) for d in unread.shape.values] == [7, 33]
    assert len(made.func.params) == 3
    allocated = [b for block in find(made.func.body, s_tir.SBlock) for b in block.alloc_buffers]
    assert all(b.scope() != "global" for b in allocated)
