"""Keys that a position of the cache hides: left out, whatever lies in them."""

import group_kernels
import numpy as np
import pytest
from group_kernels import CPU, close, group, kernel, run, tensor
from tvm import relax

from tests.schedule.attention.attention_graphs import added, arange, attention, n, op, reference
from tvm_fusion.schedule.attention.template import Attention

HEADS, KEYS, PANEL = 7, 192, 64


def mask(emit, s, position):
    """Let query i of each of the heads that share keys see those up to ``position + i``."""
    row = emit(op.reshape(emit(op.add(emit(arange(n)), position)), (n, 1)))
    key = emit(op.reshape(emit(arange(KEYS)), (1, KEYS)))
    seen = emit(op.less_equal(key, row))
    found = emit(op.where(seen, relax.const(0.0), relax.const(-np.inf, "float32")))
    found = emit(op.broadcast_to(emit(op.reshape(found, (1, n, KEYS))), (HEADS, n, KEYS)))
    return added(emit, s, emit(op.reshape(found, (1, HEADS * n, KEYS))))


@pytest.fixture(scope="module")
def compiled():
    """Rows of a tile divide no symbolic number of queries, of which there are at least as many."""
    rows = [tensor(name, 2, count, 16) for name, count in (("q", HEADS * n), ("k", KEYS))]
    params = [*rows, tensor("v", 2, KEYS, 16), tensor("position", 1, dtype="int64")]
    members = group(params, attention(score=mask))
    claim, func = kernel(Attention(False), members, CPU)
    assert claim.launches == 1
    return members, func


@pytest.mark.parametrize(("tokens", "position"), [(1, 0), (1, 191), (2, 63), (40, 31)])
def test_hidden_keys_are_left_out(tokens, position, compiled, monkeypatch):
    monkeypatch.setattr(group_kernels, "SIZE", tokens)
    members, func = compiled
    rng = np.random.default_rng()
    q, k, v = (rng.standard_normal((2, x, 16)) for x in (HEADS * tokens, KEYS, KEYS))
    limit = np.tile(np.arange(tokens) + position, HEADS)[:, None]
    hides = np.where(np.arange(KEYS) <= limit, 0, -np.inf)
    expected = reference(lambda s: s / 8 + hides)(q, k, v)
    last = -(-(position + tokens) // PANEL) * PANEL  # keys are multiplied in vectors
    k[:, last:], v[:, last:] = np.nan, np.nan
    found = {name: x.astype("float32") for name, x in (("q", q), ("k", k), ("v", v))}
    close(run(func, members, {**found, "position": np.array([position])}), expected)
