"""Two GEMMs of one A with an epilogue over both: one kernel with wgmma, weights left apart."""

from dataclasses import replace

import pytest
from group_kernels import CUDA, arrays, check, close, compiles_for_cuda, group, run, tensor
from relax_modules import main_module
from split_products import sigmoid
from tvm import relax, tirx

from tests.schedule.contraction.gemm_graphs import with_numbers
from tvm_fusion import FusionConfig
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.report.planned import plan_model
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.wgmma.dual_gemm import dual_gemm
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_configs
from tvm_fusion.schedule.index.inline import inlined

op = relax.op
TEMPLATE = GpuContraction()
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles


def gated(m, k, n, is_turned=True, dtype="float16", is_second_first=False):
    """Gate and up of a gated layer, whose weights are arguments; each has a bias."""
    given = [tensor("x", m, k, dtype=dtype)]
    given += [tensor(name, *((n, k) if is_turned else (k, n)), dtype=dtype) for name in "gu"]
    given += [tensor(name, n, dtype=dtype) for name in "ab"]

    def body(emit, x, *given):
        sums = []
        for w, b in zip(given[:2], given[2:], strict=True):
            total = emit(op.matmul(x, emit(op.permute_dims(w)) if is_turned else w, "float32"))
            sums.append(emit(op.add(total, emit(op.astype(b, "float32")))))
        gate, up = sums[::-1] if is_second_first else sums
        return op.astype(emit(op.multiply(emit(op.nn.silu(gate)), up)), dtype)

    def reference(x, *given):
        sums = [
            x @ (w.T if is_turned else w) + b for w, b in zip(given[:2], given[2:], strict=True)
        ]
        gate, up = sums[::-1] if is_second_first else sums
        return [gate * sigmoid(gate) * up]

    return given, body, reference


CASES = {
    "whole": gated(64, 64, 64),
    "ragged": gated(75, 88, 104),
    "n_contiguous": gated(75, 72, 136, False),
    "odd_columns": gated(77, 64, 51),
    "second_first": gated(70, 72, 72, is_second_first=True),
    "bfloat16": gated(40, 64, 64, dtype="bfloat16"),
}


def products_of(case):
    members = group(*case[:2], CUDA)
    return members, dual_gemm(members.program, inlined(members.program))


@pytest.mark.parametrize("name", CASES)
def test_computes_both(name):
    case = CASES[name]
    members, contraction = products_of(case)
    tile = {"block_m": 64, "block_n": 128, "consumers": 1}
    found = wgmma_configs(contraction, FEW)
    config = with_numbers(found, **tile)
    assert len({tensor_map.buffer for tensor_map in config.operand_b.maps}) == 2
    inputs = arrays(case[0], 1)
    expected = case[2](*(x.astype("float64") for x in inputs.values()))
    tolerance = 2e-2 if name == "bfloat16" else 2e-3
    close(run(wgmma_gemm_gpu(members.program, config), members, inputs), expected, tolerance)


def built(case):
    """A module of a function with the case's parameters."""
    given, body, _ = case
    return main_module(given, body)


def planned(case, spec):
    found = plan_model(built(case), spec, FusionConfig())
    return [claim for plan in found.plans.values() for claim in plan.claims]


def test_the_planner_takes_one_kernel_with_wgmma():
    (claim,) = planned(gated(512, 256, 1024), "cuda:sm_90a")
    assert claim.launches == 1
    assert claim.details.config.tile.problem.parts == 2


@pytest.mark.parametrize("spec", ["cuda:sm_80", "cuda:sm_90"])
def test_two_kernels_without_wgmma(spec):
    assert len(planned(gated(512, 256, 1024), spec)) == 2


def squared(emit, x, g, u, *_):
    """The second product reads the first."""
    y = emit(op.astype(emit(op.matmul(x, g, "float32")), "float16"))
    return op.add(emit(op.astype(y, "float32")), emit(op.matmul(y, u, "float32")))


@pytest.mark.parametrize(
    "case",
    [
        (gated(72, 64, 64)[0], squared),
        (gated(72, 64, 64, dtype="float32")[:2]),
        (gated(24, 64, 64)[:2]),
        (gated(tirx.Var("rows", "int64"), 64, 64)[:2]),
    ],
    ids=["chained", "float32", "few_rows", "symbolic_rows"],
)
def test_what_is_refused(case):
    refusal = TEMPLATE.claim(group(*case, CUDA), CUDA.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "several_reductions"


def test_matrices_of_different_widths_are_no_split():
    """Of the wider one only some columns have a partner."""
    given = [tensor("x", 72, 64, dtype="float16")]
    given += [tensor(name, 64, n, dtype="float16") for name, n in (("g", 64), ("u", 96))]

    def body(emit, x, g, u):
        gate, up = (emit(op.matmul(x, w, "float32")) for w in (g, u))
        return op.multiply(gate, emit(op.strided_slice(up, [1], [0], [64], [1])))

    refusal = TEMPLATE.claim(group(given, body, CUDA), CUDA.device)
    assert isinstance(refusal, Refusal)
    assert "share A" in refusal.sentence


def test_a_sum_may_be_a_result():
    given = gated(75, 64, 72)[0][:3]

    def body(emit, x, g, u):
        gate, up = (emit(op.matmul(x, emit(op.permute_dims(w)), "float32")) for w in (g, u))
        return [gate, op.multiply(gate, up)]

    def reference(x, g, u):
        return [x @ g.T, (x @ g.T) * (x @ u.T)]

    claim, _ = check(TEMPLATE, given, body, reference, CUDA)
    assert claim.launches == 1


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, CASES)
