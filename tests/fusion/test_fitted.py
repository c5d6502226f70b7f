"""The cost model fitted to devices: what ships, what it says, what is left to the roofline."""

from dataclasses import replace

import pytest
from test_cost import Tensor, elementwise, make

from tvm_fusion.device import Device
from tvm_fusion.fusion import cost as fitted
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.features import NAMES, features_of

MIB = 1 << 20
DEVICE = Device("llvm", "zen9", "Some CPU", cores=4, vector_bits=256, l3_bytes=32 * MIB)
ROW = [2.0, 0.01, 0.02, 0.1, 10.0, 20.0]


@pytest.fixture
def fit(monkeypatch):
    found = fitted.Fit({"": ROW, "rows": [1.0] + [0.0] * 5}, frozenset(["float32"]), {})
    monkeypatch.setattr(fitted, "fits", lambda: {("llvm", "zen9", "Some CPU"): found})
    return found


def test_what_ships_is_sound():
    fitted.fits.cache_clear()
    found = fitted.fits()
    assert ("llvm", "znver5", "AMD EPYC") in found
    assert ("cuda", "sm_90a", "") in found
    for one in found.values():
        assert set(one.provenance) >= {"date", "method", "kernels", "median_error"}
        for row in one.coefficients.values():
            assert len(row) == len(NAMES)
            assert min(row) >= 0 < max(row)


def test_errors_of_what_ships_are_small():
    for one in fitted.fits().values():
        assert one.provenance["median_error"] <= 0.25
        assert one.provenance["rank_correlation"] >= 0.9


def test_features_take_work_apart():
    weight, small, large = Tensor(MIB, is_parameter=True), Tensor(2 * MIB), Tensor(64 * MIB)
    claim = make([weight, small], [large], 10**9, launches=3)
    row = features_of(claim, 32 * MIB)
    assert row.row == (3.0, 1024.0, 2048.0, 65536.0, 0.0, 1000.0)
    twice = features_of(replace(claim, bytes=2 * claim.bytes, flops=2 * 10**9), 32 * MIB)
    assert twice.row == (3.0, 2048.0, 4096.0, 131072.0, 0.0, 2000.0)
    dense = features_of(make([weight], [small], 10**9), 32 * MIB)
    assert (dense.matrix_mflop, dense.vector_mflop) == (1000.0, 0.0)


def test_the_fitted_model_predicts(fit):
    claim = elementwise(MIB, parallelism=1)
    estimate = CostModel(DEVICE).cost(claim)
    assert estimate.source == "fitted"
    assert estimate.us == pytest.approx(2 + 2048 * 0.02 + MIB / 4e6 * 20)
    of_rows = replace(claim, template=type(claim.template)(name="rows"))
    assert CostModel(DEVICE).cost(of_rows).us == 1.0
    large = elementwise(MIB, parallelism=64)
    assert CostModel(DEVICE).cost(large).us < estimate.us  # several cores
    assert CostModel(DEVICE).cost(replace(claim, flops=10 * claim.flops)).us > estimate.us


def test_planning_orders_by_the_roofline_on_every_machine(fit):
    claim, other = elementwise(MIB), elementwise(2 * MIB)
    here, elsewhere = CostModel(DEVICE), CostModel(replace(DEVICE, name="Another CPU"))
    assert here.compare([claim], [other]) == elsewhere.compare([claim], [other])
    assert here.estimate(claim) == elsewhere.estimate(claim)
    assert here.total([claim, other]) == elsewhere.total([claim, other])
    assert elsewhere.cost(claim).source == "roofline"


def test_types_that_were_not_measured_are_left_to_the_roofline(fit):
    assert CostModel(DEVICE).cost(elementwise(MIB, dtype="float16")).source == "roofline"
    assert CostModel(DEVICE).cost(elementwise(MIB, dtype="int32")).source == "fitted"
