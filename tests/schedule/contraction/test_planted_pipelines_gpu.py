"""Mistakes planted in the pipelines of tiled GEMMs as they are written: all are found."""

from dataclasses import replace

import pytest
from emulator.mbarrier_mistakes import (
    a_stage_less_of,
    a_wrong_parity,
    no_wait_for_empty,
    release_of_another_stage,
    too_few_bytes,
)
from emulator.memory import EmulationError
from emulator.plant import WAIT, plant, with_text
from group_kernels import CUDA
from tvm import tirx

from tests.schedule.contraction.gemm_graphs import (
    changed,
    computes,
    contraction_of,
    product,
    with_numbers,
)
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import index
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.mma.mainloop import TileMmaMainloop
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.roles import Roles
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_configs
from tvm_fusion.schedule.gpu.matrix import wgmma
from tvm_fusion.schedule.gpu.memory import pipeline
from tvm_fusion.schedule.gpu.memory.pipeline import OffsetRing, Ring

TILE = {"block_m": 32, "block_n": 64, "block_k": 32, "stages": 3, "split_k": 1}
WARPS = {"warps_m": 1, "warps_n": 2, "warps_k": 1}
FEW = replace(CUDA.device, sm_count=2)
DEADLOCK = "deadlock: all roles wait"
EARLY_READ = "before its copy was waited for"
EARLY_WRITE = "while products may still read it|before its copy was waited for"


def mma():
    """Six tiles of K through three stages."""
    case = product(32, 192, 64)
    members, contraction = contraction_of(*case[:2])
    config = changed(tile_gemm_config(contraction, CUDA.device), **TILE, **WARPS)
    computes(tile_gemm_gpu(members.program, config), members, case, 1)


def hopper():
    """More tiles of K than a consumer's ring of stages has."""
    case = product(64, 512, 64)
    members, contraction = contraction_of(*case[:2])
    chosen = {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 1}
    found = wgmma_configs(contraction, FEW)
    config = with_numbers(found, **chosen)
    config = changed(config, stages=3)
    computes(wgmma_gemm_gpu(members.program, config), members, case, 1)


def a_stage_less(monkeypatch):
    """The ring is one stage shorter than the distance of the copies."""

    def advance(self, name):
        offset, size = load(self.buffer, [index(name)]), self._size
        last = tirx.const((self._stages - 2) * size, "int32")
        zero, step = tirx.const(0, "int32"), tirx.const(size, "int32")
        return self._set(name, tirx.Select(offset >= last, zero, offset + step))

    monkeypatch.setattr(OffsetRing, "_advance", advance)


def copies_too_far_ahead(monkeypatch):
    copy = TileMmaMainloop._prefetch

    def further(self, do, thread, tile):
        return copy(self, do, thread, tile + 1)

    monkeypatch.setattr(TileMmaMainloop, "_prefetch", further)


def a_wait_too_few(monkeypatch):
    wait = pipeline.wait_and_barrier
    monkeypatch.setattr(pipeline, "wait_and_barrier", lambda pending: wait(pending + 1))


def no_wait(monkeypatch):
    plant(monkeypatch, *with_text(WAIT, "wait_group 9;"))


def no_barrier(monkeypatch):
    plant(monkeypatch, *with_text(r"(?<=;)\s*__syncthreads\(\);", ""))


OF_MMA = {
    a_stage_less: (EmulationError, "without a barrier|before its copy was waited for"),
    # A tile is left out, and another one multiplied twice: in order, but wrong.
    copies_too_far_ahead: (AssertionError, None),
    a_wait_too_few: (EmulationError, EARLY_READ),
    no_wait: (EmulationError, EARLY_READ),
    no_barrier: (EmulationError, "without a barrier"),
}


def no_wait_for_full(monkeypatch):
    monkeypatch.setattr(Ring, "wait", lambda self: tirx.Evaluate(0))


def a_wait_for_too_few_products(monkeypatch):
    wait = wgmma.wait
    monkeypatch.setattr(wgmma, "wait", lambda pending: wait(pending + 1))


OF_HOPPER = {
    a_stage_less_of(Roles): DEADLOCK,
    no_wait_for_full: EARLY_READ,
    no_wait_for_empty: EARLY_WRITE,
    a_wait_for_too_few_products: f"{EARLY_WRITE}|accumulators of products not waited for",
    too_few_bytes: EARLY_READ,
    a_wrong_parity: "products of what no copy brought",
    release_of_another_stage: f"{DEADLOCK}|{EARLY_WRITE}",
}


def _name(mistake):
    return mistake.__name__


@pytest.mark.parametrize("kernel", [mma, hopper], ids=_name)
def test_the_kernels_are_right(kernel):
    kernel()


@pytest.mark.parametrize("mistake", OF_MMA, ids=_name)
def test_a_mistake_of_the_cp_async_pipeline(mistake, monkeypatch):
    kind, message = OF_MMA[mistake]
    mistake(monkeypatch)
    with pytest.raises(kind, match=message):
        mma()


@pytest.mark.parametrize("mistake", OF_HOPPER, ids=_name)
def test_a_mistake_of_the_roles(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(EmulationError, match=OF_HOPPER[mistake]):
        hopper()
