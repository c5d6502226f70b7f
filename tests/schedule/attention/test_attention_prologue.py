"""Where rotary embeddings of queries and keys are computed: in attention, or once before it."""

import numpy as np
import pytest
from group_kernels import CPU, CUDA, group, tensor
from relax_modules import main_module
from tvm import relax

from tests.schedule.attention.attention_graphs import attention, heads, op, to_rows
from tvm_fusion import transform
from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.fusion.fuse import plan_module
from tvm_fusion.schedule.attention.template import Attention

COUNT, SHARED, SIZE = 8, 2, 64  # heads of queries, and of keys
HALF = "float16"


def rotated(emit, x, cos, sin):
    low, high = (emit(op.strided_slice(x, [3], [n], [n + SIZE // 2])) for n in (0, SIZE // 2))

    def times(x, table):
        return emit(op.multiply(x, table))

    first = emit(op.subtract(times(low, cos), times(high, sin)))
    second = emit(op.add(times(high, cos), times(low, sin)))
    return emit(op.concat([first, second], -1))


def spread(emit, x, rows):
    wide = emit(
        op.broadcast_to(emit(op.expand_dims(x, 2)), (1, SHARED, COUNT // SHARED, rows, SIZE))
    )
    return emit(op.reshape(wide, (1, COUNT, rows, SIZE)))


def grouped(emit, q, k, v, cos, sin):
    rows = int(q.ty.shape[2])
    q, k = rotated(emit, q, cos, sin), rotated(emit, k, cos, sin)
    k, v = (spread(emit, x, rows) for x in (k, v))
    return attention(finish=to_rows)(emit, q, k, v)


def decoder(emit, x, w, cos, sin):
    """The projections of a decoder layer, joined, and its attention."""
    split = emit(op.split(emit(op.matmul(x, w)), [COUNT * SIZE, (COUNT + SHARED) * SIZE], 2))
    parts = [emit(relax.TupleGetItem(split, i)) for i in range(3)]
    q, k, v = (heads(emit, y, n) for y, n in zip(parts, (COUNT, SHARED, SHARED), strict=True))
    return grouped(emit, q, k, v, cos, sin)


def half(name, *shape):
    return tensor(name, *shape, dtype=HALF)


def tables(rows):
    return [half(name, rows, SIZE // 2) for name in ("cos", "sin")]


def claimed(rows, spec):
    params = [half("q", 1, COUNT, rows, SIZE)]
    params += [half(name, 1, SHARED, rows, SIZE) for name in "kv"]
    return Attention(spec is CUDA).claim(
        group([*params, *tables(rows)], grouped, spec), spec.device
    )


@pytest.mark.parametrize(("rows", "is_fused"), [(16, True), (48, False), (2048, False)])
def test_keys_that_many_blocks_would_rotate_are_refused(rows, is_fused):
    found = claimed(rows, CUDA)
    assert isinstance(found, Claim if is_fused else Refusal)
    assert is_fused or found.code == "prologue_recomputed"


def test_cpus_pack_keys_once():
    params = [tensor("q", 1, COUNT, 300, SIZE)]
    params += [tensor(name, 1, SHARED, 300, SIZE) for name in "kv"]
    params += [tensor(name, 300, SIZE // 2) for name in ("cos", "sin")]
    assert isinstance(Attention(False).claim(group(params, grouped, CPU), CPU.device), Claim)


def planned(rows):
    params = [half("x", 1, rows, 512), half("w", 512, (COUNT + 2 * SHARED) * SIZE), *tables(rows)]
    target = CUDA.tvm_target()
    with target:
        mod = transform.Legalize()(main_module(params, decoder))
    (plan,) = plan_module(mod, target).values()
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "is_fused"), [(16, True), (2048, False)])
def test_the_planner_rotates_keys_once(rows, is_fused):
    plan = planned(rows)
    (claim,) = [c for c in plan.claims if c.template.name == "attention"]
    names = {v.name for v in claim.group.inputs}
    assert (names >= {"cos", "sin"}) == is_fused
    assert names.isdisjoint({"cos", "sin"}) or is_fused
    # Nothing is spread to the heads that share it in memory.
    sizes = [int(np.prod([int(d) for d in v.shape])) for v in claim.group.inputs]
    assert is_fused or sorted(sizes) == sorted(n * rows * SIZE for n in (COUNT, SHARED, SHARED))
    assert sum(c.launches for c in plan.claims) <= 3
