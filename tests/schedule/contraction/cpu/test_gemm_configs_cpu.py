"""Blocking of a GEMM on a CPU: the model's default, and the design space that a tuner measures."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import tvm
from group_kernels import CPU, arrays, close, group, run, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.cpu import config as gemm_config_cpu
from tvm_fusion.schedule.contraction.cpu.blocking import GemmProblem, Machine, default_blocking
from tvm_fusion.schedule.contraction.cpu.config import blockings, configs, default
from tvm_fusion.schedule.contraction.cpu.kernel import gemm_cpu
from tvm_fusion.schedule.contraction.cpu.tile_blocking import default_tile_blocking
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.cpu import tile_block
from tvm_fusion.schedule.cpu.register_tile import VectorUnit

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
AVX512, AVX2, NEON = VectorUnit(16, 32), VectorUnit(8, 16), VectorUnit(4, 32)
L2 = [1 << 18, 1 << 19, 1 << 20, 5 << 18, 1 << 21]
extents = st.one_of(st.none(), st.integers(1, 5000))
problems = st.builds(GemmProblem, extents, extents, extents, extents, st.booleans())
machines = st.builds(
    Machine, st.sampled_from([AVX512, AVX2, NEON]), st.integers(1, 64), st.sampled_from(L2)
)


def fits(sizes, problem, machine):
    """Tiles fit the registers, what tasks reuse or copy fits the caches."""
    unit, whole = machine.unit, problem.whole_k
    vectors = sizes.nr // unit.lanes
    assert sizes.nr == vectors * unit.lanes
    assert sizes.mr * vectors + vectors + 1 <= unit.registers
    assert sizes.mr <= (problem.m or sizes.mr)
    assert sizes.block_m % sizes.mc == 0
    assert sizes.mc % sizes.mr == 0
    if whole:
        assert problem.k is None or sizes.kc == problem.k
        return
    panel = sizes.kc * sizes.nr
    assert panel <= machine.panel
    one = sizes.block_m * sizes.nr  # partial sums of a single panel
    partial = machine.copied if problem.copies else machine.panel
    if problem.k is None or problem.k > sizes.kc:
        assert one * sizes.panels <= max(partial, one)
    if problem.copies:
        assert sizes.panels * panel <= machine.copied


@settings(max_examples=300)
@given(problems, machines, st.booleans())
def test_the_default_fits_registers_and_caches(problem, machine, copies):
    problem = replace(problem, copies=copies)
    fits(default_blocking(problem, machine), problem, machine)


@pytest.mark.slow
@settings(max_examples=100)
@given(problems, machines, st.booleans(), st.integers(0, 300))
def test_the_design_space_fits_registers_and_caches(problem, machine, copies, step):
    problem = replace(problem, copies=copies)
    for sizes in itertools.islice(blockings(problem, machine), 0, None, step + 1):
        fits(sizes, problem, machine)


def fits_tiles(sizes, problem, machine):
    """Tiles exist, a pass is whole steps, and what it reads of B stays in the level-1 cache."""
    rows, vectors = -(-sizes.mr // 16), sizes.nr // 16
    assert sizes.nr == 16 * vectors
    assert tile_block.fits(rows, vectors)
    assert sizes.mr <= (problem.m or sizes.mr)
    assert sizes.block_m == sizes.mc
    assert sizes.mc % sizes.mr == 0
    assert sizes.kc % problem.tile_words == 0
    assert sizes.kc <= (problem.k or sizes.kc)
    assert sizes.panels >= 1


tile_problems = st.builds(
    lambda m, n, steps, words, whole, copies: GemmProblem(
        m, n, steps and steps * words, 3, whole, copies=copies, tile_words=words
    ),
    *[extents] * 3,
    st.integers(1, 16),
    st.booleans(),
    st.booleans(),
)


@given(tile_problems, machines)
def test_the_default_fits_tile_registers(problem, machine):
    sizes = default_tile_blocking(problem, machine)
    fits_tiles(sizes, problem, machine)
    tall = sizes.block_m > 2 * sizes.mr and not problem.whole_k
    assert not tall or 4 * sizes.kc * sizes.nr <= 1 << 15


@pytest.mark.parametrize(
    ("rows", "columns", "words"), [(12544, 96, 16), (1024, 1024, 512), (512, 768, 384)]
)
def test_threads_are_equally_busy_on_tile_registers(rows, columns, words):
    """Threads take as many consecutive tasks each; the busiest has few tiles more than a share."""
    problem = GemmProblem(rows, columns, words, 1, tile_words=16)
    machine = Machine(VectorUnit(16, 32), cores=16, l2_bytes=1 << 21)
    sizes = default_tile_blocking(problem, machine)
    tasks = -(-rows // sizes.block_m) * -(-columns // (sizes.panels * sizes.nr))
    busiest = -(-tasks // 16) * sizes.block_m * sizes.panels * sizes.nr
    assert busiest <= 1.1 * rows * columns / 16


@settings(max_examples=20)
@given(tile_problems, machines)
def test_the_design_space_fits_tile_registers(problem, machine):
    every = list(itertools.islice(blockings(problem, machine), 300))
    assert every
    for sizes in every:
        fits_tiles(sizes, problem, machine)


def test_few_blocks_copy_the_same_panels():
    """As long as there are tasks for all cores."""
    for cores, most in ((1, 2), (2, 2), (8, 4), (64, 16)):
        problem = GemmProblem(2048, 2048, 2048, 1, copies=True)
        sizes = default_blocking(problem, Machine(AVX512, cores))
        blocks = -(-2048 // sizes.block_m)
        chunks = -(-2048 // (sizes.panels * sizes.nr))
        assert blocks <= most
        assert blocks * chunks >= 3 * cores


@pytest.mark.parametrize(
    ("unit", "tile"),
    [(AVX512, (6, 64)), (AVX2, (4, 24)), (NEON, (6, 16))],
    ids=["avx512", "avx2", "neon"],
)
def test_large_products_use_nearly_all_registers(unit, tile):
    sizes = default_blocking(GemmProblem(6 * 64, 64 * 60, 512, 1), Machine(unit, 2))
    assert (sizes.mr, sizes.nr) == tile


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
@pytest.mark.parametrize(("m", "n"), [(128, 768), (128, 3072), (1024, 64), (1, 4096)])
def test_work_is_balanced(cores, m, n):
    """No core has more than 1.3 times its share of tiles."""
    sizes = default_blocking(GemmProblem(m, n, 768, 1), Machine(AVX512, cores))
    blocks, chunks = -(-m // sizes.block_m), -(-n // (sizes.panels * sizes.nr))
    tasks = blocks * chunks
    most = -(-tasks // cores) * sizes.block_m * sizes.panels * sizes.nr
    if m > 1 and m * n * 768 // cores > 1 << 20:
        assert most <= 1.3 * m * n / cores


def test_larger_caches_take_fewer_passes():
    problem = GemmProblem(384, 768, 4096, 1)
    depths = [default_blocking(problem, Machine(AVX512, 2, size)).kc for size in L2]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


def test_the_machine_is_read_off_the_device():
    device = replace(parse("cpu:x86-64-v4").device, cores=3, l2_bytes=1 << 19)
    assert Machine.of(device) == Machine(AVX512, 3, 1 << 19)
    assert Machine.of(device, 64).unit.lanes == AVX512.lanes // 2
    shared = replace(device, l2_bytes=12 << 20)
    assert Machine.of(shared).l2_bytes == 2 << 20


# Kernels ------------------------------------------------------------------------------------------


def product(rows, terms, columns, dtype="float32"):
    params = [tensor("x", rows, terms, dtype=dtype), tensor("w", terms, columns, dtype=dtype)]
    members = group(params, lambda emit, x, w: op.matmul(x, w), CPU)
    return params, members, analyse(members.program, members.program.stages)


def test_the_default_comes_first_and_nothing_twice():
    *_, contraction = product(37, 300, 100)
    found = list(configs(contraction, CPU.device))
    chosen = default(contraction, CPU.device)
    assert (found[0].sizes, found[0].b_source) == (chosen.sizes, chosen.b_source)
    assert len({config.sizes for config in found}) == len(found) > 100


def test_what_is_no_gemm_has_none():
    *_, contraction = product(1, 50, 60)  # one row, and a B that no one packs
    assert default(contraction, CPU.device) is None
    assert list(configs(contraction, CPU.device)) == []


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("shape", [(37, 300, 100), (130, 77, 70), (5, 2600, 65)])
def test_every_configuration_computes_the_product(shape):
    params, members, contraction = product(*shape)
    found = list(configs(contraction, CPU.device))
    rng = np.random.default_rng()
    inputs = arrays(params, rng.integers(1 << 30))
    x, w = (value.astype("float64") for value in inputs.values())
    for number in rng.choice(len(found), 5, replace=False):
        func, packing = gemm_cpu(members.program, found[number], CPU.tvm_target())
        assert not packing
        close(run(func, members, inputs, CPU), [x @ w])


@pytest.mark.slow
def test_drawn_configurations_of_packed_weights_and_norm_prologues(monkeypatch):
    rng, drawn = np.random.default_rng(), []

    def draw(problem, machine):
        found = list(blockings(problem, machine))
        drawn.append((found[rng.integers(len(found))], problem.norm_k))
        return drawn[-1][0]

    monkeypatch.setattr(gemm_config_cpu, "default_blocking", draw)
    weights = [rng.standard_normal(shape).astype("float32") / 8 for shape in ((72, 300), (300, 70))]
    x, scale, shift = tensor("x", 29, 72), *(np.full(72, c, "float32") for c in (1.5, 0.25))

    def body(emit, x):
        normal = op.nn.layer_norm(x, relax.const(scale), relax.const(shift), -1)
        hidden = emit(op.tanh(emit(op.matmul(emit(normal), relax.const(weights[0])))))
        return op.matmul(hidden, relax.const(weights[1]))

    built = tvm.compile(
        main_module([x], body),
        CPU.tvm_target(),
        relax_pipeline="tvm_fusion",
        tir_pipeline="tvm_fusion",
    )
    given = rng.standard_normal((29, 72)).astype("float32")
    actual = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(given)).numpy()
    wide = given.astype("float64")
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    expected = np.tanh((normal * scale + shift) @ weights[0]) @ weights[1]
    close([actual], [expected])
    assert {norm_k for _, norm_k in drawn} == {None, 72}


@pytest.mark.parametrize("unit", [AVX512, AVX2, NEON])
def test_few_rows_and_many_share_a_packed_b(unit):
    """A decode step and a prefill of one model store each weight once."""
    machine = Machine(unit)
    for n in np.random.default_rng().integers(1, 5000, 50).tolist():
        widths = {default_blocking(GemmProblem(m, n, 512, 1), machine).nr for m in (1, 3, 4)}
        assert widths == {default_blocking(GemmProblem(None, n, 512, 1), machine).nr}, n
