"""What no one reads is not computed: the numbers are the same, and what is read whole stays."""

import numpy as np
import pytest
import tvm
from relax_modules import typed_module as module
from tvm import relax, tirx

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.fusion.estimate import Estimator
from tvm_fusion.rewrite.parts.unread_parts import SkipUnreadParts

op = relax.op
RNG = np.random.default_rng(0)
N = tirx.Var("n", "int64")


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


def weight(*shape, dtype="float32"):
    return relax.const(RNG.standard_normal(shape).astype(dtype), dtype)


def first(x, axis=1):
    return op.take(x, relax.const(0, "int64"), axis=axis)


def part(x, axis, begin, end, stride=1):
    return op.strided_slice(x, [axis], [begin], [end], [stride])


def norm(x):
    return op.nn.layer_norm(x, weight(6), weight(6), axes=[-1])


def layer(emit, x, width=6):
    """One head of attention, and what is behind it."""
    q, k, v = (emit(op.matmul(x, weight(width, width))) for _ in range(3))
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
    y = emit(op.add(x, emit(op.matmul(emit(op.nn.softmax(scores)), v))))
    scale, shift = weight(width), weight(width)
    z = emit(op.nn.layer_norm(y, scale, shift, axes=[-1]))
    z = emit(op.nn.gelu(emit(op.matmul(z, weight(width, 2 * width)))))
    return emit(op.add(y, emit(op.matmul(z, weight(2 * width, width)))))


def product(emit, x):
    return emit(op.matmul(x, weight(6, 5)))


# The tensor's shape, what is computed of it, and the largest extents that its products have then.
CASES = {
    "first token": ((2, 7, 6), lambda e, x: first(e(norm(layer(e, x)))), (2, 7, 12)),
    "columns": ((7, 6), lambda e, x: part(product(e, x), 1, 1, 3), (7, 2)),
    "turns": ((7, 6), lambda e, x: part(product(e, x), 0, 1, 7, 4), (2, 5)),
    "two parts": (
        (7, 6),
        lambda e, x: (lambda y: [part(y, 0, 1, 3), part(y, 0, 2, 5)])(product(e, x)),
        (4, 5),
    ),
    "a part of a part": (
        (7, 6),
        lambda e, x: part(e(part(e(op.exp(product(e, x))), 0, 1, 7, 2)), 0, 1, 2),
        (1, 5),
    ),
    "moved": (
        (3, 7, 6),
        lambda e, x: part(e(op.permute_dims(product(e, x), [2, 0, 1])), 2, 2, 5),
        (3, 3, 5),
    ),
    "reshaped": (
        (7, 6),
        lambda e, x: part(e(op.reshape(product(e, x), (1, 7, 1, 5))), 1, 2, 4),
        (2, 5),
    ),
    "joined rows": (
        (3, 7, 6),
        lambda e, x: first(
            e(op.reshape(product(e, e(op.reshape(e(norm(x)), (21, 6)))), (3, 7, 5)))
        ),
        (3, 5),
    ),
    "unread piece": (
        (7, 6),
        lambda e, x: part(e(op.concat([product(e, x), product(e, x)], 0)), 0, 8, 14, 3),
        (2, 5),
    ),
    "broadcast": (
        (1, 6),
        lambda e, x: part(e(op.multiply(product(e, x), product(e, weight(7, 6)))), 0, 2, 4),
        (2, 5),
    ),
    "sums": ((4, 7, 6), lambda e, x: first(e(op.sum(product(e, x), [1])), 0), (1, 7, 5)),
    "kept sums": (
        (4, 7, 6),
        lambda e, x: part(e(op.max(product(e, x), [1], keepdims=True)), 2, 0, 2),
        (4, 7, 2),
    ),
    "batches": (
        (4, 7, 6),
        lambda e, x: part(e(op.matmul(x, e(op.permute_dims(x, [0, 2, 1])))), 0, 3, 4),
        (1, 7, 7),
    ),
}


def rewritten(mod):
    """The module after the pass, which has nothing left to do, and what it decided."""
    with recording() as log:
        after = SkipUnreadParts()(mod)
    relax.analysis.well_formed(after)  # raises
    assert SkipUnreadParts()(after).same_as(after)
    assert {d.code for d in log} <= {"unread_parts"}
    return after


def run(mod, *arrays):
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [f.numpy() for f in ([found] if hasattr(found, "numpy") else found)]


def values(mod, name):
    return [
        b.value
        for b in mod["main"].body.blocks[0].bindings
        if isinstance(b.value, relax.Call) and b.value.op.name == f"relax.{name}"
    ]


def shapes(mod, name="matmul"):
    return [tuple(map(int, call.ty.shape)) for call in values(mod, name)]


@pytest.mark.parametrize(("shape", "body", "extents"), CASES.values(), ids=[*CASES])
def test_a_part_is_computed_and_equal(shape, body, extents):
    mod = module(body, tensor(*shape))
    after = rewritten(mod)
    assert len(shapes(after)) <= len(shapes(mod))
    assert tuple(np.max(shapes(after), axis=0)) == extents
    assert sum(map(np.prod, shapes(after))) < sum(map(np.prod, shapes(mod)))
    x = RNG.standard_normal(shape).astype("float32")
    for new, old in zip(run(after, x), run(mod, x), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4 * np.abs(old).max())


def test_only_keys_and_values_are_of_all_tokens():
    after = rewritten(module(lambda emit, x: first(layer(emit, x)), tensor(2, 7, 6)))
    assert shapes(after) == [
        (2, 1, 6),
        (2, 7, 6),
        (2, 7, 6),
        (2, 1, 7),
        (2, 1, 6),
        (2, 1, 12),
        (2, 1, 6),
    ]


def test_queries_of_attention():
    def body(emit, q, k, v):
        return part(emit(op.nn.attention(q, k, v)), 1, 4, 5)

    after = rewritten(module(body, *[tensor(2, 7, 3, 4)] * 3))
    (attention,) = values(after, "nn.attention")
    assert [int(o.ty.shape[1]) for o in attention.args] == [1, 7, 7]


def test_a_symbolic_batch_stays_symbolic():
    after = rewritten(module(lambda emit, x: first(product(emit, x)), tensor(N, 7, 6)))
    assert [int(e) for e in [*values(after, "matmul")[0].ty.shape][1:]] == [1, 5]


WHOLE = {
    "read by another": lambda e, x: (lambda y: [y, first(y, 0)])(product(e, x)),
    "along the rows of a norm": lambda e, x: part(e(norm(x)), 1, 0, 2),
    "along the rows of softmax": lambda e, x: part(e(op.nn.softmax(x)), 1, 0, 2),
    "along a sum": lambda e, x: part(e(op.cumsum(product(e, x), 0)), 0, 0, 2),
    "of joined axes": lambda e, x: part(e(op.reshape(product(e, x), (35,))), 0, 0, 7),
    "of cheap operators": lambda e, x: part(e(op.exp(x)), 0, 0, 2),
    "of what is given": lambda e, x: op.matmul(e(part(x, 0, 0, 2)), weight(6, 5)),
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=[*WHOLE])
def test_what_is_read_whole_stays(body):
    mod = module(body, tensor(7, 6))
    assert rewritten(mod).same_as(mod)


def test_causal_attention_counts_queries_from_the_end():
    def body(emit, q, k, v):
        return part(emit(op.nn.attention(q, k, v, causal_mask="BottomRight")), 1, 4, 5)

    mod = module(body, *[tensor(2, 7, 3, 4)] * 3)
    assert rewritten(mod).same_as(mod)


def test_an_extent_that_may_be_one_is_not_cut():
    def body(emit, x, y):
        return part(emit(op.add(x, emit(op.matmul(y, weight(6, 5))))), 0, 2, 4)

    mod = module(body, tensor(7, 5), tensor(N, 6))
    assert rewritten(mod).same_as(mod)


def test_the_stage_takes_it_by_price():
    """The owner: a layer of which one token is read has more than twice the operations without."""

    def body(emit, x):
        return first(layer(emit, x, 64))

    mod, target = module(body, tensor(1, 32, 64)), parse("cpu:x86-64-v3")
    costs = []
    with target.tvm_target():
        for without in ((), ("unread_parts",)):
            after = transform.Rewrite(without=without)(mod)
            costs.append(Estimator(target.tvm_target()).module(after))
    assert costs[0].flops * 2 < costs[1].flops
    assert costs[0].us < costs[1].us
