import dataclasses

import pytest

from tvm_fusion.device import GPUS
from tvm_fusion.device.table import vector_bits


def test_the_table_holds_the_promised_architectures_in_ascending_order():
    assert list(GPUS) == [
        *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100"),
        *("gfx90a", "gfx942", "gfx1100"),
    ]


@pytest.mark.parametrize("arch", GPUS)
def test_figures_are_whole_and_of_a_sane_size(arch):
    device = GPUS[arch]
    needed = ("max_threads_per_block", "shared_memory_per_block", "warp_size", "l2_bytes")
    for name in (*needed, "registers_per_thread", "memory_bandwidth"):
        assert getattr(device, name) > 0, name
    assert 1e11 < device.memory_bandwidth < 1e13
    assert 64 << 10 <= device.shared_memory_per_block <= 227 << 10
    assert all(1e12 < rate < 1e16 for rate in device.peak_flops.values())


@pytest.mark.parametrize("arch", GPUS)
def test_narrower_types_are_no_slower(arch):
    rates = GPUS[arch].peak_flops
    order = [d for d in ("float32", "tfloat32", "float16", "float8") if d in rates]
    assert [rates[d] for d in order] == sorted(rates[d] for d in order)
    if {"float16", "bfloat16"} <= rates.keys():
        assert rates["float16"] == rates["bfloat16"]


@pytest.mark.parametrize(
    ("arch", "clock_hz", "flops_per_clock"),
    # Tensor core operations per multiprocessor and clock, and boost clocks, from the white papers:
    # the rates in the table must be their product.
    [("sm_75", 1.59e9, 1024), ("sm_80", 1.41e9, 2048), ("sm_86", 1.695e9, 1024)],
)
def test_half_precision_rates_follow_from_units_and_clock(arch, clock_hz, flops_per_clock):
    device = GPUS[arch]
    rate = device.sm_count * clock_hz * flops_per_clock
    assert device.peak_flops["float16"] == pytest.approx(rate, rel=0.01)


def test_devices_do_not_change_once_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPUS["sm_80"].warp_size = 64


def test_vector_width_from_features():
    assert vector_bits("any", ("sse2",)) == 128
    assert vector_bits("any", ("avx", "sse2")) == 256
    assert vector_bits("any", ("avx", "avx512f", "sse2")) == 512
    assert vector_bits("neoverse-n2", ("neon", "sve")) == 128
    assert vector_bits("neoverse-v1", ("neon", "sve")) == 256
    assert vector_bits("unknown", ()) is None
