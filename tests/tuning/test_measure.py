"""Candidates in processes of their own: a fault costs only the candidate that has it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from expert_graphs import experts
from tuned_models import QUICK, two_products
from tvm import tirx

from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.measure.isolate import Failed, isolated
from tvm_fusion.measure.timing import Effort, in_turns, swept
from tvm_fusion.schedule.contraction.cpu.templates import gemm as template_cpu
from tvm_fusion.tuning import build_candidates
from tvm_fusion.tuning.candidate_bench.tensors import Draw
from tvm_fusion.tuning.measure import Bench, inputs_of
from tvm_fusion.tuning.tasks import ends_of, survey

pytestmark = pytest.mark.slow_beyond(2)


def tasks():
    config = FusionConfig()
    return survey(import_model(two_products(), config), parse("cpu"), config)


@pytest.fixture(scope="module")
def task():
    return tasks().tasks[0]


def test_tasks_are_groups_with_choices():
    found = tasks()
    assert [t.title for t in found.tasks] == [
        "matmul + tanh [29x300]",
        "matmul [29x70]",
    ]
    assert (len(found.fixed), found.symbolic) == (1, 0)
    assert found.weight_bytes == 4 * (72 * 300 + 300 * 70)
    assert all(len(t.configs) > 100 for t in found.tasks)
    assert [t.key for t in found.tasks] == [t.key for t in tasks().tasks]


@pytest.mark.slow
def test_products_of_experts_are_measured_with_rows_for_each():
    config, spec = FusionConfig(db=None, profile=None), parse("cuda:sm_90a")
    (task,) = survey(import_model(experts(), config), spec, config).tasks
    assert len(task.configs) > 100
    *_, ends = inputs_of(task, 0)
    np.testing.assert_array_equal(ends, np.int32([32, 65, 97, 130]))
    assert ends.dtype == np.int32
    listed = build_candidates.inputs_of(task.mod, ends_of(task))
    assert listed == [[[130, 64], "float16"], [[4, 64, 64], "float16"], [[4], "int32", 130]]
    np.testing.assert_array_equal(Draw(0).input(*listed[2]), ends)


@pytest.mark.slow
def test_a_trial_is_timed_beside_the_default(task):
    trial = Bench(task, parse("cpu"), 0).trial(task.configs[5], QUICK)
    assert trial.error == ""
    assert trial.us > 0
    assert trial.default_us > 0


def planted(monkeypatch, fault):
    """Let the kernels of every configuration but the default have a fault."""
    emit = template_cpu.CpuContraction.emit

    def faulty(self, claim, target):
        default = next(iter(self.configs(claim, parse("cpu").device)))
        sizes = claim.details.config.gemm.sizes
        is_default = default == {f: getattr(sizes, f) for f in default}
        return emit(self, claim, target) if is_default else fault(emit, self, claim, target)

    monkeypatch.setattr(template_cpu.CpuContraction, "emit", faulty)


def crashing(*_):
    os.kill(os.getpid(), signal.SIGSEGV)


def hanging(*_):
    time.sleep(1000)


def raising(*_):
    raise ValueError("no such kernel")


def wrong(emit, self, claim, target):
    emission = emit(self, claim, target)
    (kernel,) = emission.kernels
    raised = (tirx.FloatImm, lambda number: tirx.FloatImm(number.ty.dtype, number.value + 1))
    body = tvm_ffi.structural_map(kernel.func.body, raised, order="post")
    return replace(emission, kernels=(replace(kernel, func=kernel.func.with_body(body)),))


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (crashing, "ended by SIGSEGV"),
        (hanging, "took longer than 2 seconds"),
        (raising, "is not used: no such kernel"),
        (wrong, "its results differ from the default's by"),
    ],
)
def test_a_faulty_candidate_costs_only_itself(task, monkeypatch, fault, words):
    planted(monkeypatch, fault)
    effort = replace(QUICK, timeout=2.0) if fault is hanging else QUICK
    bench = Bench(task, parse("cpu"), 0)
    trial = bench.trial(task.configs[5], effort)
    assert words in trial.error
    assert trial.us is None
    assert trial.ratio == float("inf")
    assert bench.trial(task.configs[0], QUICK).error == ""


@pytest.fixture
def children(monkeypatch):
    """The processes that a test forks; others may have left some of theirs."""
    fork, made = os.fork, []

    def noted():
        if process := fork():
            made.append(process)
        return process

    monkeypatch.setattr(os, "fork", noted)
    return made


def are_gone(processes):
    for process in processes:
        with pytest.raises(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
    return bool(processes)


def test_hanging_children_are_killed(children):
    with pytest.raises(Failed, match=r"took longer than 0\.2 seconds"):
        isolated(lambda: time.sleep(10**6), 0.2)
    assert are_gone(children)


def test_large_results_come_back():
    assert np.array_equal(isolated(lambda: np.arange(10**6), 600), np.arange(10**6))


def test_functions_are_timed_in_turns():
    order = []
    times = in_turns(
        [lambda: order.append("a"), lambda: order.append("b")], Effort(fewest=3, most=3)
    )
    assert order == ["a", "b"] * 3
    assert len(times) == 2
    assert all(t > 0 for t in times)


@pytest.mark.parametrize(
    ("weights", "cache", "read"),
    [(400, 32, 40), (400, None, 0), (20, 32, 0), (35, 32, 0), (400, 300, 0)],
)
def test_the_last_cache_is_swept_where_it_does_not_hold_the_weights(weights, cache, read):
    size = None if cache is None else cache << 20
    assert swept(weights << 20, size) == read << 20


def test_inputs_are_read_after_a_sweep():
    """The last cache holds them in a model: the kernels before wrote them."""
    seen = []

    class Input(np.ndarray):
        def max(self, **options):
            seen.append("input")
            return super().max(**options)

    inputs = [np.ones(3, "float32").view(Input)]
    once = Effort(fewest=1, most=1)
    in_turns([lambda: seen.append("call")], once, inputs=inputs)
    in_turns([lambda: seen.append("call")], replace(once, swept=1 << 12), inputs=inputs)
    assert seen == ["call", "input", "call"]


@pytest.mark.slow
def test_a_default_is_timed_alone(task, monkeypatch):
    bench, raced = Bench(task, parse("cpu"), 0), []
    race = bench.race
    monkeypatch.setattr(
        bench, "race", lambda configs, effort: raced.append(configs) or race(configs, effort)
    )
    trial = bench.trial(task.configs[0], QUICK)
    assert raced == [[]]
    assert trial.us == trial.default_us > 0


def test_hopeless_candidates_end_early():
    calls, now = [], [0.0]

    def slow():
        calls.append(1)
        now[0] += 0.002

    def quick():
        now[0] += 0.001

    in_turns([slow, quick], Effort(seconds=10.0, fewest=3, most=40), lambda: now[0])
    assert len(calls) == 3


def test_an_interrupt_while_the_process_is_copied_is_not_lost(monkeypatch, children):
    fork = os.fork

    def interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        return fork()

    monkeypatch.setattr(os, "fork", interrupted)
    handler = signal.default_int_handler  # a shell's background jobs are started without one
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            isolated(lambda: time.sleep(10**6), 10**6)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert are_gone(children)


# Ctrl-C reaches all processes of the terminal, the child as soon as there is one.
FORKED = """
import os, signal
from tvm_fusion.measure.isolate import isolated

parent, close = os.getpid(), os.close

def interrupted(descriptor):
    close(descriptor)
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
os.close = interrupted  # the first thing that a child does
try:
    print(isolated(lambda: 7))
except KeyboardInterrupt:
    print("the child goes on as its parent")
"""


def test_an_interrupt_does_not_let_a_child_go_on_as_its_parent():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "7\n"), done
