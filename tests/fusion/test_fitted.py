"""The cost model fitted to devices: what ships, what it says, what is left to the roofline."""

from dataclasses import replace

import pytest
from test_cost import Operator, Tensor, elementwise, make

from tvm_fusion.core.contract.kernel_work import KernelWork
from tvm_fusion.device import Device
from tvm_fusion.fusion import fitted
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.features import NAMES, features_of

MIB = 1 << 20
DEVICE = Device("llvm", "zen9", "Some CPU", cores=4, vector_bits=256, l3_bytes=32 * MIB)
COEFFICIENTS = {
    "launches": 2.0, "weight_kib": 0.01, "cached_kib": 0.02, "other_kib": 0.1,
    "matrix_mflop": 10.0, "vector_mflop": 20.0, "kiloclocks": 0.5, "element_loads": 30.0,
    "element_stores": 40.0, "operand_operations": 5.0,
}  # fmt: skip
ROW = [COEFFICIENTS.get(name, 0.0) for name in NAMES]
ONE_A_LAUNCH = [float(name == "launches") for name in NAMES]
GPU = Device("cuda", "sm_99", "Some GPU", sm_count=100, l2_bytes=32 * MIB)


@pytest.fixture
def fit(monkeypatch):
    known = frozenset(["float32"])
    found = fitted.Fit({"": ROW, "rows": ONE_A_LAUNCH}, known, known, {})
    devices = (("llvm", "zen9", "Some CPU", 1), ("cuda", "sm_99", "", 1))
    monkeypatch.setattr(fitted, "fits", lambda: dict.fromkeys(devices, found))
    return found


def test_what_ships_is_sound():
    fitted.fits.cache_clear()
    found = fitted.fits()
    assert ("llvm", "znver5", "AMD EPYC", 1) in found
    assert ("cuda", "sm_90a", "", 1) in found
    assert {arch for kind, arch, *_ in found if kind == "rocm"} == {"gfx90a", "gfx942", "gfx1100"}
    for one in found.values():
        assert set(one.provenance) >= {"date", "method", "kernels", "median_error"}
        for row in one.coefficients.values():
            assert len(row) == len(NAMES)
            assert min(row) >= 0 < max(row)


def test_errors_of_what_ships_are_small():
    for one in fitted.fits().values():
        assert one.provenance["median_error"] <= 0.25
        # Of those that were counted many take little more than a launch, and have no order.
        least = 0.9 if one.source == "fitted" else 0.75
        assert one.provenance["rank_correlation"] >= least


def test_features_take_work_apart():
    weight, small, large = Tensor(MIB, is_parameter=True), Tensor(2 * MIB), Tensor(64 * MIB)
    claim = make([weight, small], [large], 10**9, launches=3)
    row = features_of(claim, 32 * MIB, 100)
    assert row.row[:7] == (3.0, 1024.0, 2048.0, 65536.0, 686.08, 0.0, 1000.0)
    twice = features_of(replace(claim, bytes=2 * claim.bytes, flops=2 * 10**9), 32 * MIB, 100)
    assert twice.row[:7] == (3.0, 2048.0, 4096.0, 131072.0, 1372.16, 0.0, 2000.0)
    few = features_of(replace(claim, parallelism=7), 32 * MIB, 100)
    assert few.unit_kib == pytest.approx(68608 / 7)
    again = replace(claim, parallelism=7, work=KernelWork(reread_bytes=7 * MIB))
    assert features_of(again, 32 * MIB, 100).unit_kib == pytest.approx(68608 / 7 + 1024)
    dense = features_of(make([weight], [small], 10**9), 32 * MIB)
    assert (dense.matrix_mflop, dense.vector_mflop) == (1000.0, 0.0)


def test_what_no_kernel_wrote_is_in_no_cache():
    """Keys of a cache were read in the last call; what a kernel has just written is there."""
    kernel, call = Operator([], [], 0), Operator([], [], 0, is_opaque=True)
    for producer, is_cached in ((None, False), (call, False), (kernel, True)):
        row = features_of(make([Tensor(16 * MIB, producer=producer)], [], 0), 32 * MIB)
        assert (row.cached_kib, row.other_kib) == ((16384.0, 0.0)[:: 1 if is_cached else -1])
    row = features_of(make([Tensor(4 * MIB)], [], 0), 32 * MIB)
    assert (row.cached_kib, row.other_kib) == (4096.0, 0.0)


def test_the_model_of_a_kernel_stands_for_its_products():
    work = KernelWork(5e4, 2e6, 7e3, element_stores=3e6, operand_operations=4e6)
    claim = replace(make([Tensor(MIB)], [Tensor(MIB)], 10**9), work=work, flops=8 * 10**9)
    row = features_of(claim, 32 * MIB)
    assert (row.matrix_mflop, row.vector_mflop, row.kiloclocks) == (0.0, 0.0, 50.0)
    assert row.row[-4:] == (2.0, 7.0, 3.0, 4.0)


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


def test_plans_for_measured_gpus_are_ordered_by_the_fitted_model(fit):
    cost = CostModel(GPU)
    claim = elementwise(MIB)
    gathered = replace(claim, work=KernelWork(element_loads=1e6))
    plain, dear = cost.compare([claim], [gathered])
    assert plain.source == dear.source == "fitted"
    assert dear.us == pytest.approx(plain.us + 30.0)
    assert cost.estimate(gathered) == dear.us == cost.cost(gathered).us
    assert cost.total([claim, gathered]) == pytest.approx(plain.us + dear.us)
    stored = replace(claim, work=KernelWork(element_stores=1e6))
    assert cost.estimate(stored) == pytest.approx(plain.us + 40.0)
    computed = replace(claim, work=KernelWork(operand_operations=1e6))
    assert cost.estimate(computed) == pytest.approx(plain.us + 5.0)


def test_counted_coefficients_say_so(fit, monkeypatch):
    counted = replace(fit, provenance={"counted": True})
    monkeypatch.setattr(fitted, "fits", lambda: {("rocm", "gfx9", "", 1): counted})
    device = replace(GPU, kind="rocm", arch="gfx9")
    estimate = CostModel(device).cost(elementwise(MIB))
    assert (estimate.source, estimate.origin) == ("counted", "counted, no device")
    assert estimate.us == CostModel(device).estimate(elementwise(MIB))


def test_products_that_compute_operands_and_those_on_cuda_cores_were_not_measured(fit):
    cost, claim = CostModel(GPU), elementwise(MIB)
    product = replace(claim, template=type(claim.template)(name="contraction"))
    assert cost.cost(product).source == "fitted"
    for work, source in (
        (KernelWork(operand_operations=1e6), "roofline"),
        (KernelWork(operand_operations=1e6, element_loads=1e6), "roofline"),
        (KernelWork(operand_operations=1e6, element_loads=4e6), "fitted"),  # it chooses elements
    ):
        assert cost.cost(replace(product, work=work)).source == source
    on_cuda_cores = replace(product, matrix_dtype="float64")
    assert cost.cost(on_cuda_cores).source == "roofline"
    modelled = replace(on_cuda_cores, work=KernelWork(clocks=1e4))
    assert cost.cost(modelled).source == "fitted"


def test_alternatives_are_compared_by_one_model(fit):
    cost = CostModel(GPU)
    known, unknown = elementwise(MIB), elementwise(MIB, dtype="float64")
    assert {one.source for one in cost.compare([known], [unknown])} == {"roofline"}
    assert {one.source for one in cost.compare([known], [known, known])} == {"fitted"}


def test_the_layout_that_will_run_tells_the_model(fit):
    cost, laid_out = CostModel(GPU), elementwise(MIB)
    computing = replace(
        elementwise(MIB),
        template=type(laid_out.template)(name="contraction"),
        flops=10**12,
        work=KernelWork(operand_operations=1e6),
        laid_out=laid_out,
    )
    assert cost.cost(replace(computing, laid_out=None)).source == "roofline"
    assert cost.cost(computing) == cost.cost(laid_out)
    assert cost.cost(computing).source == "fitted"
    assert cost.largest_term([computing]) == cost.largest_term([laid_out])


def test_the_largest_term_is_named(fit):
    claim = replace(elementwise(MIB), work=KernelWork(element_loads=4e6))
    us = CostModel(GPU).estimate(claim)
    assert CostModel(GPU).largest_term([claim]) == (
        f"elements loaded one by one, 120.0 of {us:.1f} us"
    )
    assert CostModel(GPU).largest_term([elementwise(MIB)]).startswith("traffic, ")
    told = CostModel(DEVICE).largest_term([claim])  # ordered by the roofline
    assert told.endswith(f" of {CostModel(DEVICE).roofline([claim]):.1f} us")


def test_types_that_were_not_measured_are_left_to_the_roofline(fit):
    assert CostModel(DEVICE).cost(elementwise(MIB, dtype="float16")).source == "roofline"
    assert CostModel(DEVICE).cost(elementwise(MIB, dtype="int32")).source == "fitted"


def test_threads_of_a_cpu_share_what_they_can(monkeypatch):
    known = frozenset(["float32"])
    found = fitted.Fit({"": ROW}, known, known, {}, threads=4)
    monkeypatch.setattr(fitted, "fits", lambda: {("llvm", "zen9", "", 4): found})
    claim = make([Tensor(MIB, is_parameter=True)], [Tensor(2 * MIB)], 10**9)
    us = {
        tasks: CostModel(DEVICE).cost(replace(claim, parallelism=tasks)).us for tasks in (1, 2, 9)
    }
    launch = ROW[NAMES.index("launches")]
    assert us[1] - launch == pytest.approx(2 * (us[2] - launch))
    assert us[1] - launch == pytest.approx(4 * (us[9] - launch))
    for cores, fit in ((1, None), (2, found), (8, found), (9, None)):
        assert fitted.fit_of(replace(DEVICE, cores=cores)) is fit


def test_equal_cores_have_one_measurement():
    newer, older = (
        replace(DEVICE, arch=arch, cores=16) for arch in ("emeraldrapids", "sapphirerapids")
    )
    assert fitted.fit_of(newer) is fitted.fit_of(older) is not None
