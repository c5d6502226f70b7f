"""What claims cost: the roofline's properties and its fallbacks."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_fusion.core.contract.template import Claim
from tvm_fusion.device import GPUS, Device, host_cpu, parse
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.estimate import RegionCost

KIB, MIB = 1 << 10, 1 << 20
CPU = Device("llvm", "some", "some", cores=2, vector_bits=256, l3_bytes=32 * MIB)
DEVICES = [CPU, Device("llvm", "bare", "bare"), Device("cuda", "sm_1", "bare"), *GPUS.values()]


@dataclass(frozen=True)
class Tensor:
    bytes: int
    dtype: str = "float32"
    is_parameter: bool = False
    producer: object = None


@dataclass(eq=False)
class Operator:
    tensors: list
    results: list
    flops: int
    is_opaque: bool = False
    type: object = None


def make(inputs, outputs, flops, launches=1, parallelism=10**6, traffic=None):
    """A claim over one operator; ``traffic`` defaults to each tensor once."""
    op = Operator(inputs, outputs, flops)
    group = SimpleNamespace(members=(op,), inputs=inputs, outputs=outputs, key=object())
    traffic = sum(t.bytes for t in (*inputs, *outputs)) if traffic is None else traffic
    template = SimpleNamespace(name="some")
    return Claim(template, group, launches, traffic, flops, parallelism)


def elementwise(size, launches=1, parallelism=10**6, **of):
    tensor = Tensor(size, **of)
    return make([tensor], [tensor], size // 4, launches, parallelism)


claims = st.builds(
    make,
    st.lists(st.builds(Tensor, st.integers(0, 1 << 34), st.sampled_from(["float16", "float32"]))),
    st.lists(st.builds(Tensor, st.integers(0, 1 << 34)), min_size=1),
    st.integers(0, 1 << 44),
    st.integers(1, 5),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 36),
)


@given(st.sampled_from(DEVICES), claims, st.integers(0, 1 << 40))
def test_more_work_never_costs_less(device, claim, more):
    cost = CostModel(device).cost
    base = cost(claim).us
    assert 0 < base < float("inf")
    for field in ("bytes", "flops", "launches"):
        assert cost(replace(claim, **{field: getattr(claim, field) + more})).us >= base


@pytest.mark.parametrize("device", [CPU, GPUS["sm_90a"]], ids=lambda d: d.arch)
def test_work_and_launches_both_count(device):
    cost = CostModel(device).cost
    base = elementwise(1 << 30)
    assert cost(replace(base, bytes=2 * base.bytes)).us > 1.9 * cost(base).us
    assert cost(replace(base, flops=1 << 50)).us > 10 * cost(base).us
    assert cost(replace(base, launches=2)).us >= cost(base).us + 1


@given(st.integers(1, 1 << 20))
def test_more_blocks_never_cost_more_on_a_gpu(blocks):
    cost = CostModel(GPUS["sm_80"]).cost
    few = elementwise(1 << 28, parallelism=blocks)
    assert cost(replace(few, parallelism=blocks + 1)).us <= cost(few).us


def test_one_block_gets_twice_its_share_of_the_bandwidth():
    device = GPUS["sm_90a"]
    cost = CostModel(device).cost
    all_blocks = cost(elementwise(1 << 30)).us - 2
    one_block = cost(elementwise(1 << 30, parallelism=1)).us - 2
    assert one_block == pytest.approx(all_blocks * device.sm_count / 2)


def test_one_of_two_cores_gets_sixty_percent_and_wakes_nobody():
    cost = CostModel(CPU).cost
    both = cost(elementwise(1 << 30)).us - 6.5
    one = cost(elementwise(1 << 30, parallelism=1)).us - 1.5
    assert both / one == pytest.approx(0.6)
    small = elementwise(256)
    assert cost(replace(small, parallelism=1)).us == cost(small).us


def test_bandwidth_is_that_of_the_table():
    # 2 GiB to and from an H100 at 80 % of 3350 GB/s.
    us = CostModel(GPUS["sm_90a"]).cost(elementwise(1 << 30)).us
    assert us == pytest.approx(2 * (1 << 30) / (0.8 * 3350e9) * 1e6 + 2)


def test_what_fits_into_the_cache_moves_faster():
    cost = CostModel(GPUS["sm_90a"]).cost
    fits, exceeds = 50 * MIB, 51 * MIB
    assert cost(elementwise(exceeds)).us - 2 > 2 * (cost(elementwise(fits)).us - 2)


def test_weights_are_never_in_the_cache():
    cost = CostModel(CPU).cost
    weights = make([Tensor(MIB, is_parameter=True)], [Tensor(4)], 0)
    activations = make([Tensor(MIB)], [Tensor(4)], 0)
    assert cost(weights).us - 6.5 == pytest.approx(3 * (cost(activations).us - 6.5), rel=1e-3)


def test_only_contractions_use_matrix_units():
    cost = CostModel(GPUS["sm_80"]).cost
    operands, result = [Tensor(8 * MIB, "float16")] * 2, [Tensor(8 * MIB, "float16")]
    contraction = 2 * 2048**3
    dense = cost(make(operands, result, contraction)).us - 2
    assert dense == pytest.approx(contraction / (0.3 * 312e12) * 1e6)
    arithmetic = 200 * MIB  # of a map of many operations: 8 a byte
    single = make(operands, result, arithmetic, traffic=0)
    assert cost(single).us - 2 == pytest.approx(arithmetic / (0.3 * 19.5e12) * 1e6)


def test_an_epilogue_leaves_its_contraction_the_matrix_units():
    half = Tensor(8 * MIB, "float16")
    gemm = Operator([half, half], [half], 2 * 2048**3)
    wide = Tensor(16 * MIB)
    epilogue = Operator([half, wide], [wide], 4 * MIB)
    alone = make([half, half], [half], gemm.flops)
    group = SimpleNamespace(members=(gemm, epilogue), inputs=[half, half, wide], outputs=[wide])
    fused = replace(alone, group=group, flops=gemm.flops + epilogue.flops)
    cost = CostModel(GPUS["sm_80"]).cost
    assert cost(fused).us < 1.05 * cost(alone).us


def test_fusing_a_chain_saves():
    # One tensor too large for the cache in between: the reason for fusion.
    cost = CostModel(CPU)
    part = elementwise(64 * MIB)
    fused = replace(part, flops=2 * part.flops)
    assert cost.cost(fused).us < 0.6 * cost.total([part, part])


def test_every_kind_of_device_has_an_answer():
    for device in (host_cpu(), parse("cpu:x86-64-v3").device, parse("cuda:sm_100").device):
        assert CostModel(device).cost(elementwise(4096)).us > 0


@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 5), ("int8", 10)])
def test_products_on_tile_registers_of_cpus(dtype, least):
    """AMX multiplies many times as fast as vectors multiply float32; other CPUs have no rate."""
    product = make([Tensor(8, dtype)], [Tensor(4)], 10**10)
    tiles = replace(product, matrix_dtype=dtype)
    amx = CostModel(replace(parse("cpu:sapphirerapids").device, cores=1))
    assert amx.estimate(product) > least * amx.estimate(tiles)
    other = CostModel(replace(parse("cpu:skylake-avx512").device, cores=1))
    assert other.estimate(product) == other.estimate(tiles)


def test_plans_are_compared_by_one_model():
    """One that the fitted model does not cover has the roofline's figure, and so has the other."""
    fitted, other = RegionCost(80.0, 0, 1, 0, 1, roofline_us=30.0), RegionCost(40.0, 0, 1, 0, 1)
    assert fitted.comparable(other) == (30.0, 40.0)
    assert other.comparable(fitted) == (40.0, 30.0)
    assert fitted.comparable(fitted) == (80.0, 80.0)
