import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.frontend.normalize import ExpandAttention

HEADS, SIZE = 3, 20


def module(queries, keys, has_bias=False, **options):
    params = [
        relax.Var(name, relax.TensorType((2, n, HEADS, SIZE), "float32"))
        for name, n in (("q", queries), ("k", keys), ("v", keys))
    ]
    if has_bias:
        params.append(relax.Var("bias", relax.TensorType((2, 1, queries, keys), "float32")))
    return main_module(params, relax.op.nn.attention(*params, **options))


def attended(q, k, v, bias=0.0, scale=SIZE**-0.5, causal_mask=None):
    q, k, v = (x.astype("float64").transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) * scale + bias
    queries, keys = scores.shape[2:]
    if causal_mask is not None:
        ahead = keys - queries if causal_mask == "BottomRight" else 0
        scores[..., np.triu(np.ones((queries, keys), bool), ahead + 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize(
    ("has_bias", "options"),
    [
        (False, {}),
        (True, {"scale": 0.3}),
        (False, {"causal_mask": "TopLeft"}),
        (True, {"causal_mask": "BottomRight"}),
    ],
)
def test_values(has_bias, options, is_symbolic, run, rng):
    extents = [tirx.Var(name, "int64") for name in "mn"] if is_symbolic else (5, 13)
    shapes = [(2, 5, HEADS, SIZE), *[(2, 13, HEADS, SIZE)] * 2, *[(2, 1, 5, 13)] * has_bias]
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    found = run(ExpandAttention()(module(*extents, has_bias, **options)), *arrays)
    np.testing.assert_allclose(found, attended(*arrays, **options), atol=1e-5)


def test_one_kernel_attends():
    extents = [tirx.Var(name, "int64") for name in "mn"]
    mod = module(*extents, causal_mask="BottomRight")
    dims = dict.fromkeys("mn", tvm_fusion.DimRange(1, 64))
    config = tvm_fusion.FusionConfig(dims=dims)
    (group,) = tvm_fusion.explain(mod, "rocm:gfx942", config, stock=False).groups
    assert group.template == "attention"


def test_windows_stay():
    mod = module(5, 5, causal_mask="TopLeft", window_size=3)
    assert ExpandAttention()(mod).same_as(mod)
    once = ExpandAttention()(module(5, 5))
    tvm.ir.assert_structural_equal(ExpandAttention()(once), once)
