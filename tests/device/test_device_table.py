import dataclasses

import pytest

from tvm_fusion.device import GPUS
from tvm_fusion.device.cpu_features import capabilities


def test_the_table_holds_the_promised_architectures_in_ascending_order():
    assert list(GPUS) == [
        *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100"),
        *("gfx90a", "gfx942", "gfx1100"),
    ]


@pytest.mark.parametrize("arch", GPUS)
def test_figures_are_whole_and_of_a_sane_size(arch):
    device = GPUS[arch]
    needed = ("max_threads_per_block", "shared_memory_per_block", "warp_size", "l2_bytes")
    for name in (*needed, "memory_bandwidth"):
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


@pytest.mark.parametrize(
    ("arch", "features", "width", "fixed", "registers"),
    [
        ("any", ("sse2",), 128, 128, 16),
        ("any", ("avx", "sse2"), 256, 256, 16),
        ("any", ("avx", "avx512f", "sse2"), 512, 512, 32),
        ("neoverse-n2", ("neon", "sve"), 128, 128, 32),
        ("neoverse-v1", ("neon", "sve"), 256, 128, 32),
    ],
)
def test_vector_registers_from_features(arch, features, width, fixed, registers):
    can = capabilities(arch, features)
    assert (can["vector_bits"], can["fixed_vector_bits"]) == (width, fixed)
    assert can["vector_registers"] == registers


def test_a_cpu_of_which_nothing_is_known():
    assert capabilities("unknown", ()) == {"features": (), "vector_bits": None}


def test_instruction_sets_that_add_products_of_narrow_types():
    both = capabilities("any", ("avx", "avx512f", "avx512vnni", "avxvnni", "avx512bf16"))
    assert (both["vnni_bits"], both["dpbf16_bits"]) == (512, 512)
    assert "dpbf16_bits" not in capabilities("any", ("avx512f", "avx512bf16", "amx-bf16"))
    assert capabilities("any", ("avx", "avxvnni"))["vnni_bits"] == 256
    assert capabilities("any", ("sse2", "avx2"))["int16_dot_bits"] == 256
    assert capabilities("any", ("sse2", "avx2", "avx512bw"))["int16_dot_bits"] == 512
    tiles = capabilities("any", ("amx-int8", "amx-bf16"))["matrix_instructions"]
    assert {i.dtype for i in tiles} == {"int8", "bfloat16"}


@pytest.mark.parametrize(
    ("arch", "name", "dtype", "shape", "has"),
    [
        ("sm_75", "mma.sync", "float16", (16, 8, 8), True),
        ("sm_75", "mma.sync", "float16", (16, 8, 16), False),
        ("sm_75", "mma.sync", "bfloat16", None, False),
        ("sm_80", "mma.sync", "bfloat16", (16, 8, 16), True),
        ("sm_86", "mma.sync", "float8", None, False),
        ("sm_89", "mma.sync", "float8", (16, 8, 32), True),
        ("sm_90", "wgmma", "float16", None, False),
        ("sm_90a", "wgmma", "float16", None, True),
        ("sm_90a", "mma.sync", "float64", (16, 8, 16), True),
        ("sm_100", "wgmma", "float16", None, False),
        ("gfx90a", "mfma", "float8", None, False),
        ("gfx942", "mfma", "float8", (16, 16, 32), True),
        ("gfx942", "mfma", "bfloat16", (32, 32, 8), True),
        ("gfx1100", "wmma", "bfloat16", (16, 16, 16), True),
        ("gfx1100", "mfma", "float16", None, False),
    ],
)
def test_matrix_instructions(arch, name, dtype, shape, has):
    assert GPUS[arch].has_matrix(name, dtype, shape) == has


@pytest.mark.parametrize("arch", GPUS)
def test_dtypes_with_a_matrix_rate_have_a_matrix_instruction(arch):
    """In both tables, or in none, as far as a rate is known."""
    device = GPUS[arch]
    has = {i.dtype for i in device.matrix_instructions}
    narrow = {"float16", "bfloat16", "float8", "int8", "tfloat32"} & device.peak_flops.keys()
    assert narrow <= has


def having(capability):
    return [arch for arch, device in GPUS.items() if getattr(device, capability)]


def test_capabilities_of_architectures():
    assert having("async_copy") == ["sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100"]
    assert having("tma") == having("clusters") == ["sm_90", "sm_90a", "sm_100"]
    assert having("dependent_launch") == having("tma")
    assert having("device_library") == ["gfx90a", "gfx942", "gfx1100"]


@pytest.mark.parametrize("arch", GPUS)
def test_a_block_takes_no_more_than_a_multiprocessor_has(arch):
    device = GPUS[arch]
    assert device.shared_memory_per_block <= device.shared_memory_per_sm
    assert device.max_threads_per_block <= device.max_threads_per_sm
