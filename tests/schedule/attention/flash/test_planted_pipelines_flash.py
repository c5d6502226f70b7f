"""Mistakes planted in the pipelines of FlashAttention as they are written: all are found."""

import pytest
from emulator.mbarrier_mistakes import a_stage_less_of, no_wait_for_empty, too_few_bytes
from emulator.memory import EmulationError
from emulator.plant import WAIT, plant, with_text
from group_kernels import CUDA
from test_flash_mma import HALF, close, computed, problem_of
from tvm import tirx

from tests.schedule.attention.attention_graphs import PLAIN, tensors
from tvm_fusion.core.tir.loops import index, sequence
from tvm_fusion.schedule.attention.flash import kernel as flash_mma
from tvm_fusion.schedule.attention.flash.kernel import _FlashBlock
from tvm_fusion.schedule.attention.flash.model import configs
from tvm_fusion.schedule.attention.flash.products import FlashMmaProducts
from tvm_fusion.schedule.attention.flash.softmax import any_of_warp
from tvm_fusion.schedule.attention.flash.tma.config import FlashTmaConfig
from tvm_fusion.schedule.attention.flash.tma.consumers import Consumers, Roles
from tvm_fusion.schedule.gpu.matrix import wgmma

pytestmark = pytest.mark.slow_beyond(4)

DEADLOCK = "deadlock: all roles wait"
EARLY_READ = "before its copy was waited for"
EARLY_WRITE = "while products may still read it|before its copy was waited for"


def run(queries, keys, accept, size=64):
    """Compute one head with the smallest of the accepted configurations."""
    params = tensors(1, 1, queries, keys, size, dtype=HALF)
    members, problem = problem_of(params, PLAIN[0])
    found = (c for c in configs(problem, CUDA.device) if accept(c))
    chosen = min(found, key=lambda c: (c.block_m, c.block_n))
    _, results, wide = computed(params, members, problem, chosen)
    close(results, PLAIN[1](*wide), 2e-3)


def mma():
    """Tiles of 16 keys through two stages, in two warps."""

    def accept(config):
        is_plain = not isinstance(config, FlashTmaConfig) and not config.uses_wgmma
        return is_plain and config.stages > 1 and config.warps > 1

    run(32, 100, accept)


def tma():
    run(65, 200, lambda c: isinstance(c, FlashTmaConfig) and not c.is_ping_pong and c.stages == 2)


def turns():
    """Handed on early: turns alone do not order what warps of one consumer do at the end."""
    run(65, 200, lambda c: isinstance(c, FlashTmaConfig) and c.is_ping_pong and c.passes_early, 96)


def a_stage_less(monkeypatch):
    """Copies and products use one stage less than the distance of the copies."""

    def stage(self, n):
        fewer = index(self._config.stages - 1)
        return tirx.floormod(n, fewer) * self._config.block_n

    def issued(self, loads, n):
        tiles = self._tiles
        start = tiles.start(n)

        def place(row):
            key = self._problem.pattern.key.var
            return {**self._where, key: tiles.clamped(start + row)}

        return loads.issue(
            self._config.block_n, stage(self, n), place, lambda r: start + r < tiles.keys
        )

    monkeypatch.setattr(_FlashBlock, "_issue", issued)
    monkeypatch.setattr(FlashMmaProducts, "_stage", stage)


def copies_too_far_ahead(monkeypatch):
    keys = _FlashBlock._issue_keys

    def further(self, n):
        return keys(self, n if isinstance(n, tirx.IntImm) else n + 1)

    monkeypatch.setattr(_FlashBlock, "_issue_keys", further)


def a_wait_too_few(monkeypatch):
    wait = flash_mma.wait
    monkeypatch.setattr(flash_mma, "wait", lambda pending: wait(pending + 1))


def no_wait(monkeypatch):
    plant(monkeypatch, *with_text(WAIT, "wait_group 9;"))


def no_barrier(monkeypatch):
    monkeypatch.setattr(flash_mma, "storage_sync", lambda: tirx.Evaluate(0))


OF_MMA = {
    a_stage_less: f"without a barrier|{EARLY_READ}",
    copies_too_far_ahead: f"without a barrier|{EARLY_READ}",
    a_wait_too_few: EARLY_READ,
    no_wait: EARLY_READ,
    no_barrier: "without a barrier",
}


def of_keys(monkeypatch, name, instead):
    """Change a method of the ring of keys, not of that of values."""
    init = Roles.__init__

    def changed(self, *given):
        init(self, *given)
        monkeypatch.setattr(self._keys, name, instead)

    monkeypatch.setattr(Roles, "__init__", changed)


def no_wait_for_keys(monkeypatch):
    of_keys(monkeypatch, "wait", lambda: tirx.Evaluate(0))


def no_wait_for_empty_keys(monkeypatch):
    of_keys(monkeypatch, "acquire", lambda: tirx.Evaluate(0))


def no_wait_for_scores(monkeypatch):
    monkeypatch.setattr(Roles, "_wait_for_scores", lambda self, pending=0: tirx.Evaluate(0))


def keys_released_before_the_wait(monkeypatch):
    """The producer may copy the next keys while a product still reads these."""
    wait, softmax = Roles._wait_for_scores, Consumers._softmax

    def late(self, n):
        return sequence([wait(self), softmax(self, n)])

    monkeypatch.setattr(Roles, "_wait_for_scores", lambda self, pending=0: tirx.Evaluate(0))
    monkeypatch.setattr(Consumers, "_softmax", late)


OF_TMA = {
    a_stage_less_of(Roles): DEADLOCK,
    no_wait_for_keys: EARLY_READ,
    no_wait_for_scores: "accumulators of products not waited for",
    no_wait_for_empty: EARLY_WRITE,
    no_wait_for_empty_keys: EARLY_WRITE,
    too_few_bytes: f"{DEADLOCK}|{EARLY_READ}",
    keys_released_before_the_wait: EARLY_WRITE,
}


def no_wait_for_results(monkeypatch):
    monkeypatch.setattr(Roles, "_wait_for_results", lambda self, is_twin=False: tirx.Evaluate(0))


def no_wait_for_results_that_stay(monkeypatch):
    """Of the branch that leaves accumulators as they are."""
    wait = Roles._wait_for_results

    def unless_twin(self, is_twin=False):
        return tirx.Evaluate(0) if is_twin else wait(self)

    monkeypatch.setattr(Roles, "_wait_for_results", unless_twin)


def a_wait_in_branches_of_warps(monkeypatch):
    """PTX wants all warps of a warpgroup at one wait."""

    def branches(self):
        is_rescaled = any_of_warp(self._is_rescaled())
        first = sequence([self._wait_for_results(), self._rescaled()])
        return tirx.IfThenElse(is_rescaled, first, self._wait_for_results(is_twin=True))

    monkeypatch.setattr(Consumers, "_wait_and_rescale", branches)


def weights_before_the_wait(monkeypatch):
    """The product of the tile before still reads the fragments."""
    exponentials, pack = Consumers._exponentials, Consumers._pack_weights

    def early(self):
        return sequence([exponentials(self), pack(self, index(0))])

    monkeypatch.setattr(Consumers, "_exponentials", early)


def values_released_before_the_wait(monkeypatch):
    wait = Consumers._wait_and_rescale

    def released(self):
        late = wait(self)
        stmt = self._values.release(self._t, self._at.before)
        self._values.release = lambda lane, stage: late
        return stmt

    monkeypatch.setattr(Consumers, "_wait_and_rescale", released)


def no_barrier_before_results(monkeypatch):
    """Other warps may still multiply queries, in whose place results are staged."""
    monkeypatch.setattr(wgmma, "warpgroup_barrier", lambda group: tirx.Evaluate(0))


OF_TURNS = {
    no_wait_for_keys: EARLY_READ,
    no_wait_for_scores: "accumulators of products not waited for",
    no_wait_for_results: "accumulators of products not waited for",
    no_wait_for_results_that_stay: "written while products may still read it|not waited for",
    a_wait_in_branches_of_warps: "not all threads of a warpgroup take part",
    weights_before_the_wait: "p_frag: written while products may still read it",
    values_released_before_the_wait: EARLY_WRITE,
    no_barrier_before_results: EARLY_WRITE,
}


def _name(mistake):
    return mistake.__name__


@pytest.mark.parametrize("kernel", [mma, tma, turns], ids=_name)
def test_the_kernels_are_right(kernel):
    kernel()


@pytest.mark.parametrize("mistake", OF_MMA, ids=_name)
def test_a_mistake_of_the_cp_async_pipeline(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(EmulationError, match=OF_MMA[mistake]):
        mma()


@pytest.mark.parametrize("mistake", OF_TMA, ids=_name)
def test_a_mistake_of_the_roles(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(EmulationError, match=OF_TMA[mistake]):
        tma()


@pytest.mark.parametrize("mistake", OF_TURNS, ids=_name)
def test_a_mistake_of_consumers_in_turns(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(EmulationError, match=OF_TURNS[mistake]):
        turns()
