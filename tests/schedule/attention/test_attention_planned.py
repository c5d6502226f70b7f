"""The planner finds attention in graphs: one group, one kernel."""

import numpy as np
import pytest
import tvm
from group_kernels import CPU, CUDA, tensor
from relax_modules import main_module as module
from tvm import relax

from tests.schedule.attention.attention_graphs import (
    added,
    attention,
    causal,
    guarded,
    heads,
    number,
    projected,
    rotated,
    scaled,
    tensors,
    to_rows,
    written_out,
)
from tvm_fusion import transform
from tvm_fusion.fusion.fuse import plan_module

op = relax.op


def planned(params, body, spec):
    target = spec.tvm_target()
    with target:
        mod = transform.Legalize()(module(params, body))
    (plan,) = plan_module(mod, target).values()
    return plan


def templates(plan):
    return [claim.template.name for claim in plan.claims]


def weight(*shape):
    return number(np.random.default_rng(0).standard_normal(shape))


def encoder(emit, x, mask):
    """Projections of one input, attention under a mask, projection of the result."""
    q, k, v = (
        heads(emit, emit(op.add(emit(op.matmul(x, weight(64, 64))), weight(64))), 4)
        for _ in range(3)
    )
    rows = attention(score=added, weigh=lambda emit, p, mask: guarded(emit, p), finish=to_rows)(
        emit, q, k, v, mask
    )
    return op.matmul(rows, weight(64, 64))


GRAPHS = {
    "plain": (tensors(1, 2, 40, 50, 32), attention(score=scaled)),
    "written out": (tensors(1, 2, 40, 50, 32), attention(score=scaled, normal=written_out)),
    "causal": (tensors(1, 2, 19, 33, 32), attention(score=causal)),
    "heads in rows": ([tensor(name, 2, 40, 96) for name in "qkv"], projected),
    "rotary": (
        [*tensors(1, 3, 14, 14, 32), tensor("c", 1, 1, 14, 32), tensor("s", 1, 1, 14, 32)],
        rotated,
    ),
}


@pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_one_group(graph, spec):
    assert templates(planned(*GRAPHS[graph], spec)) == ["attention"]


@pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
def test_projections_keep_their_epilogues(spec):
    plan = planned([tensor("x", 2, 24, 64), tensor("mask", 2, 1, 1, 24)], encoder, spec)
    # The projections of q, k and v are one launch.
    assert sorted(templates(plan)) == ["attention", "contraction", "grouped_gemm"]
    (claim,) = [c for c in plan.claims if c.template.name == "attention"]
    assert all(v.shape != [64] for v in claim.group.inputs)


def decoded(emit, x, w, cos, sin, k, v):
    """A token's heads, rotated in half precision; scores of them in float32."""
    q = heads(emit, emit(op.matmul(x, w)), 16)
    low, high = (emit(op.strided_slice(q, [3], [n], [n + 64])) for n in (0, 64))
    turned = emit(op.concat([emit(op.negative(high)), low], 3))
    q = emit(op.add(emit(op.multiply(q, cos)), emit(op.multiply(turned, sin))))
    wide = [emit(op.astype(x, "float32")) for x in (q, k, v)]
    wide[0] = emit(op.multiply(wide[0], number(0.2)))
    return attention()(emit, *wide)


def test_a_rotation_goes_into_the_product_before_it():
    """What makes it wider goes into attention: that would be written, and read again."""
    shapes = {"x": (1, 1, 2048), "w": (2048, 2048), "c": (128,), "s": (128,)}
    shapes |= {name: (1, 16, 1000, 128) for name in "kv"}
    params = [tensor(name, *shape, dtype="float16") for name, shape in shapes.items()]
    plan = planned(params, decoded, CUDA)
    assert templates(plan) == ["contraction", "attention"]
    product, rest = plan.groups
    assert [v.dtype for v in product.outputs] == ["float16"]
    assert not {"c", "s"} & {v.name for v in rest.inputs}


def test_heads_of_joined_rows_are_read_where_they_lie():
    """64 blocks of eight warps are no half of a GPU: no product transposes heads for attention."""

    def body(emit, x, w):
        parts = emit(op.split(emit(op.matmul(x, w)), 3, -1))
        q, k, v = (heads(emit, emit(parts[i]), 8) for i in range(3))
        return attention(finish=to_rows)(emit, q, k, v)

    shapes = {"x": (1, 1024, 640), "w": (640, 1920)}
    params = [tensor(name, *shape, dtype="float16") for name, shape in shapes.items()]
    product, rest = planned(params, body, CUDA).claims
    assert len(product.group) == 1
    assert rest.parallelism == 8 * 1024 // 64  # of two consumers a block


def test_wide_heads_are_products_and_a_softmax_with_what_stands_between():
    """No tensor cores for FlashAttention: scale and mask go into the kernels that are left."""
    q, k, v = tensors(2, 4, 96, 96, 320, dtype="float16")
    mask = tensor("mask", 2, 1, 1, 96, dtype="float16")

    def body(emit, q, k, v, mask):
        def score(emit, s, mask):
            return emit(op.add(emit(op.multiply(s, number(0.05, "float16"))), mask))

        return attention(score=score)(emit, q, k, v, mask)

    plan = planned([q, k, v, mask], body, CUDA)
    assert templates(plan) == ["contraction", "rows", "contraction"]
    assert sum(claim.launches for claim in plan.claims) == 3


def test_a_mask_that_others_read_stays_apart():
    def twice(emit, q, k, v, mask):
        wide = emit(op.multiply(emit(op.subtract(mask, number(1.0))), number(1e4)))
        body = attention(score=added)
        return op.add(emit(body(emit, q, k, v, wide)), emit(body(emit, k, q, v, wide)))

    params = [*tensors(1, 2, 40, 40, 32), tensor("mask", 1, 1, 40, 40)]
    names = templates(planned(params, twice, CPU))
    assert names.count("attention") == 2


@pytest.mark.slow
def test_the_whole_pipeline_keeps_the_claim():
    params, body = GRAPHS["heads in rows"]
    target = CPU.tvm_target()
    mod = module(params, body)
    with target:
        mod = tvm.relax.get_pipeline("tvm_fusion", target=target)(mod)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 40, 96)).astype("float32") for _ in range(3))
    built = tvm.compile(mod, target, relax_pipeline=None, tir_pipeline="tvm_fusion")
    machine = relax.VirtualMachine(built, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, (q, k, v))).numpy()
    split = [x.reshape(2, 40, 3, 32).transpose(0, 2, 1, 3).astype("float64") for x in (q, k, v)]
    scores = split[0] @ split[1].swapaxes(-1, -2) / 8
    e = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (e / e.sum(-1, keepdims=True)) @ split[2]
    expected = expected.transpose(0, 2, 1, 3).reshape(2, 40, 96)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
