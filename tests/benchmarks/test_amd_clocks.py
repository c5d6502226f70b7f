"""Times of AMD kernels by their counts: the model, and the page of the record."""

from dataclasses import replace

import pytest
from emulator.amd import Span

from benchmarks.amd_clocks import table
from benchmarks.amd_clocks.count import Counts
from benchmarks.amd_clocks.model import LAUNCH_US, megahertz, price, resident
from benchmarks.amd_clocks.record import load
from tvm_fusion.deploy.toolchain.rocm_code import KernelCode
from tvm_fusion.device import GPUS

MI300X = GPUS["gfx942"]
CODE = KernelCode("k", 128, 0, 20, 32 << 10, 0, 0, 256)
CLOCKS = {"matrix": 5000.0, "vector": 900.0, "scalar": 50.0, "memory": 30.0, "branch": 4.0}
SPAN = Span(0, 400, 1.0, CLOCKS, {}, 100.0, 100.0, 4096.0, 0.0, ())
COUNTS = Counts(608, 4, CODE, SPAN, 1 << 20)


def test_blocks_share_a_compute_unit_as_registers_and_lds_allow():
    assert resident(COUNTS, MI300X) == 2  # 64 KiB of LDS
    assert resident(replace(COUNTS, code=replace(CODE, registers=300)), MI300X) == 1
    assert resident(replace(COUNTS, blocks=304), MI300X) == 1


def test_the_busiest_unit_bounds_a_kernel():
    found = price(COUNTS, MI300X, 0.0)
    assert (found.bound, found.waves) == ("matrix", 2.0)
    assert found.us == pytest.approx(LAUNCH_US + 2 * 5000 / megahertz(MI300X))
    assert price(COUNTS, MI300X, 100.0).bound == "memory"
    busy = replace(COUNTS, span=replace(SPAN, lds_clocks=2000.0))
    assert price(busy, MI300X, 0.0).bound == "LDS"


def test_loads_on_their_way_together_are_waited_for_once():
    waits = ((0.0, 100.0, 1.0), (10.0, 110.0, 1.0))
    one = replace(COUNTS, blocks=1, waves=1, span=replace(SPAN, clocks=CLOCKS, waits=waits))
    alone = price(replace(one, span=replace(SPAN, waits=())), MI300X, 0.0)
    assert (price(one, MI300X, 0.0).us - alone.us) * megahertz(MI300X) == pytest.approx(900.0)


def test_the_page_is_the_records():
    page = table.page()
    for arch, one in load().items():
        dearest = max(
            (r for r in one["rows"] if "us" in r), key=lambda row: row["calls"] * row["us"]
        )
        assert f"## {arch}\n" in page
        assert f"| {dearest['model']} | {dearest['title'][:50]}" in page
