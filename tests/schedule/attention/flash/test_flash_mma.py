"""FlashAttention on tensor cores: results, masks, tiles that are skipped, machine code."""

import re

import group_kernels
import numpy as np
import pytest
from group_kernels import CUDA, arrays, close, cuda_kernel, group, kernel, run, tensor
from nvcc import machine_code, needs_nvcc
from tvm import relax, s_tir

from tests.schedule.attention.attention_graphs import (
    CASES,
    LOWEST,
    PLAIN,
    SYMBOLIC,
    attention,
    op,
    packed,
    reference,
    safe,
    safe_arrays,
    safe_tensors,
    spoil,
    tensors,
    visible,
)
from tests.schedule.attention.flash.flash_cases import (
    HALF,
    SHARED,
    appended,
    float32_operands,
    guarded_weights,
    halves,
    numbers_are_halves,  # noqa: F401  (a fixture)
    problem_of,
)
from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.cuda_cores.config import GpuConfig
from tvm_fusion.schedule.attention.flash.config import FlashMmaConfig
from tvm_fusion.schedule.attention.flash.kernel import flash_mma_kernel
from tvm_fusion.schedule.attention.flash.model import configs
from tvm_fusion.schedule.attention.flash.tma.config import FlashTmaConfig
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.gpu.dlight import check_gpu

pytestmark = pytest.mark.slow_beyond(2)

TURING = parse("cuda:sm_75")


def computed(params, members, problem, config, edit=None):
    """The kernel of a configuration, its results, and the inputs in float64."""
    func = flash_mma_kernel(members.program, problem, config)
    assert check_gpu(func, CUDA.tvm_target()) is None
    inputs = arrays(params)
    if edit is not None:
        edit(inputs)
    found = run(func, members, inputs, CUDA)
    return func, found, [x.astype("float64") for x in inputs.values()]


def compare(params, body, expected, tolerance=2e-3, accept=None, edit=None, spec=CUDA):
    """Run the default configuration, or a drawn one of those that are accepted."""
    members, problem = problem_of(params, body, CUDA)
    found = list(configs(problem, spec.device))
    chosen = found[0]
    if accept is not None:
        accepted = [c for c in found if accept(c)]
        chosen = accepted[np.random.default_rng().integers(len(accepted))]
    _, results, wide = computed(params, members, problem, chosen, edit)
    close(results, expected(*wide), tolerance)
    return problem, chosen


@pytest.mark.usefixtures("numbers_are_halves")
@pytest.mark.parametrize("case", SHARED)
def test_against_float64(case):
    params, body, expected = CASES[case]
    compare(halves(params), body, expected, 4e-3)


@pytest.mark.usefixtures("numbers_are_halves")
@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_lengths(case, monkeypatch):
    monkeypatch.setattr(group_kernels, "SIZE", 45)
    params, body, expected = SYMBOLIC[case]
    compare(halves(params), body, expected, 4e-3)


@pytest.mark.parametrize(("size", "columns"), [(20, 24), (40, 40), (80, 96), (128, 64), (256, 256)])
def test_sizes_of_heads(size, columns):
    compare(tensors(1, 2, 37, 70, size, columns, dtype=HALF), *PLAIN)


@pytest.mark.parametrize("queries", [3, 17, 65, 128])
def test_drawn_configurations_of_mma(queries):
    params = tensors(1, 2, queries, 197, 64, dtype=HALF)
    compare(params, *PLAIN, accept=lambda c: not c.uses_wgmma)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "columns"), [(64, 64), (128, 64)])
def test_drawn_configurations_of_wgmma(size, columns):
    params = tensors(1, 1, 70, 100, size, columns, dtype=HALF)
    compare(params, *PLAIN, accept=lambda c: c.uses_wgmma)


def test_bfloat16():
    compare(tensors(1, 2, 37, 70, 64, dtype="bfloat16"), *PLAIN, 2e-2)


def test_products_in_float32_of_halves():
    """The results are float32, and pass through shared memory as such."""
    params = tensors(1, 2, 40, 70, 64, dtype=HALF)
    problem, _ = compare(params, float32_operands(PLAIN[0]), PLAIN[1])
    assert problem.staged == "float32"


@pytest.mark.parametrize(
    ("queries", "keys", "options", "skips"),
    [
        (100, 100, {}, True),
        (37, 100, {"offset": 63}, True),
        (100, 37, {}, True),
        (150, 150, {"window": 20}, True),
        (60, 60, {"fill": -100.0}, False),
    ],
)
def test_hidden_tiles_are_skipped(queries, keys, options, skips):
    params = tensors(1, 2, queries, keys, 32, dtype=HALF)
    problem, _ = compare(
        params, *visible(queries, keys, **options), accept=lambda c: c.block_n in (16, 32)
    )
    assert problem.skips == skips
    assert len(problem.score.bounds) == (1 + ("window" in options) if skips else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queries", "keys", "options"), [(150, 200, None), (150, 150, {}), (150, 150, {"window": 40})]
)
def test_ping_pong_of_two_warpgroups(queries, keys, options):
    """The second is half a tile behind; its last product follows the loop."""
    body, expected = PLAIN if options is None else visible(queries, keys, **options)
    params = tensors(1, 1, queries, keys, 64, dtype=HALF)
    compare(params, body, expected, accept=lambda c: c.is_ping_pong)


@pytest.mark.parametrize(("offset", "skips"), [(0, True), (-5, False)])
def test_finite_masks_are_skipped_where_all_rows_see_a_key(offset, skips):
    """Other rows average all values."""
    params = tensors(1, 1, 40, 70, 32, dtype=HALF)
    body, expected = visible(40, 70, offset=offset, fill=LOWEST)
    accept = (lambda c: c.block_n == 16) if skips else None
    problem, _ = compare(params, float32_operands(body), expected, accept=accept)
    assert problem.skips == skips


def test_padding_beside_a_causal_mask():
    params = [*tensors(2, 2, 70, 70, 32, dtype=HALF), tensor("mask", 2, 1, 1, 70, dtype=HALF)]

    def pad(inputs):
        inputs["mask"][:] = np.where(np.arange(70) < 50, 0, -np.inf)

    compare(params, *visible(70, 70, mask=True), edit=pad, accept=lambda c: c.block_n == 32)


@pytest.mark.parametrize("masked_weight", [0.0, 0.5])
def test_rows_whose_weights_are_nan(masked_weight):
    """The guard's weight replaces them; other rows keep theirs."""
    params, body, expected, hide = guarded_weights(masked_weight)
    compare(params, body, expected, edit=hide)


@pytest.mark.parametrize("form", ["mma", "wgmma", "tma"])
def test_rows_with_nan_or_infinity_stay_nan(form):
    def accept(config):
        of_config = "wgmma" if config.uses_wgmma else "mma"
        return form == ("tma" if isinstance(config, FlashTmaConfig) else of_config)

    queries, size = (5, 32) if form == "mma" else (70, 64)
    params = safe_tensors(queries, 100, size, HALF)
    compare(params, safe, safe_arrays, accept=accept, edit=spoil)


def test_masked_rows_are_nan_without_a_guard():
    params = [*tensors(1, 1, 20, 40, 32, dtype=HALF), tensor("mask", 1, 1, 20, 40, dtype=HALF)]
    members, problem = problem_of(
        params, attention(score=lambda emit, s, mask: emit(op.add(s, mask))), CUDA
    )
    inputs = arrays(params)
    inputs["mask"][..., 3, :] = -np.inf
    func = flash_mma_kernel(members.program, problem, next(configs(problem, CUDA.device)))
    (result,) = run(func, members, inputs, CUDA)
    assert np.isnan(result[..., 3, :]).all()
    assert not np.isnan(np.delete(result, 3, 2)).any()


@pytest.mark.parametrize("spec", [CUDA, TURING])
def test_appended_keys_are_copied_from_their_own_buffers(spec):
    problem, _ = compare(*appended(), spec=spec)
    assert len(problem.k.loads) == len(problem.v.loads) == 2


@pytest.mark.parametrize("case", ["heads_of_24", "causal", "rounded", "many_tiles"])
def test_copies_through_registers(case):
    """Compute capability 7.5 has no cp.async; padded heads, masks, computed operands."""
    params, (body, expected) = tensors(1, 2, 37, 70, 64, dtype=HALF), PLAIN
    accept = None
    if case == "heads_of_24":
        params = tensors(1, 2, 20, 45, 24, 40, dtype=HALF)
    elif case == "causal":
        params, (body, expected) = tensors(1, 2, 70, 70, 64, dtype=HALF), visible(70, 70)
    elif case == "rounded":
        scale = relax.const(np.array(0.5, HALF))

        def body(emit, q, k, v):
            return PLAIN[0](emit, q, k, emit(op.multiply(v, scale)))

        def expected(q, k, v):
            return PLAIN[1](q, k, v / 2)

    elif case == "many_tiles":
        params = tensors(1, 2, 70, 197, 64, dtype=HALF)

        def accept(config):
            return config.block_n <= 48 and config.q_in_registers

    _, config = compare(params, body, expected, 4e-3, accept, spec=TURING)
    assert (config.is_async, config.stages) == (False, 1)
    assert config.shared_bytes <= 64 << 10


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("spec", [CUDA, TURING])
def test_packed_sequences_skip_keys_of_others(is_causal, spec):
    """Of 1 to 90 tokens; a block's first and last keys are read, and are no function of rows."""
    offsets = np.array([0, 5, 6, 96, 133])
    total = int(offsets[-1])
    params = tensors(1, 1, total, total, 32, dtype=HALF)
    params += [tensor(name, total, dtype="int64") for name in ("begin", "end")]
    body, expected, edit = packed(offsets, is_causal)
    accept = (lambda c: c.block_n in (16, 32)) if spec is CUDA else None
    problem, _ = compare(params, body, expected, 4e-3, accept, edit, spec)
    assert problem.skips
    assert len(problem.loaded_bounds) == 2
    assert len(problem.score.bounds) == 2 + is_causal


def test_hidden_keys_of_other_sequences_are_not_read():
    """NaN in all keys and values of the second sequence: rows of the first do not see them."""
    offsets = np.array([0, 64, 128])
    params = tensors(1, 1, 128, 128, 32, dtype=HALF)
    params += [tensor(name, 128, dtype="int64") for name in ("begin", "end")]
    body, expected, edit = packed(offsets)
    members, problem = problem_of(params, body, CUDA)
    config = next(c for c in configs(problem, CUDA.device) if (c.block_m, c.block_n) == (64, 64))

    def poison(inputs):
        edit(inputs)
        for name in ("k", "v"):
            inputs[name][:, :, 64:] = np.nan

    _, (found,), wide = computed(params, members, problem, config, poison)
    assert np.isnan(found[:, :, 64:]).all()
    wide[1:3] = (np.nan_to_num(x) for x in wide[1:3])
    close([found[:, :, :64]], [expected(*wide)[0][:, :, :64]], 4e-3)


@pytest.mark.parametrize("position", [0, 70])
def test_keys_behind_a_prompt_are_not_read(position):
    """A prompt at a position that is read from memory, in a cache of another size."""
    queries, keys = 64, 256
    params = [tensor("q", 1, 1, queries, 32, dtype=HALF)]
    params += [tensor(name, 1, 1, keys, 32, dtype=HALF) for name in ("k", "v")]
    params.append(tensor("at", 1, dtype="int64"))
    rows, columns = np.arange(queries)[:, None], np.arange(keys)

    def score(emit, s, at):
        last = emit(op.add(relax.const(rows, "int64"), emit(op.reshape(at, (1, 1)))))
        seen = emit(op.less_equal(relax.const(columns[None], "int64"), last))
        return op.where(seen, s, relax.const(-np.inf, s.ty.dtype))

    members, problem = problem_of(params, attention(score=score), CUDA)
    config = next(c for c in configs(problem, CUDA.device) if (c.block_m, c.block_n) == (64, 64))
    behind = -(-(position + queries) // 64) * 64

    def poison(inputs):
        inputs["at"] = np.array([position])
        for name in ("k", "v"):
            inputs[name][:, :, behind:] = np.nan

    _, found, wide = computed(params, members, problem, config, poison)
    wide[1:3] = (np.nan_to_num(x) for x in wide[1:3])
    expected = reference(lambda s, at: np.where(columns <= rows + at, s, -np.inf))
    close(found, expected(*wide), 4e-3)


def test_the_template_claims_it_where_there_are_tensor_cores():
    members = group(tensors(1, 2, 65, 70, 64, dtype=HALF), PLAIN[0], CUDA)
    claim = Attention(True).claim(members, CUDA.device)
    assert isinstance(claim.details.config, FlashMmaConfig)
    assert claim.registers == claim.details.config.registers
    for dtype, kind in ((HALF, FlashMmaConfig), ("bfloat16", GpuConfig)):
        members = group(tensors(1, 2, 65, 70, 64, dtype=dtype), PLAIN[0], TURING)
        older = Attention(True).claim(members, TURING.device)
        assert isinstance(older.details.config, kind)


def test_the_default_comes_first_and_nothing_twice():
    _, problem = problem_of(tensors(1, 16, 1024, 1024, 64, dtype=HALF), PLAIN[0], CUDA)
    found = list(configs(problem, CUDA.device))
    assert len(found) > 100
    assert len(set(found)) == len(found)
    assert {c.uses_wgmma for c in found} == {False, True}
    for arch in ("sm_80", "sm_89", "sm_90a"):
        device = parse(f"cuda:{arch}").device
        for config in configs(problem, device):
            assert config.shared_bytes <= device.shared_memory_per_block
            assert config.min_blocks * config.threads * config.registers <= 1 << 16
            assert config.uses_wgmma <= (arch == "sm_90a")


def emitted(params, body):
    return kernel(Attention(True), group(params, body, CUDA), CUDA)[1]


def test_shared_memory_is_one_buffer_and_fragments_are_whole():
    """TVM may merge buffers, and declares no more of one than loads and stores reach."""
    func = emitted(tensors(1, 16, 1024, 384, 64, dtype=HALF), PLAIN[0])  # too few keys for TMA
    blocks = find(func.body, s_tir.SBlock)
    scopes = [b.scope() for block in blocks for b in block.alloc_buffers]
    assert scopes.count("shared.dyn") == 1
    text = cuda_kernel(func)
    for name, size in (("acc", 32), ("s", 64), ("q_frag", 32), ("p_frag", 64), ("o", 32)):
        assert f" {name}_ptr[{size}];" in text


SHAPES = {
    "d64": tensors(1, 16, 1024, 1024, 64, dtype=HALF),
    "d128": tensors(4, 32, 4096, 4096, 128, dtype=HALF),
    "d256": tensors(1, 8, 1000, 1000, 256, dtype=HALF),
    "odd": tensors(64, 12, 197, 197, 64, dtype=HALF),
}


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_registers_are_those_that_were_claimed():
    claims, functions = {}, {}
    few_keys = {  # TMA copies more
        "d64": tensors(1, 16, 1024, 384, 64, dtype=HALF),
        "d128": tensors(4, 32, 4096, 384, 128, dtype=HALF),
        "d256": tensors(1, 8, 1000, 384, 256, dtype=HALF),
    }
    for name, params in (SHAPES | few_keys).items():
        claims[name], functions[name] = kernel(Attention(True), group(params, PLAIN[0], CUDA), CUDA)
    # A single tile, without a loop, needs fewer than are claimed.
    for name, made in machine_code(functions).items():
        assert made.spilled_bytes == made.stack_bytes == 0
        assert abs(claims[name].registers - made.registers) <= made.registers / 4
        assert made.ptx.count("ldmatrix") > 0
        assert made.ptx.count("cp.async.cg") > 0


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_machine_code_of_turing():
    claims, functions = {}, {}
    for name in ("d64", "d128"):
        members = group(SHAPES[name], PLAIN[0], TURING)
        claims[name], functions[name] = kernel(Attention(True), members, TURING)
    for name, made in machine_code(functions, "sm_75").items():
        assert made.spilled_bytes == made.stack_bytes == 0
        assert abs(claims[name].registers - made.registers) <= made.registers / 4
        assert made.ptx.count("m16n8k8.") > 0
        assert made.ptx.count("ldmatrix") > 0


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_warpgroups_wait_for_no_registers():
    """Their products are not serialized for want of registers, and spill nothing."""
    functions = {}
    for name in ("d64", "d128", "odd"):
        members, problem = problem_of(SHAPES[name], PLAIN[0], CUDA)
        found = [c for c in configs(problem, CUDA.device) if c.uses_wgmma]
        best = next(c for c in found if c.warps == 4 and c.block_n == 64)
        functions[name] = flash_mma_kernel(members.program, problem, best)
    for made in machine_code(functions).values():
        assert made.spilled_bytes == 0
        assert made.ptx.count("wgmma.mma_async") > 0


def test_each_vector_of_results_is_loaded():
    """TVM's generator takes two vectors loaded from one place for the same: none is."""
    text = cuda_kernel(emitted(tensors(1, 16, 128, 128, 64, dtype=HALF), PLAIN[0]))
    staged = text[text.rindex("__syncthreads") :]
    places = re.findall(r"\*\(uint4\*\)\(o_ptr \+ (\d+)\)", staged)
    assert len(places) == len(set(places)) == staged.count("tvm_fusion_move_16(")
    assert "tvm_fusion_move_16" in staged
