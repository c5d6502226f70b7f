"""Flash-decoding on a GPU: results, splits over the keys, vector loads, the K/V pipeline."""

import group_kernels
import ml_dtypes
import numpy as np
import pytest
import tvm
from group_kernels import (
    CUDA,
    arrays,
    close,
    cuda_kernel,
    group,
    run_all,
    tensor,
)
from tvm import ir, relax, s_tir, tirx

from tests.schedule.attention.attention_graphs import (
    MASKED,
    PLAIN,
    SINK,
    added,
    attention,
    beside_sink_tensors,
    guarded,
    m,
    n,
    op,
    reference,
    safe,
    safe_arrays,
    safe_tensors,
    scaled,
    spoil,
    tensors,
)
from tvm_fusion.core.tir.loops import find
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.decode import config as flash_decode
from tvm_fusion.schedule.attention.decode.config import FlashDecodeConfig, flash_decode_config
from tvm_fusion.schedule.attention.problem.constants import read_group
from tvm_fusion.schedule.attention.problem.match import FLOATS
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.gpu.dlight import check_gpu
from tvm_fusion.schedule.gpu.memory.cp_async import COPY

pytestmark = pytest.mark.slow_beyond(2)

TEMPLATE = Attention(True)


def config_of(members, spec=CUDA):
    return flash_decode_config(read_group(members, (*FLOATS, "bfloat16")), spec.device)


def emitted(params, body):
    members = group(params, body, CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    emission = TEMPLATE.emit(claim, CUDA.tvm_target())
    assert len(emission.kernels) == claim.launches == config_of(members).launches
    for made in emission.kernels:
        assert check_gpu(made.func, CUDA.tvm_target()) is None
    return members, emission, config_of(members)


def in_float64(inputs):
    return [x.astype("float64") for x in inputs.values()]


def compare(params, body, expected, tolerance=2e-5):
    members, emission, config = emitted(params, body)
    inputs = arrays(params)
    close(run_all(members, emission, inputs), expected(*in_float64(inputs)), tolerance)
    return config


def reads_of(value, names):
    return [x for x in find(value, ir.TensorLoad) if x.source.name in names]


def expanded(emit, x, times):
    """Repeat heads as views do: a new axis, then one axis of both."""
    batch, heads, length, size = x.ty.shape
    wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (batch, heads, times, length, size)))
    return emit(op.reshape(wide, (batch, heads * times, length, size)))


def spread(repeat):
    """Attention of 4 times as many heads of queries."""

    def body(emit, q, k, v, *mask):
        return attention(score=added if mask else lambda emit, s: s)(
            emit, q, repeat(emit, k, 4), repeat(emit, v, 4), *mask
        )

    return body


def repeated(emit, x, times):
    return emit(op.repeat(x, times, 1))


def in_rows(emit, q, k, v):
    """Heads of a group as rows of one matrix."""
    batch, heads, queries, size = q.ty.shape
    shared = k.ty.shape[1]
    rows = emit(op.reshape(q, (batch, shared, heads // shared * queries, size)))
    result = emit(attention()(emit, rows, k, v))
    return op.reshape(result, (batch, heads, queries, size))


def in_five_axes(emit, q, k, v):
    batch, heads, queries, size = q.ty.shape
    shared = k.ty.shape[1]
    rows = emit(op.reshape(q, (batch, shared, heads // shared, queries, size)))
    scores = emit(op.einsum((rows, k), "bhgtd,bhsd->bhgts"))
    result = emit(op.einsum((emit(op.nn.softmax(scores, -1)), v), "bhgts,bhsd->bhgtd"))
    return op.reshape(result, (batch, heads, queries, size))


@pytest.mark.parametrize("launches", [1, 2])
def test_a_sink_counts_once_for_all_splits(launches, monkeypatch):
    if launches == 2:
        monkeypatch.setattr(flash_decode, "MAX_CLUSTER", 1)
    params = beside_sink_tensors(1, 900, 64, "float16")
    config = compare(params, *SINK, 2e-3)
    assert config.launches == launches
    assert config.splits > 1


def repeated_arrays(q, k, v, *mask):
    function = MASKED[1] if mask else PLAIN[1]
    return function(q, np.repeat(k, 4, 1), np.repeat(v, 4, 1), *mask)


def grouped_tensors(batch, queries, keys, size, dtype="float32"):
    return [
        tensor("q", batch, 8, queries, size, dtype=dtype),
        tensor("k", batch, 2, keys, size, dtype=dtype),
        tensor("v", batch, 2, keys, size, dtype=dtype),
    ]


FORMS = {
    "expanded": spread(expanded),
    "repeated": spread(repeated),
    "in_rows": in_rows,
    "in_five_axes": in_five_axes,
}


@pytest.mark.parametrize("keys", [256, 257, 1000, 4099])
def test_keys(keys):
    compare(tensors(2, 3, 1, keys, 32), *PLAIN)


@pytest.mark.parametrize("keys", [1, 3, 127, 129, 1000])
def test_symbolic_keys(keys, monkeypatch):
    monkeypatch.setattr(group_kernels, "SIZE", keys)
    compare(tensors(2, 3, 1, m, 32), *PLAIN)


@pytest.mark.parametrize("batch", [1, 3, n])
@pytest.mark.parametrize("form", FORMS)
def test_heads_of_a_group_share_a_load(form, batch):
    config = compare(grouped_tensors(batch, 1, 300, 64), FORMS[form], repeated_arrays)
    assert config.query_group.size == 4
    assert config.row_blocks == 1


@pytest.mark.parametrize("queries", [2, 3, 4])
def test_queries_of_a_group(queries):
    config = compare(grouped_tensors(2, queries, 300, 32), spread(expanded), repeated_arrays)
    assert config.query_group.size == 4 * queries


def test_many_queries_of_few_heads(monkeypatch):
    """Tiles would leave most multiprocessors idle; 24 rows are three blocks of each split."""
    monkeypatch.setattr(flash_decode, "LEAST_KEYS_OF_MANY", 300)
    given = grouped_tensors(1, 6, 300, 64, "float16")
    config = compare(given, spread(expanded), repeated_arrays, 2e-3)
    assert (config.query_group.size, config.block_m, config.row_blocks) == (24, 8, 3)


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "dtype", "is_split"),
    [
        (8, 64, 512, "float16", True),
        (8, 65, 512, "float16", False),
        (8, 64, 511, "float16", False),
        (8, 17, 512, "float32", False),
        (66, 64, 512, "float16", True),
        (67, 64, 512, "float16", False),
    ],
)
def test_which_of_many_queries_are_split(heads, queries, keys, dtype, is_split):
    members = group(tensors(1, heads, queries, keys, 64, dtype=dtype), PLAIN[0], CUDA)
    assert isinstance(config_of(members), FlashDecodeConfig) == is_split


@pytest.mark.parametrize(
    ("size", "columns"), [(16, 16), (64, 128), (80, 80), (96, 32), (128, 128), (256, 256)]
)
def test_sizes_of_heads(size, columns):
    compare(tensors(1, 2, 5, 300, size, columns), *PLAIN)


@pytest.mark.parametrize("size", [128, 80])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_types_are_summed_in_float32(dtype, tolerance, queries, size):
    given = grouped_tensors(1, queries, 1000, size, dtype)
    config = compare(given, spread(expanded), repeated_arrays, tolerance)
    assert config.width == 8
    assert config.uses_mma == (size == 128)


def test_steps_of_a_block_are_no_quotient_of_what_is_subtracted():
    """TVM 0.27 makes others of them: see ``test_tvm_renormalize``."""
    given = tensors(1, 8, 1, 2049, 128, dtype="float16")
    _, emission, _ = emitted(given, PLAIN[0])
    text = cuda_kernel(emission.kernels[0].func)
    assert "% (int64_t)-" not in text


def test_pipelines_of_keys_and_values_share_no_memory():
    """TVM may make one of two buffers that no step follows: see ``KVPipeline.shared_memory``."""
    _, emission, _ = emitted(tensors(1, 8, 1, 1000, 128, dtype="float16"), PLAIN[0])
    blocks = find(emission.kernels[0].func.body, s_tir.SBlock)
    scopes = [buffer.scope() for block in blocks for buffer in block.alloc_buffers]
    assert scopes.count("shared.dyn") == 1


def test_copies_are_aligned_to_16_bytes():
    """Keys that are not are loaded in shorter vectors."""

    def body(emit, q, k, v):
        k, v = (
            emit(op.strided_slice(x, axes=[3], begin=[start], end=[start + 64]))
            for x, start in ((k, 4), (v, 8))
        )
        return PLAIN[0](emit, q, k, v)

    def expected(q, k, v):
        return PLAIN[1](q, k[..., 4:68], v[..., 8:72])

    params = [tensor("q", 1, 2, 1, 64, dtype="float16")]
    params += [tensor(name, 1, 2, 300, 80, dtype="float16") for name in ("k", "v")]
    config = compare(params, body, expected, 2e-3)
    assert config.width == 4
    assert not config.uses_mma


@pytest.mark.parametrize(("keys", "warps"), [(300, 4), (2049, 4), (8192, 8), (m, 8)])
def test_warps_by_number_of_keys(keys, warps):
    given = grouped_tensors(4, 1, keys, 128, "float16")
    config = config_of(group(given, spread(expanded), CUDA))
    assert config.groups == warps


@pytest.mark.parametrize("size", [64, 128, 512])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_pipeline_stages_fit_shared_memory(arch, size):
    spec = parse(f"cuda:{arch}")
    given = tensors(1, 2, 16, 300, size, dtype="float16")
    config = config_of(group(given, PLAIN[0], spec), spec)
    assert config.uses_mma
    assert config.shared_bytes <= spec.device.shared_memory_per_block


@pytest.mark.parametrize("name", ["padding", "bias", "keys"])
def test_masks(name, monkeypatch):
    monkeypatch.setattr(group_kernels, "SIZE", 515)
    shape = {"padding": (2, 1, 1, 300), "bias": (1, 3, 2, 300), "keys": (2, 1, 2, m)}[name]
    compare([*tensors(2, 3, 2, shape[-1], 32), tensor("mask", *shape)], *MASKED)


@pytest.mark.parametrize("masked_weight", [0.0, 0.5])
def test_rows_whose_weights_are_nan(masked_weight):
    """The guard's weight replaces them: rows of minus infinity, or with a NaN."""
    params = [*tensors(1, 2, 3, 300, 32), tensor("mask", 1, 1, 3, 300)]
    body = attention(score=added, weigh=lambda emit, p, mask: guarded(emit, p, masked_weight))
    inputs = arrays(params)
    inputs["mask"][:] = np.where(inputs["mask"] > 0, 0, -np.inf)
    inputs["mask"][..., 1, :] = -np.inf
    inputs["mask"][..., 2, 170] = np.nan
    expected = reference(
        lambda s, mask: s / 8 + mask, lambda p, mask: np.where(np.isnan(p), masked_weight, p)
    )
    members, emission, _ = emitted(params, body)
    close(run_all(members, emission, inputs), expected(*in_float64(inputs)))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float16", 2e-3)])
@pytest.mark.parametrize("is_one_kernel", [True, False])
def test_rows_with_nan_or_infinity_stay_nan(dtype, tolerance, is_one_kernel, monkeypatch):
    if not is_one_kernel:
        monkeypatch.setattr(flash_decode, "MAX_CLUSTER", 1)
    params = safe_tensors(3, 1500, 32, dtype)
    members, emission, config = emitted(params, safe)
    assert config.is_one_kernel == is_one_kernel
    inputs = arrays(params)
    spoil(inputs)
    close(run_all(members, emission, inputs), safe_arrays(*in_float64(inputs)), tolerance)


def test_few_keys_and_many_rows_are_tiles():
    for params, why in (
        (tensors(1, 2, 1, 100, 32), "100 keys"),
        (tensors(1, 2, 17, 300, 32), "17 rows read the same keys"),
        (tensors(1, 2, n, 300, 32), "is symbolic"),
    ):
        assert why in config_of(group(params, PLAIN[0], CUDA)).sentence


def test_unaligned_head_dims_are_tiles():
    refusal = config_of(group(tensors(1, 2, 1, 300, 33), PLAIN[0], CUDA))
    assert "not aligned to vectors" in refusal.sentence


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_blocks_fill_the_device(batch, dtype):
    device = CUDA.device
    config = config_of(group(tensors(batch, 8, 1, 8192, 128, dtype=dtype), PLAIN[0], CUDA))
    places, blocks = device.sm_count * config.min_blocks, int(config.blocks)
    assert blocks >= 0.9 * places * -(-blocks // places)
    # Each block takes another kilobyte of what a multiprocessor has.
    assert config.min_blocks * (config.shared_bytes + 1024) <= device.shared_memory_per_block + 1024


@pytest.mark.parametrize("arch", ["cuda:sm_90a", "rocm:gfx90a", "rocm:gfx1100"])
def test_blocks_fit_the_device(arch):
    spec = parse(arch)
    config = config_of(group(tensors(1, 2, 16, 300, 256), PLAIN[0], spec), spec)
    assert config.threads <= spec.device.max_threads_per_block
    assert config.threads % config.warp_size == 0
    assert config.lanes <= config.warp_size
    assert config.shared_bytes <= 48 * 1024


def test_keys_and_values_are_loaded_once_in_vectors():
    given = grouped_tensors(1, 1, 4096, 128)
    _, emission, config = emitted(given, spread(expanded))
    func = emission.kernels[0].func
    stores = find(func.body, tirx.BufferStore)
    for name in ("keys", "values"):
        (read,) = [x for x in stores if x.buffer.name.endswith(name)]
        loops = [x for x in find(func.body, tirx.For) if x.kind == tirx.ForKind.VECTORIZED]
        (around,) = [x for x in loops if read in find(x.body, tirx.BufferStore)]
        assert int(around.extent) == config.width
    assert len([x for x in stores if reads_of(x.value, {"k", "v"})]) == 2


def test_copies_are_issued_stages_ahead_of_mma():
    _, emission, config = emitted(grouped_tensors(8, 1, 8192, 128, "float16"), spread(expanded))
    text = cuda_kernel(emission.kernels[0].func)
    before, loop = text[: text.index("for (")], text[text.index("for (") :]
    issued = 2 * (config.head_dim + config.head_dim_v) // 32  # copies of a thread's step
    assert before.count(COPY) == config.stages * issued
    assert loop.count(COPY) == issued
    assert "__syncthreads" not in loop[: loop.index("m_shared")]


def test_fragments_are_declared_whole():
    """TVM declares no more of a buffer than loads and stores reach; addresses do not count."""
    _, emission, _ = emitted(grouped_tensors(1, 1, 1000, 64, "float16"), spread(expanded))
    text = cuda_kernel(emission.kernels[0].func)
    for name, size in (("p_frag", 4), ("p", 4), ("s", 4), ("acc", 16)):
        assert f" {name}_ptr[{size}];" in text


@pytest.mark.slow
@pytest.mark.parametrize("size", [128, 256])
def test_many_splits_are_loaded_in_turns(size):
    config = compare(tensors(1, 1, 1, 4099, size, dtype="float16"), *PLAIN, 2e-3)
    assert config.splits > 16 * config.reduce_threads


def test_the_reduction_kernel_loads_all_splits_before_it_merges():
    _, emission, config = emitted(grouped_tensors(1, 1, 8192, 128, "float16"), spread(expanded))
    text = cuda_kernel(emission.kernels[1].func)
    assert f"__launch_bounds__({config.reduce_threads * config.head_dim_v}, 1)" in text
    assert text.count("__syncthreads") == 1
    assert text.rindex("partial_ml_ptr[") < text.index("expf(") < text.index("__syncthreads")


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    functions = {}
    for dtype in ("float32", "float16", "bfloat16"):
        _, emission, _ = emitted(grouped_tensors(1, 1, m, 128, dtype), spread(expanded))
        for made in emission.kernels:
            name = f"kernel{len(functions)}"
            functions[name] = made.func.with_attr("global_symbol", name)
    target = CUDA.tvm_target()
    with toolchain(CUDA), target:
        built = tvm.compile(tvm.IRModule(functions), target, tir_pipeline="tvm_fusion")
    assert any(module.kind == "cuda" for module in built.mod.imports)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float16", 2e-3)])
@pytest.mark.parametrize(("past", "new"), [(300, 1), (511, 3), (n, 1)])
def test_appended_keys_and_values_are_read_from_their_own_buffers(past, new, dtype, tolerance):
    def body(emit, q, keys, values, key, value):
        k = emit(op.concat([keys, key], 2))
        v = emit(op.concat([values, value], 2))
        return spread(expanded)(emit, q, k, v)

    def expected(q, keys, values, key, value):
        k, v = np.concatenate([keys, key], 2), np.concatenate([values, value], 2)
        return repeated_arrays(q, k, v)

    params = [
        tensor("q", 1, 8, 1, 64, dtype=dtype),
        *(tensor(name, 1, 2, past, 64, dtype=dtype) for name in ("keys", "values")),
        *(tensor(name, 1, 2, new, 64, dtype=dtype) for name in ("key", "value")),
    ]
    config = compare(params, body, expected, tolerance)
    assert len(config.keys) == len(config.values) == 2
    assert config.uses_mma == (dtype == "float16")


@pytest.mark.parametrize(
    ("dtype", "queries", "tolerance"), [("float32", 1, 2e-5), ("float16", 3, 2e-3)]
)
@pytest.mark.parametrize("position", [0, 300])
def test_keys_behind_a_position_are_not_read(dtype, queries, tolerance, position):
    """One kernel serves all lengths: behind the last step with visible keys anything may be."""
    keys = 2048
    params = [*tensors(1, 2, queries, keys, 128, dtype=dtype), tensor("at", 1, dtype="int64")]
    rows, columns = np.arange(queries)[:, None], np.arange(keys)

    def score(emit, s, at):
        last = emit(op.add(relax.const(rows, "int64"), emit(op.reshape(at, (1, 1)))))
        seen = emit(op.less_equal(relax.const(columns[None], "int64"), last))
        return op.where(seen, s, relax.const(-np.inf, s.ty.dtype))

    members, emission, config = emitted(params, attention(score=score))
    inputs = arrays(params[:3])
    inputs["at"] = np.array([position])
    expected = reference(lambda s, at: np.where(columns <= rows + at, s, -np.inf))
    want = expected(*in_float64(inputs))
    behind = -(-(position + queries) // config.block_n) * config.block_n
    assert behind < keys
    for name in "kv":
        inputs[name][:, :, behind:] = np.nan
    close(run_all(members, emission, inputs), want, tolerance)


def of_latents(emit, q, latents, rotated):
    """Keys are latents and what is rotated, values the latents: all heads of queries share them."""
    keys = emit(op.concat([latents, rotated], 3))
    scores = emit(op.matmul(q, emit(op.permute_dims(keys, [0, 1, 3, 2]))))
    return op.matmul(emit(op.nn.softmax(scores, -1)), latents)


def of_latents_arrays(q, latents, rotated):
    return PLAIN[1](q / 8, np.concatenate([latents, rotated], 3), latents)


def latents(heads, keys, rank=512, rotated=64):
    return [
        tensor("q", 1, 1, heads, rank + rotated, dtype="float16"),
        tensor("latents", 1, 1, keys, rank, dtype="float16"),
        tensor("rotated", 1, 1, keys, rotated, dtype="float16"),
    ]


@pytest.mark.parametrize("heads", [16, 128])
def test_latents_of_heads_wider_than_tiles(heads):
    """DeepSeek's, of 576 elements: all heads of a token are the rows of blocks of tensor cores."""
    config = config_of(group(latents(heads, 2048), of_latents, CUDA))
    assert config.uses_mma
    assert config.groups * config.stages >= 4
    assert config.shared_bytes <= CUDA.device.shared_memory_per_block


@pytest.mark.parametrize("heads", [12, 72])
def test_attention_over_latents(heads):
    body = lambda emit, q, *rest: of_latents(  # noqa: E731
        emit, emit(op.multiply(q, relax.const(np.array(0.125, "float16")))), *rest
    )
    assert compare(latents(heads, 300, 320, 32), body, of_latents_arrays, 2e-3).uses_mma


def of_bytes(emit, q, k, v, of_keys, of_values):
    """Keys and values of a byte, with a scale of each position."""
    dtype = str(q.ty.dtype)
    k, v = (
        emit(op.multiply(emit(op.astype(x, dtype)), scale))
        for x, scale in ((k, of_keys), (v, of_values))
    )
    return attention(score=scaled)(emit, q, k, v)


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn"])
def test_keys_and_values_of_bytes_are_loaded_as_such(kind):
    scales = [tensor(name, 1, 2, 300, 1, dtype="float16") for name in ("of_keys", "of_values")]
    caches = [tensor(name, 1, 2, 300, 64, dtype=kind) for name in "kv"]
    params = [tensor("q", 1, 2, 4, 64, dtype="float16"), *caches, *scales]
    members, emission, config = emitted(params, of_bytes)
    assert config.width == 8
    inputs, rng = arrays(params), np.random.default_rng()
    for name in "kv":
        numbers = rng.standard_normal((1, 2, 300, 64)) * 30
        inputs[name] = numbers.astype(kind if kind == "int8" else ml_dtypes.float8_e4m3fn)
    for name in ("of_keys", "of_values"):
        inputs[name] = (np.abs(inputs[name]) / 30).astype("float16")
    q, k, v, of_keys, of_values = in_float64(inputs)
    expected = reference(lambda s: s / 8)(q, k * of_keys, v * of_values)
    close(run_all(members, emission, inputs), expected, 3e-3)
