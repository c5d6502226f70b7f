"""FlashAttention with TMA and warp specialization: results, masks, layouts, machine code."""

import ml_dtypes
import numpy as np
import pytest
from group_kernels import CUDA, arrays, cuda_kernel, group, kernel, run, tensor
from nvcc import machine_code, needs_nvcc
from test_flash_mma import HALF, computed, packed, problem_of, visible
from test_flash_mma import compare as compare_any
from tvm import relax, tirx

from tests.schedule.attention.attention_graphs import (
    PLAIN,
    SINK,
    attention,
    beside_sink_tensors,
    heads,
    op,
    reference,
    tensors,
    to_rows,
)
from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.attention.flash import model as flash_mma_model
from tvm_fusion.schedule.attention.flash.kernel import dispatch_on_queries, flash_mma_kernel
from tvm_fusion.schedule.attention.flash.model import configs
from tvm_fusion.schedule.attention.flash.tma.config import FlashTmaConfig
from tvm_fusion.schedule.attention.flash.tma.operand import tma_operands
from tvm_fusion.schedule.attention.space import KERNELS
from tvm_fusion.schedule.attention.template import Attention


def of_tma(problem, accept):
    found = [c for c in configs(problem, CUDA.device) if isinstance(c, FlashTmaConfig)]
    return [c for c in found if accept(c)]


def assert_close(found, exact, q, k, v, dtype=HALF):
    """Compare results that are averages of rows of v.

    Weights are rounded to the half type, and results; scores are sums in float32, and a weight is
    off by as much, relatively, as its score and the row's maximum and sum are absolutely.
    """
    rounding, single = float(ml_dtypes.finfo(dtype).eps) / 2, 2.0**-24
    largest = np.abs(q).sum(-1).max() * np.abs(k).max()
    of_score = 3 * (q.shape[-1] + 4) * single * largest
    of_weight = rounding + of_score + v.shape[-2] * (single + 2.0**-25)
    bound = (of_weight + rounding * (1 + of_weight)) * np.abs(v).max()
    assert found.shape == exact.shape
    assert np.abs(found.astype("float64") - exact).max() <= bound


def compare(params, body, expected, accept=lambda c: True, operands=None, edit=None):
    """Run one of the accepted configurations."""
    members, problem = problem_of(params, body)
    accepted = of_tma(problem, accept)
    chosen = accepted[np.random.default_rng().integers(len(accepted))]
    func, (found,), wide = computed(params, members, problem, chosen, edit)
    (exact,) = expected(*wide)
    q, k, v = (wide[:3]) if operands is None else operands(*wide)
    assert_close(found, exact, q, k, v, str(params[0].ty.dtype))
    return func


def pace_of(config):
    return "turns" if config.is_ping_pong else "own"


PACES = pytest.mark.parametrize("pace", ["own", "turns"])


@pytest.mark.slow
@PACES
@pytest.mark.parametrize(
    ("queries", "keys", "size", "columns"),
    [
        (200, 300, 64, 64),
        (130, 197, 40, 40),
        (150, 170, 128, 64),
        (70, 90, 80, 104),
        (150, 170, 256, 256),
    ],
)
def test_sizes_of_heads(queries, keys, size, columns, pace):
    """Rows that are no whole panels are filled with zeros."""
    params = tensors(1, 2, queries, keys, size, columns, dtype=HALF)
    compare(params, *PLAIN, accept=lambda c: pace_of(c) == pace)


@pytest.mark.slow
@PACES
def test_three_consumers(pace):
    params = tensors(1, 1, 333, 280, 64, dtype=HALF)
    compare(params, *PLAIN, accept=lambda c: c.consumers == 3 and pace_of(c) == pace)


@pytest.mark.slow
@PACES
def test_sink(pace):
    params = beside_sink_tensors(200, 300, 64, HALF)
    compare(params, *SINK, accept=lambda c: pace_of(c) == pace)


@pytest.mark.slow
def test_bfloat16():
    compare(tensors(1, 1, 140, 150, 64, dtype="bfloat16"), *PLAIN)


@pytest.mark.slow
@PACES
@pytest.mark.parametrize("options", [{}, {"window": 100}, {"offset": 90}, {"offset": -140}])
def test_hidden_tiles_are_skipped(options, pace):
    """By all roles: of some blocks, all tiles, whose rows are NaN then."""
    queries, keys = 250, 330
    body, expected = visible(queries, keys, **options)
    params = tensors(1, 2, queries, keys, 64, dtype=HALF)
    if options.get("offset", 0) >= 0:
        accept = lambda c: pace_of(c) == pace and c.block_n == 64  # noqa: E731
        compare(params, body, expected, accept=accept)
        return
    members, problem = problem_of(params, body)
    config = of_tma(problem, lambda c: pace_of(c) == pace)[0]
    inputs = arrays(params)
    (found,) = run(flash_mma_kernel(members.program, problem, config), members, inputs, CUDA)
    wide = [x.astype("float64") for x in inputs.values()]
    (exact,) = expected(*wide)
    hidden = np.arange(queries) < 140
    assert np.isnan(found[:, :, hidden]).all()
    assert_close(found[:, :, ~hidden], exact[:, :, ~hidden], *wide)


@pytest.mark.slow
def test_heads_of_rows_that_share_keys():
    """Views of one tensor: queries, keys and values side by side, GQA, results in rows."""
    count, shared, size, rows = 6, 2, 64, 150

    def parts(emit, x):
        ends = [count * size, (count + shared) * size]
        split = emit(op.split(x, ends, 2))
        found = [emit(relax.TupleGetItem(split, i)) for i in range(3)]
        q, k, v = (heads(emit, y, n) for y, n in zip(found, (count, shared, shared), strict=True))

        def spread(y):
            shape = (2, shared, count // shared, rows, size)
            wide = emit(op.broadcast_to(emit(op.expand_dims(y, 2)), shape))
            return emit(op.reshape(wide, (2, count, rows, size)))

        return q, spread(k), spread(v)

    def body(emit, x):
        return attention(finish=to_rows)(emit, *parts(emit, x))

    def operands(x):
        q, k, v = np.split(x, [count * size, (count + shared) * size], 2)
        q, k, v = (y.reshape(2, rows, -1, size).transpose(0, 2, 1, 3) for y in (q, k, v))
        return q, np.repeat(k, count // shared, 1), np.repeat(v, count // shared, 1)

    def expected(x):
        (y,) = reference()(*operands(x))
        return [y.transpose(0, 2, 1, 3).reshape(2, rows, -1)]

    params = [tensor("x", 2, rows, (count + 2 * shared) * size, dtype=HALF)]
    members, problem = problem_of(params, body)
    q, k, v = tma_operands(problem)
    assert [n for _, n in q.batch] == [1, 1]
    assert [n for _, n in k.batch] == [n for _, n in v.batch] == [1, count // shared]
    compare(params, body, expected, operands=operands)
    assert len(members.inputs) == 1


@pytest.mark.slow
@PACES
@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences(is_causal, pace):
    """All roles find a block's first key in memory, which is no multiple of a tile."""
    offsets = np.array([0, 5, 6, 139, 150, 233])
    total = int(offsets[-1])
    params = tensors(1, 2, total, total, 64, dtype=HALF)
    params += [tensor(name, total, dtype="int64") for name in ("begin", "end")]
    body, expected, edit = packed(offsets, is_causal)

    def accept(config):
        return (
            isinstance(config, FlashTmaConfig) and pace_of(config) == pace and config.block_n < 96
        )

    problem, _ = compare_any(params, body, expected, 4e-3, accept, edit)
    assert len(problem.loaded_bounds) == 2


@pytest.mark.slow
@PACES
def test_results_that_do_not_fit_where_queries_were(pace):
    """They are float32, and staged behind the values."""

    def body(emit, *operands):
        return attention()(emit, *(emit(op.astype(x, "float32")) for x in operands))

    params = tensors(1, 1, 140, 150, 64, dtype=HALF)
    compare(params, body, PLAIN[1], accept=lambda c: pace_of(c) == pace)


@pytest.mark.slow
def test_a_mask_of_scores():
    params = [*tensors(2, 1, 140, 170, 64, dtype=HALF), tensor("mask", 2, 1, 1, 170, dtype=HALF)]

    def pad(inputs):
        inputs["mask"][:] = np.where(np.arange(170) < 120, 0, -np.inf)

    body = attention(score=lambda emit, s, mask: emit(op.add(s, mask)))
    compare(params, body, reference(lambda s, mask: s + mask), edit=pad)


@pytest.mark.slow
def test_symbolic_lengths(monkeypatch):
    monkeypatch.setattr("group_kernels.SIZE", 145)
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    compare(tensors(1, 2, n, m, 64, dtype=HALF), *PLAIN, accept=lambda c: c.block_n == 64)


def grouped(tokens, keys, width, heads, shared=1):
    """Queries of several heads that share keys and values, masked by position."""
    params = [tensor("q", 1, heads, tokens, width, dtype=HALF)]
    params += [tensor(name, 1, shared, keys, width, dtype=HALF) for name in "kv"]
    own = heads // shared

    def body(emit, q, k, v):
        rows = emit(op.reshape(q, (shared, own * tokens, width)))
        scores = emit(op.matmul(rows, emit(op.permute_dims(emit(op.squeeze(k, 0)), [0, 2, 1]))))
        weights = emit(op.nn.softmax(emit(op.multiply(scores, relax.const(0.125, HALF)))))
        return emit(op.matmul(weights, emit(op.squeeze(v, 0))))

    return params, body


def test_many_queries_get_a_kernel_of_their_own():
    """Chosen for few, tiles of 16 queries read all keys 32 times as often."""
    n = tirx.Var("n", "int64")
    params, body = grouped(n, 2048, 64, 32, 8)
    claim, func = kernel(Attention(is_gpu=True), group(params, body, CUDA), CUDA)
    least, many = claim.details.many
    assert isinstance(many, FlashTmaConfig)
    assert many.block_m >= 128 > claim.details.config.block_m
    assert 4 * 64 <= least <= 4 * 512
    assert claim.launches == 1
    assert sum(x.thread_binding.thread_tag == "blockIdx.x" for x in bound_loops(func)) == 2
    other = next(
        c for c in claim.template.configs(claim, CUDA.device) if c["kernel"] == "flash mma"
    )
    tuned = claim.template.configure(claim, other, CUDA.device)
    assert tuned.details.many == claim.details.many
    alone = kernel(Attention(is_gpu=True), group(*grouped(512, 2048, 64, 32, 8), CUDA), CUDA)[0]
    assert alone.details.many is None
    assert type(alone.details.config) is type(many)


def bound_loops(func):
    return [x for x in find(func.body, tirx.For) if x.thread_binding is not None]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [48, 49])
def test_kernels_of_few_and_many_queries(tokens, monkeypatch):
    """The host launches one of them; rows of three heads lie one behind the other."""
    monkeypatch.setattr("group_kernels.SIZE", tokens)
    params, body = grouped(tirx.Var("n", "int64"), 150, 64, 3)
    members, problem = problem_of(params, body)
    few = next(c for c in configs(problem, CUDA.device) if c.block_m == 16)
    many = of_tma(problem, lambda c: c.block_n == 64)[0]
    func = dispatch_on_queries(members.program, problem, few, 3 * 49, many)
    inputs = arrays(params)
    (found,) = run(func, members, inputs, CUDA, kernels=1)
    q, k, v = (x.astype("float64") for x in inputs.values())
    q, k, v = q.reshape(1, 3 * tokens, 64), k[0], v[0]
    scores = np.exp(0.125 * q @ k.transpose(0, 2, 1))
    assert_close(found, scores / scores.sum(-1, keepdims=True) @ v, 0.125 * q, k, v)


def test_no_keys_that_tma_cannot_copy():
    """Keys that are stored along the other axis, and rows at odd places."""

    def turned(emit, q, k, v):
        return attention()(emit, q, emit(op.permute_dims(k, [0, 1, 3, 2])), v)

    q, k, v = tensors(1, 2, 128, 128, 64, dtype=HALF)
    k = tensor("k", 1, 2, 64, 128, dtype=HALF)
    assert tma_operands(problem_of([q, k, v], turned)[1]) is None
    assert tma_operands(problem_of(tensors(1, 2, 128, 128, 36, dtype=HALF), PLAIN[0])[1]) is None


def test_configurations_fit_and_have_names_of_their_own():
    _, problem = problem_of(tensors(1, 16, 1024, 1024, 64, dtype=HALF), PLAIN[0])
    found = of_tma(problem, lambda c: True)
    plain = [tuple(KERNELS.plain(c).items()) for c in found]
    assert len(set(plain)) == len(plain) > 10
    for config in found:
        assert config.shared_bytes <= CUDA.device.shared_memory_per_block
        assert config.threads * config.registers <= 1 << 16


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_roles_in_machine_code():
    """Nothing is spilled, and products are not serialized for want of registers."""
    functions = {}
    for name, shape, block_n in (
        ("d64", (1, 16, 1024, 1024, 64), 128),
        ("d128", (4, 32, 4096, 4096, 128), 128),
        ("d256", (2, 16, 2048, 2048, 256), 80),
    ):
        members, problem = problem_of(tensors(*shape, dtype=HALF), PLAIN[0])
        for config in of_tma(problem, lambda c, n=block_n: c.block_n == n and c.stages == 2):
            func = flash_mma_kernel(members.program, problem, config)
            functions[f"{name}_{config.consumers}_{pace_of(config)}"] = func
    assert len(functions) >= 8
    for made in machine_code(functions).values():
        assert made.spilled_bytes == 0
        assert made.ptx.count("setmaxnreg") == 2
        assert made.ptx.count("cp.async.bulk.tensor") > 0


@pytest.mark.parametrize(
    ("shape", "is_causal", "is_chosen"),
    [
        ((1, 8, 4096, 4096, 40), False, True),
        ((2, 8, 2048, 2048, 128), True, True),
        ((2, 8, 2048, 2048, 128), False, True),
        ((2, 16, 2048, 2048, 96), True, True),
        ((1, 16, 1024, 1024, 64), False, True),
        ((16, 12, 512, 512, 64), False, False),
        ((1, 32, 512, 512, 128), True, True),
        ((2, 16, 2048, 2048, 256), True, True),
        ((64, 12, 197, 197, 64), False, False),
        ((8, 16, 2048, 2048, 112), False, False),
    ],
)
def test_the_default_where_it_was_measured(shape, is_causal, is_chosen):
    """Of many keys, and of measured heads; elsewhere it is in the design space alone."""
    body = visible(*shape[2:4])[0] if is_causal else PLAIN[0]
    _, problem = problem_of(tensors(*shape, dtype=HALF), body)
    first, *others = configs(problem, CUDA.device)
    assert isinstance(first, FlashTmaConfig) == is_chosen
    assert any(isinstance(c, FlashTmaConfig) for c in others)


@pytest.mark.parametrize(
    ("queries", "keys", "steps"),
    [(1024, 1024, 4.5), (4096, 1024, 4.5), (512, 1024, 6.5), (100, 130, 2)],
)
def test_steps_over_the_keys_that_causal_rows_see(queries, keys, steps):
    config = FlashTmaConfig(8, 16, 128, 2, False, 1, 64, 64, 2, True)
    assert flash_mma_model._seen_tiles(config, queries, keys) == steps


def test_roles_meet_once():
    """Behind the initialization of barriers; afterwards each goes at its own pace."""
    members, problem = problem_of(tensors(1, 16, 1024, 1024, 64, dtype=HALF), PLAIN[0])
    config = of_tma(problem, lambda c: c.is_ping_pong)[0]
    text = cuda_kernel(flash_mma_kernel(members.program, problem, config))
    assert text.count("tvm_fusion_block_barrier()") == 1
    assert "int64_t)threadIdx" not in text  # nothing keeps indices of threads from 32 bits
