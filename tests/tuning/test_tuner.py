"""The loop: what is measured, recorded, raced and used; killed, continued, interrupted."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import tvm
from tuned_models import QUICK, FakeBench, attention, two_products
from tvm import relax

import tvm_fusion
from tvm_fusion import FusionConfig, UserError, tuning
from tvm_fusion.cli.commands.tune import prune
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.database.tuning_records import Trial, TuningRecords, text
from tvm_fusion.measure.alternatives import AlternativeBench
from tvm_fusion.tuning import tuner
from tvm_fusion.tuning.tasks import survey
from tvm_fusion.tuning.whole import Race, WholeModel

pytestmark = pytest.mark.slow_beyond(2)


@pytest.fixture
def bench(monkeypatch):
    """Times by a function instead of a clock; a class whose attributes tests may change."""

    class Bench(FakeBench):
        measured, raced = [], []

    monkeypatch.setattr(tuner, "Bench", Bench)
    monkeypatch.setattr(tuning, "WholeModel", FakeModel)
    return Bench


class FakeModel:
    """A model that is as much faster as configurations that are chosen; see ``us``."""

    chosen_us, default_us = 60.0, 100.0

    def __init__(self, *_):
        pass

    def race(self, one, other):
        return tuple(self.chosen_us if chosen else self.default_us for chosen in (one, other))

    judge = WholeModel.judge


def tune(tmp_path, budget="trials=60", **options):
    return tvm_fusion.tune(two_products(), db=tmp_path / "t.db", budget=budget, **options)


def bests(tmp_path):
    with Records.open(tmp_path / "t.db") as records:
        return TuningRecords(records).everything()


def trials(path):
    with sqlite3.connect(path) as file:
        return file.execute("SELECT task, config, us, error FROM trial").fetchall()


def test_the_best_is_recorded_and_used(tmp_path, bench):
    found = tune(tmp_path, "trials=120")
    assert (found.tasks, found.tuned, found.trials, found.failed, found.fixed) == (2, 2, 120, 0, 1)
    # Narrow vectors have a default that lies nearer to the best.
    is_wide = parse("cpu").device.vector_bits == 512
    assert found.us < (found.default_us / 2 if is_wide else found.default_us)
    for best in bests(tmp_path):
        if is_wide:
            assert (best.config["mr"], best.config["nr"]) in [(6, 32), (6, 48), (5, 32), (7, 32)]
        assert best.us == pytest.approx(bench.us(best.config))
    explained = tvm_fusion.explain(
        two_products(), config=FusionConfig(db=tmp_path / "t.db"), stock=False
    )
    assert len(explained.tuned) == 2
    assert all("times as fast as the default by record" in d.sentence for d in explained.tuned)
    assert "Tuned: " in str(explained)
    assert explained == type(explained).from_json(explained.to_json())


@pytest.mark.slow
def test_what_is_tuned_computes_the_same(tmp_path, bench):
    tune(tmp_path)
    mod = two_products()
    artifact = tvm_fusion.compile(mod, db=tmp_path / "t.db")
    artifact.export(tmp_path / "tuned")
    x = np.random.default_rng().standard_normal((29, 72)).astype("float32")
    actual = tvm_fusion.load(tmp_path / "tuned")(x=x)
    w, v = (c.value.numpy().astype("float64") for c in constants(mod))
    expected = np.cumsum(np.tanh(x @ w) @ v, 1)
    (actual,) = actual.values()
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def constants(mod):
    found = []
    relax.analysis.post_order_visit(mod["main"], found.append)
    return [x for x in found if isinstance(x, tvm.ir.GenericConst)]


def test_nothing_that_is_not_faster_is_used(tmp_path, bench):
    bench.us = staticmethod(lambda config: 29.8)  # 0.7 % is chance
    found = tune(tmp_path)
    assert (found.tuned, found.us, found.model) == (0, found.default_us, None)
    assert [b.config for b in bests(tmp_path)] == [b.task.configs[0] for b in benches(tmp_path)]
    config = FusionConfig(db=tmp_path / "t.db")
    assert tvm_fusion.explain(two_products(), config=config, stock=False).tuned == ()


def benches(tmp_path):
    config = FusionConfig()
    found = survey(import_model(two_products(), config), parse("cpu"), config).tasks
    order = {b.title: k for k, b in enumerate(bests(tmp_path))}
    return [FakeBench(t, None, 0) for t in sorted(found, key=lambda t: order[t.title])]


def test_what_wins_a_trial_and_loses_the_race_is_not_used(tmp_path, bench, monkeypatch):
    monkeypatch.setattr(bench, "race", lambda self, configs, effort: [31.0, 30.0])
    assert tune(tmp_path).tuned == 0


def test_a_model_that_is_slower_tuned_keeps_its_defaults(tmp_path, bench, monkeypatch):
    monkeypatch.setattr(FakeModel, "chosen_us", 103.0)
    found = tune(tmp_path)
    assert (found.tuned, found.model) == (0, None)
    assert all(b.us == b.default_us for b in bests(tmp_path))


def killed(*_):
    """End a run as SIGKILL does: nothing that follows is done."""
    raise RuntimeError("killed")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["race", "judge"])
def test_a_run_that_is_killed_before_its_races_end_changes_no_model(
    tmp_path, bench, monkeypatch, where
):
    """What was faster alone may be slower together: until that is known nothing uses it."""
    with monkeypatch.context() as patch:
        patch.setattr(FakeModel, where, killed)
        with pytest.raises(RuntimeError, match="killed"):
            tune(tmp_path)
    assert len(trials(tmp_path / "t.db")) == 60
    config = FusionConfig(db=tmp_path / "t.db")
    assert tvm_fusion.explain(two_products(), config=config, stock=False).tuned == ()
    # The same call goes on with the races: without another trial.
    bench.measured = []
    assert (tune(tmp_path).tuned, bench.measured) == (2, [])
    before = [(b.key, b.config) for b in bests(tmp_path)]
    # A later run that is killed leaves what the one before it has chosen.
    with monkeypatch.context() as patch:
        patch.setattr(FakeModel, where, killed)
        with pytest.raises(RuntimeError, match="killed"):
            tune(tmp_path, "trials=120")
    assert [(b.key, b.config) for b in bests(tmp_path)] == before


def test_choices_are_recorded_together(tmp_path, bench, monkeypatch):
    put, seen = TuningRecords.put_best, []

    def put_one(self, *args):
        if seen:
            killed()
        seen.append(args)
        put(self, *args)

    monkeypatch.setattr(TuningRecords, "put_best", put_one)
    with pytest.raises(RuntimeError, match="killed"):
        tune(tmp_path)
    assert seen
    assert bests(tmp_path) == []


@pytest.mark.parametrize("last", [Race(100.0, 100.5), Race(0.0, 0.0, "its results differ")])
def test_the_last_race_decides(tmp_path, bench, monkeypatch, last):
    monkeypatch.setattr(FakeModel, "judge", lambda self, chosen: last)
    found = tune(tmp_path)
    assert (found.tuned, found.model) == (0, last)
    assert all(b.us == b.default_us for b in bests(tmp_path))


def test_what_a_model_did_not_gain_from_is_raced_again(tmp_path, bench, monkeypatch):
    """Another run, which may have found more, tries the same winners with it."""
    with monkeypatch.context() as slow:
        slow.setattr(FakeModel, "chosen_us", 103.0)
        assert tune(tmp_path, "trials=40").tuned == 0
    bench.measured = []
    assert tune(tmp_path, "trials=40").tuned == 2
    assert bench.measured == []


def test_failures_are_recorded_and_not_measured_again(tmp_path, bench):
    bench.us = staticmethod(lambda config: None if config["mr"] > 4 else FakeBench.us(config))
    found = tune(tmp_path)
    assert found.failed > 0
    assert all(b.config["mr"] <= 4 for b in bests(tmp_path))
    failed = [row for row in trials(tmp_path / "t.db") if row[3]]
    assert len(failed) == found.failed
    assert {row[3] for row in failed} == {"ended by SIGSEGV"}


def test_pruned_failures_are_measured_again(tmp_path, bench):
    bench.us = staticmethod(lambda config: None)
    assert tune(tmp_path, "trials=20").failed == 18  # all but the defaults
    assert prune(tmp_path / "t.db") == 18
    bench.us = staticmethod(FakeBench.us)
    bench.measured = []
    found = tune(tmp_path, "trials=20")
    assert (found.failed, found.trials, len(bench.measured)) == (0, 20, 18)


@pytest.mark.slow
def test_a_lying_record_is_found_out_by_the_whole_model(tmp_path, bench, monkeypatch):
    """Measured for real: the record says that a slow configuration is a thousand times as fast."""
    monkeypatch.setattr(tuning, "WholeModel", WholeModel)
    config = FusionConfig()
    tasks = survey(import_model(two_products(), config), parse("cpu"), config).tasks
    with Records.open(tmp_path / "t.db") as records:
        for task in tasks:
            slowest = min(task.configs, key=lambda c: (c["mr"] * c["nr"], text(c)))
            assert slowest != task.configs[0]
            TuningRecords(records).put_best(task.key, task.title, slowest, 0.001, 1.0)
    found = tune(tmp_path, "trials=1", effort=QUICK)
    assert found.tuned == 0
    assert found.model is None or found.model.gain <= 1  # the first race, or the last
    defaults = {task.key: task.configs[0] for task in tasks}
    assert {best.key: best.config for best in bests(tmp_path)} == defaults
    config = FusionConfig(db=tmp_path / "t.db")
    assert tvm_fusion.explain(two_products(), config=config, stock=False).tuned == ()


def test_equal_seeds_measure_the_same(tmp_path, bench):
    measured = []
    for number, seed in enumerate((7, 7, 8)):
        (tmp_path / str(number)).mkdir()
        bench.measured = []
        tune(tmp_path / str(number), seed=seed)
        measured.append(list(map(text, bench.measured)))
    assert measured[0] == measured[1] != measured[2]


def test_a_second_run_goes_on(tmp_path, bench):
    tune(tmp_path, "trials=30")
    first = list(map(text, bench.measured))
    found = tune(tmp_path, "trials=50")
    assert found.trials == 50
    assert len(bench.measured) == 50
    assert bench.measured[30:32] != bench.measured[:2]  # the defaults are not measured again
    assert set(map(text, bench.measured[30:])) - set(first)
    bench.measured = []
    assert tune(tmp_path, "trials=50").trials == 50
    assert bench.measured == []


@pytest.mark.parametrize("config", [{"mr": 6, "nr": 32}, {"mr": 6, "nr": 32, "stages": 3}])
def test_records_of_another_design_space_are_passed_over(tmp_path, bench, config):
    """Such as of before a field was added: they are no winners, and trials go on without them."""
    defaults = FusionConfig()
    tasks = survey(import_model(two_products(), defaults), parse("cpu"), defaults).tasks
    with Records.open(tmp_path / "t.db") as records:
        for task in tasks:
            TuningRecords(records).put_trial(task.key, task.title, Trial(config, 1.0, 30.0))
            TuningRecords(records).put_best(task.key, task.title, config, 1.0, 30.0)
    options = {"config": FusionConfig(db=tmp_path / "t.db"), "stock": False}
    told = tvm_fusion.explain(two_products(), **options).fallbacks
    assert [d.code for d in told] == ["tuned_config_unfit"] * 2
    words = "is not used: contraction has no configuration of mr 6, nr 32"
    assert all(words in d.sentence for d in told)
    found = tune(tmp_path, "trials=6")
    assert found.trials == 6
    assert config not in bench.measured
    assert all(config not in configs for configs in bench.raced)
    assert all(best.config.keys() == task.configs[0].keys() for best in bests(tmp_path))


def test_small_spaces_end_before_the_budget(tmp_path, bench, monkeypatch):
    from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction

    whole = CpuContraction.configs
    monkeypatch.setattr(CpuContraction, "configs", lambda *args: iter(list(whole(*args))[:5]))
    found = tune(tmp_path, "trials=1000")
    assert found.trials == 10


def recorded(path):
    with Records.open(path) as records:
        return {key for _, key, _ in TuningRecords(records).tasks()}


def surveyed():
    """The keys of the model's tasks in this process."""
    config = FusionConfig()
    tasks = survey(import_model(two_products(), config), parse("cpu"), config).tasks
    return {task.key for task in tasks}


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start without one
from relax_modules import main_module
from tuned_models import QUICK, two_products
import tvm_fusion
tvm_fusion.tune(two_products(), db=sys.argv[1], budget="trials=10000", effort=QUICK)
"""


def started(path):
    """Start tuning in a process of its own, and wait for the first trials."""
    here = os.path.dirname(__file__)
    tests = os.path.dirname(here)
    folders = [os.environ.get("PYTHONPATH", ""), here, tests, *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], env=env)
    while process.poll() is None:  # however long that takes on a machine with thirty jobs
        try:
            if len(trials(path)) >= 6:
                return process
        except sqlite3.Error:
            pass
        time.sleep(0.05)
    raise AssertionError(f"no trials, exit code {process.poll()}")


@pytest.mark.slow
def test_a_killed_run_is_continued(tmp_path, bench):
    path = tmp_path / "t.db"
    process = started(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = trials(path)
    assert len(before) >= 6
    assert bests(tmp_path) == []  # no race of the whole model has been
    assert all(us and us > 0 for *_, us, _ in before)
    assert recorded(path) <= surveyed()  # or else nothing could be continued
    found = tune(tmp_path, f"trials={len(before) + 9}")
    assert found.trials == len(before) + 9
    assert len(bench.measured) == 9
    assert set(before) <= set(trials(path))
    assert len(trials(path)) == len(before) + 9  # none of them a second time


@pytest.mark.slow
def test_an_interrupted_run_keeps_everything(tmp_path):
    path = tmp_path / "t.db"
    process = started(path)
    while process.poll() is None:  # Python drops what is raised inside of a destructor
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
    assert process.returncode != 0
    assert len(trials(path)) >= 6


@pytest.mark.slow
def test_measured_for_real(tmp_path):
    found = tvm_fusion.tune(two_products(), db=tmp_path / "t.db", budget="trials=12", effort=QUICK)
    assert (found.trials, found.failed) == (12, 0)
    assert 0 < found.us <= found.default_us


@pytest.mark.parametrize(("us", "tasks"), [((1.0, 2.0), 1), ((2.0, 1.0), 3)])
def test_a_profile_decides_what_is_tuned(tmp_path, bench, monkeypatch, us, tasks):
    asked = []

    def answer(self, alternatives):
        asked.append(alternatives)
        return us, 5

    monkeypatch.setattr(AlternativeBench, "__call__", answer)
    monkeypatch.setattr(bench, "us", staticmethod(lambda config: 30.0))
    options = {"db": tmp_path / "t.db", "budget": "trials=6"}
    found = tvm_fusion.tune(attention(), config=FusionConfig(profile="5m"), **options)
    assert found.tasks == tasks
    assert found.profile["measured"] == len(asked) > 0
    # What was measured stays for the next run, and for the compilation.
    again = tvm_fusion.tune(attention(), **options)
    assert again.profile == {**found.profile, "measured": 0, "known": found.profile["measured"]}
    assert (again.tasks, again.trials) == (found.tasks, found.trials)
    manifest = tvm_fusion.compile(attention(), db=tmp_path / "t.db").manifest
    assert manifest["profile"]["known"] == len(asked)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": FusionConfig(profile="soon")}, "budget 'soon'"),
        ({"runner": "somewhere"}, "runner 'somewhere'; expected local"),
        ({"runner": None}, "runner None; expected local"),
        ({"budget": "trials=0"}, "allows no trial"),
        ({"budget": 60}, "budget 60; expected a time such as"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"effort": "low"}, "effort of type str; expected an Effort"),
        ({"db": None}, "records of type NoneType; expected a path"),
        ({"target": "cuda:sm_90a"}, "cannot be measured by the runner 'local'; expected cpu"),
        ({"target": "cpu:neoverse-n1"}, "cannot be measured by the runner 'local'; expected cpu"),
    ],
)
def test_mistakes(tmp_path, options, words):
    with pytest.raises(UserError) as error:
        tvm_fusion.tune(two_products(), **{"db": tmp_path / "t.db", **options})
    assert words in str(error.value)
    assert not (tmp_path / "t.db").exists()


def test_defaults_that_do_not_run(tmp_path, bench, monkeypatch):
    monkeypatch.setattr(
        bench, "trial", lambda self, config, effort: Trial(config, None, None, "ended by SIGILL")
    )
    with pytest.raises(UserError, match=r"can be measured here \(matmul .*: ended by SIGILL\)"):
        tune(tmp_path)


def test_read_only_records(tmp_path, monkeypatch, bench):
    path = tmp_path / "t.db"
    Records.open(path).close()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(UserError, match="are read-only; expected a writable file"):
        tune(tmp_path)
    assert bench.measured == []
