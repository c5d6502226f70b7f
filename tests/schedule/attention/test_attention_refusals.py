"""What is nearly attention is refused, with a reason."""

import pytest
from group_kernels import CPU, CUDA, group, tensor
from tvm import relax, tirx

from tests.schedule.attention.attention_graphs import attention, number, scaled, tensors
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.schedule.attention.template import Attention

op = relax.op


def softmax_over_queries(emit, s):
    return emit(op.nn.softmax(s, -2))


def scores_too(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return [op.matmul(emit(op.nn.softmax(scores, -1)), v), op.nn.relu(scores)]


def weights_too(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    weights = emit(op.nn.softmax(scores, -1))
    return [op.matmul(weights, v), weights]


def values_from_the_left(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    weights = emit(op.nn.softmax(scores, -1))
    return op.matmul(emit(op.permute_dims(v, [0, 1, 3, 2])), weights)


def other_maximum(emit, s):
    """Shifted by a maximum, but of something else than what is summed."""
    shifted = emit(op.subtract(s, emit(op.max(emit(op.abs(s)), -1, True))))
    exponentials = emit(op.exp(shifted))
    return emit(op.divide(exponentials, emit(op.sum(exponentials, -1, True))))


def other_sum(emit, s):
    """Divided by a sum of something else."""
    exponentials = emit(op.exp(emit(op.subtract(s, emit(op.max(s, -1, True))))))
    squares = emit(op.multiply(exponentials, exponentials))
    return emit(op.divide(exponentials, emit(op.sum(squares, -1, True))))


def squared(emit, p):
    return emit(op.multiply(p, p))


def without_softmax(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return op.matmul(emit(op.nn.relu(scores)), v)


def with_sinks(emit, s):
    """Two columns that take their share of the softmax are put before it and dropped behind it."""
    sinks = emit(op.full([1, 2, 9, 2], number(0.5), "float32"))
    weights = emit(op.nn.softmax(emit(op.concat([s, sinks], 3)), -1))
    return emit(op.strided_slice(weights, [3], [0], [9]))


EQUAL = tensors(1, 2, 9, 9, 9)
CASES = {
    "over queries": (EQUAL, attention(normal=softmax_over_queries), "second_product"),
    "scores leave": (EQUAL, scores_too, "scores_used_elsewhere"),
    "weights leave": (EQUAL, weights_too, "scores_used_elsewhere"),
    "summed over queries": (EQUAL, values_from_the_left, "second_product"),
    "another maximum": (EQUAL, attention(normal=other_maximum), "no_softmax"),
    "another sum": (EQUAL, attention(normal=other_sum), "no_softmax"),
    "sinks": (EQUAL, attention(normal=with_sinks), "more_than_scores"),
    "weights squared": (EQUAL, attention(weigh=squared), "weights_changed"),
    "no softmax": (EQUAL, without_softmax, "not_mine"),
    "large heads": (tensors(1, 1, 9, 9, 600), attention(score=scaled), "head_too_large"),
    "symbolic heads": (
        tensors(1, 1, 9, 9, tirx.Var("d", "int64")),
        attention(score=scaled),
        "symbolic_head",
    ),
}


@pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("case", CASES)
def test_refused(case, spec):
    params, body, code = CASES[case]
    refusal = Attention(spec is CUDA).claim(group(params, body, spec), spec.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert refusal.sentence.endswith(".")


@pytest.mark.parametrize(
    ("tokens", "width", "dtype"), [(96, 320, "float16"), (96, 320, "float32"), (9, 320, "float16")]
)
def test_wide_heads_have_kernels_of_their_own_on_tensor_cores(tokens, width, dtype):
    params = [tensor(n, 1, 1, tokens, width, dtype=dtype) for n in "qkv"]
    claim = Attention(True).claim(group(params, attention(), CUDA), CUDA.device)
    is_refused = isinstance(claim, Refusal)
    assert is_refused == (tokens == 96 and dtype == "float16")
    if is_refused:
        assert claim.code == "head_too_large"
        assert "The head dimension is 320; beyond 256, " in claim.sentence


def test_half_of_an_attention_is_not_claimed():
    def half(emit, q, k):
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [1, 0]))))
        return op.nn.softmax(emit(op.multiply(scores, number(2.0))), -1)

    members = group([tensor("q", 9, 8), tensor("k", 7, 8)], half)
    assert Attention(False).claim(members, CPU.device).code == "not_mine"
