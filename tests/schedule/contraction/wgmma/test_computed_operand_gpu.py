"""GEMM with wgmma whose B the producer's threads dequantize: int4 and int8 weights with scales."""

from dataclasses import replace

import pytest
from emulator.memory import EmulationError
from group_kernels import CUDA, close, group, run
from quantised_products import inputs_of, int4, int8
from tvm import tirx

from tests.schedule.contraction.gemm_graphs import changed, contraction_of, product, with_numbers
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.tile.operand.tile import is_dequantized
from tvm_fusion.schedule.contraction.tile.shape import REGISTER_FILE
from tvm_fusion.schedule.contraction.wgmma import stages as wgmma_stages
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.operands.computed import ComputedTile
from tvm_fusion.schedule.contraction.wgmma.roles import Producer
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config, wgmma_configs
from tvm_fusion.schedule.gpu.matrix import wgmma

pytestmark = pytest.mark.slow_beyond(3)

FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
SMALL = {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 1}
SHARED = {"block_m": 128, "block_n": 64, "consumers": 2, "is_ping_pong": False}
TURNS = {"block_m": 64, "block_n": 64, "consumers": 2, "is_ping_pong": True}
CASES = {
    "int8": (int8(72, 136, 136, True), SMALL, True),
    "int8_bfloat16": (int8(72, 128, 72, True, "bfloat16"), SMALL, True),
    "int4": (int4(150, 192, 72, 1, True), SHARED, True),
    "int4_bfloat16": (int4(72, 208, 136, 1, True, "bfloat16"), TURNS, True),
    "int4_fraction": (int4(70, 128, 64, 1, True, zero=7.5), SMALL, False),
}


def of_tile(contraction, tile):
    found = wgmma_configs(contraction, FEW)
    return with_numbers(found, **tile)


def computes(case, tile, **change):
    """Run a case on the emulator; weights are rounded to the half type, once or twice."""
    params, body, reference = case
    members, contraction = contraction_of(params, body)
    config = changed(of_tile(contraction, tile), **change)
    assert config.computes_b
    inputs = inputs_of(params)
    wide = [x if x.dtype.kind in "iu" else x.astype("float64") for x in inputs.values()]
    rounding = 2e-2 if config.problem.a_dtype == "bfloat16" else 3e-3
    close(run(wgmma_gemm_gpu(members.program, config), members, inputs), reference(*wide), rounding)
    return config


@pytest.mark.parametrize("name", CASES)
def test_computes_the_product(name):
    case, tile, by_pairs = CASES[name]
    assert is_dequantized(computes(case, tile).problem, is_a=False) == by_pairs


@pytest.mark.parametrize(
    ("terms", "tile", "count"),
    [(256, SHARED, 2), (320, SHARED, 1), (256, TURNS, 2), (256, SMALL, 1)],
)
def test_two_producers_take_turns_over_an_even_number_of_stages(terms, tile, count):
    config = computes(int8(150, terms, 136, True), tile)
    assert config.producers == count
    assert config.registers * config.threads <= REGISTER_FILE
    filled, multiplied = config.moved_registers
    moved = count * filled + config.consumers * multiplied
    assert moved * wgmma.THREADS <= REGISTER_FILE or not config.moves_registers


def test_split_k():
    computes(int4(72, 520, 64, 1, True, size=8), SMALL, split_k=2, stages=3)


@pytest.mark.parametrize(
    "case", [int4(512, 4096, 14336, 1, True, size=128), int8(512, 4096, 14336, True)]
)
def test_many_rows_are_claimed(case):
    claim = GpuContraction().claim(group(*case[:2], CUDA), CUDA.device)
    assert claim.details.config.tile.computes_b
    assert claim.launches == 1


def test_operands_that_are_copied_are_not_computed():
    _, contraction = contraction_of(*product(512, 512, 512)[:2])
    assert not wgmma_config(contraction, CUDA.device).computes_b


def no_proxy_fence(monkeypatch):
    monkeypatch.setattr(wgmma, "fence_proxy", lambda: tirx.Evaluate(0))


def no_barrier_of_the_warp(monkeypatch):
    """One thread arrives for others, whose writes it does not know."""
    monkeypatch.setattr(wgmma_stages, "warp_sync", lambda: tirx.Evaluate(0))


def loads_of_another_tile(monkeypatch):
    begin = ComputedTile.begin

    def same(self, thread, tile, to):
        return begin(self, thread, tile._replace(k_tile=tile.k_tile * 0), to)

    monkeypatch.setattr(ComputedTile, "begin", same)


def producers_that_compute_the_same_stages(monkeypatch):
    init = Producer.__init__

    def first(self, *given):
        init(self, *given[:-1], given[-1] * 0)

    monkeypatch.setattr(Producer, "__init__", first)


MISTAKES = {
    no_proxy_fence: (EmulationError, "without a proxy fence"),
    no_barrier_of_the_warp: (EmulationError, "read without a barrier after the write"),
    loads_of_another_tile: (AssertionError, None),
    producers_that_compute_the_same_stages: (AssertionError, None),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_of_the_producer(mistake, monkeypatch):
    kind, message = MISTAKES[mistake]
    mistake(monkeypatch)
    with pytest.raises(kind, match=message):
        computes(*CASES["int4_bfloat16"][:2])
