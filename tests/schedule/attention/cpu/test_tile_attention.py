"""Attention on tile registers against float64: remainders in all directions, masks, maps."""

import group_kernels
import ml_dtypes  # noqa: F401  numpy's bfloat16
import numpy as np
import pytest
from emulator.tiles import TILES
from group_kernels import arrays, built, close, emitted, group, kernel, run, tensor
from tvm import relax, tirx

from tests.schedule.attention.attention_graphs import (
    LOWEST,
    added,
    guarded,
    kept,
    number,
    safe_arrays,
    scaled,
    spoil,
    with_zeros,
)
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.cpu.tile_config import TileAttentionConfig
from tvm_fusion.schedule.attention.template import Attention

pytestmark = pytest.mark.slow_beyond(3)

op = relax.op
CPU, XEON = parse(TILES), parse("cpu:sapphirerapids")
n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
BF16 = "bfloat16"


def tensors(heads, queries, keys, size, columns=None):
    return [
        tensor("q", 1, heads, queries, size, dtype=BF16),
        tensor("k", 1, heads, keys, size, dtype=BF16),
        tensor("v", 1, heads, keys, columns or size, dtype=BF16),
    ]


def attention(score=scaled, weigh=lambda emit, p, *_: p, out="float32"):
    """Body of an attention with products of bfloat16, softmax in float32."""

    def body(emit, q, k, v, *extra):
        across = emit(op.permute_dims(k, [0, 1, 3, 2]))
        scores = emit(op.astype(emit(op.matmul(q, across, out_dtype=out)), "float32"))
        weights = weigh(emit, emit(op.nn.softmax(score(emit, scores, *extra), -1)), *extra)
        return emit(op.matmul(emit(op.astype(weights, BF16)), v, out_dtype=out))

    return body


def expected(inputs, score=lambda s, *_: s / 8):
    """Results, and the largest error by weights that are rounded to eight bits."""
    q, k, v, *extra = (x.astype("float64") for x in inputs.values())
    scores = score(q @ np.swapaxes(k, -1, -2), *extra)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    return weights @ v, weights @ np.abs(v) / 256 + 1e-5


def computed(tiles, made, inputs):
    """Results, interpreted and on this machine's tiles alike."""

    def call():
        built.cache_clear()
        return run(made.func, made.members, inputs, CPU)

    return tiles.run(call)


def claimed(params, body):
    made = emitted(Attention(False), params, body, CPU)
    assert isinstance(made.claim.details.config, TileAttentionConfig)
    assert made.claim.matrix_dtype == BF16
    return made


def compare(tiles, params, body, score=lambda s, *_: s / 8):
    made, inputs = claimed(params, body), arrays(params)
    (found,) = computed(tiles, made, inputs)
    want, error = expected(inputs, score)
    assert (np.abs(found.astype("float64") - want) <= error).all()


# One key is no attention in any type: its softmax is 1.
SIZES = [
    (15, 77, 36),
    (17, 33, 64),
    (33, 77, 64, 20),
    (77, 17, 80),
    (33, 15, 128),
    (600, 2, 36),
    (33, 1300, 64),
]


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size, tiles):
    compare(tiles, tensors(2, *size), attention())


def causal(emit, s):
    rows, keys = (emit(op.arange(count, dtype="int64")) for count in (70, 77))
    row, key = emit(op.reshape(rows, (70, 1))), emit(op.reshape(keys, (1, 77)))
    return emit(op.where(emit(op.less_equal(key, row)), scaled(emit, s), number(LOWEST)))


MASKS = {
    "additive": (added, lambda s, mask: s / 8 + mask),
    "boolean": (kept, lambda s, mask: np.where(mask > 0, s, -np.inf)),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks(case, tiles):
    score, reference = MASKS[case]
    params = [*tensors(2, 33, 70, 40), tensor("mask", 1, 1, 33, 70)]
    compare(tiles, params, attention(score), reference)


def test_causal(tiles):
    visible = np.arange(77) <= np.arange(70)[:, None]
    reference = lambda s: np.where(visible, s / 8, LOWEST)  # noqa: E731
    compare(tiles, tensors(2, 70, 77, 40), attention(causal), reference)


def test_fully_masked_rows(tiles):
    params = [*tensors(1, 33, 70, 40), tensor("mask", 1, 1, 33, 70)]
    made = claimed(params, attention(added, lambda emit, p, mask: guarded(emit, p)))
    inputs = arrays(params)
    inputs["mask"][..., [2, 20], :] = -np.inf
    (found,) = computed(tiles, made, inputs)
    want, error = expected(inputs, lambda s, mask: s / 8 + mask)
    assert (found[..., [2, 20], :] == 0).all()
    others = np.delete(np.abs(found - want) <= error, [2, 20], axis=2)
    assert others.all()


def test_rows_with_nan_or_infinity_stay_nan(tiles):
    def body(emit, q, k, v, mask):
        across = emit(op.permute_dims(k, [0, 1, 3, 2]))
        scores = emit(op.add(emit(op.matmul(q, across, out_dtype="float32")), mask))
        weights = with_zeros(emit, scores, emit(op.nn.softmax(scores, -1)))
        return emit(op.matmul(emit(op.astype(weights, BF16)), v, out_dtype="float32"))

    params = [*tensors(4, 33, 70, 40), tensor("mask", 1, 4, 33, 70)]
    made, inputs = claimed(params, body), arrays(params)
    spoil(inputs)
    want = safe_arrays(*(x.astype("float64") for x in inputs.values()))
    close(computed(tiles, made, inputs), want, 8e-3)


def test_heads_share_keys(tiles):
    """Six heads of queries share two of keys and values."""

    def spread(emit, x):
        wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (1, 2, 3, 41, 40)))
        return emit(op.reshape(wide, (1, 6, 41, 40)))

    def body(emit, q, k, v):
        return attention()(emit, q, spread(emit, k), spread(emit, v))

    params = [tensor("q", 1, 6, 33, 40, dtype=BF16), *tensors(2, 33, 41, 40)[1:]]
    made, inputs = claimed(params, body), arrays(params)
    (found,) = computed(tiles, made, inputs)
    shared = {name: x if name == "q" else np.repeat(x, 3, 1) for name, x in inputs.items()}
    want, error = expected(shared)
    assert (np.abs(found - want) <= error).all()


def test_computed_operands(tiles):
    """Queries are scaled, keys and values shifted, and rounded before they are multiplied."""

    def wide(emit, x, change):
        return emit(op.astype(change(emit(op.astype(x, "float32"))), BF16))

    def body(emit, q, k, v):
        twice = wide(emit, q, lambda x: emit(op.multiply(x, number(0.5))))
        moved = [wide(emit, x, lambda x: emit(op.add(x, number(0.3)))) for x in (k, v)]
        return attention()(emit, twice, *moved)

    params = tensors(2, 33, 41, 40)
    made, inputs = claimed(params, body), arrays(params)
    (found,) = computed(tiles, made, inputs)
    shifted = {
        name: (x * 0.5 if name == "q" else x.astype("float32") + np.float32(0.3)).astype(BF16)
        for name, x in inputs.items()
    }
    want, error = expected(shifted)
    assert (np.abs(found - want) <= error).all()


@pytest.mark.slow
def test_symbolic_lengths(tiles, monkeypatch):
    """One kernel for any lengths, of fewer queries than a tile has as well."""
    params, lengths = tensors(2, n, m, 40), (1, 17, 533)
    made = claimed(params, attention())

    def of(length):
        monkeypatch.setattr(group_kernels, "SIZE", length)
        return arrays(params)

    def call():
        built.cache_clear()
        return [run(made.func, made.members, of(length), CPU)[0] for length in lengths]

    for length, found in zip(lengths, tiles.run(call), strict=True):
        want, error = expected(of(length))
        assert (np.abs(found - want) <= error).all()


def test_scores_of_bfloat16(tiles):
    """Where the graph rounds scores and results, only these are rounded."""
    params = tensors(2, 33, 41, 64)
    made, inputs = claimed(params, attention(out=BF16)), arrays(params)
    (found,) = computed(tiles, made, inputs)
    want, error = expected(inputs)
    assert (np.abs(found.astype("float64") - want) <= error + np.abs(want) / 256).all()


@pytest.mark.slow
def test_every_configuration_is_right(tiles):
    params = tensors(1, 70, 300, 40)
    members, template = group(params, attention(), CPU), Attention(False)
    claim, _ = kernel(template, members, CPU)
    inputs = arrays(params)
    want, error = expected(inputs)
    for config in template.configs(claim, CPU.device):
        if "tile" not in config["kernel"]:
            continue
        changed = template.configure(claim, config, CPU.device)
        assert isinstance(changed, Claim)
        (made,) = template.emit(changed, CPU.tvm_target()).kernels
        (found,) = computed(tiles, group_kernels.Emitted(members, changed, made.func), inputs)
        assert (np.abs(found - want) <= error).all()


def test_tiles_are_released_once_a_task():
    """On any machine: what is emitted for a CPU with tiles."""
    members = group(tensors(2, 33, 41, 64), attention(), XEON)
    text = kernel(Attention(False), members, XEON)[1].script()
    for name in ("ldtilecfg", "tilerelease"):
        assert text.count(f"llvm.x86.{name}") == 1
    assert "llvm.x86.tdpbf16ps" in text


def test_claims_follow_their_configuration():
    """Operations besides the products cost more where products are fast."""
    members, template = group(tensors(2, 33, 41, 64), attention(), XEON), Attention(False)
    claim, _ = kernel(template, members, XEON)
    vectors = [c for c in template.configs(claim, XEON.device) if "tile" not in c["kernel"]]
    changed = template.configure(claim, vectors[0], XEON.device)
    assert isinstance(changed, Claim)
    assert changed.matrix_dtype == ""
    assert changed.flops < claim.flops


@pytest.mark.parametrize("size", [(1, 512, 64), (3, 512, 64), (8, 8, 16), (256, 256, 8)])
def test_small_heads_are_left_to_vectors(size):
    members = group(tensors(2, *size), attention(), XEON)
    claim, func = kernel(Attention(False), members, XEON)
    assert claim.matrix_dtype == ""
    assert "llvm.x86.tilerelease" not in func.script()


@pytest.mark.parametrize("name", ["cpu:x86-64-v4", "cpu:znver5"])
def test_vectors_where_there_are_no_tiles(name):
    spec, params = parse(name), tensors(2, 33, 41, 64)
    claim, func = kernel(Attention(False), group(params, attention(), spec), spec)
    assert claim.matrix_dtype == ""
    assert "llvm.x86.tilerelease" not in func.script()
