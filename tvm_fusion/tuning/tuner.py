"""Tune a model: measure configurations of its kernels, and record those that beat the defaults.

  plan the model; tasks = its distinct groups with several configurations
  measure the default of each: tasks are ordered by their share of the time
  until the budget is spent:
    task = the one with the most time, less as trials find nothing
    for a batch of configurations:  measure in a process of its own;  record the trial
    what beats the record:  race it against the default and the record again;  record the winner
  race the whole model, tuned against default

Everything is on the disk when it is measured, so that a run that is killed is continued by running
it again. MetaSchedule's task scheduler is not used: its database is written when a task is picked
again, a resumed run starts anew, an error of one task ends the run, and its builder and runner
start Python anew for every batch (2.5 s before anything is built, where a trial here takes 0.2 s).
Its search and its cost model can be chosen (:mod:`.evolutionary`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._tvm.fork import has_run_kernels
from ..config import FusionConfig
from ..core.flags import TF32
from ..device import TargetSpec, parse
from ..errors import UserError
from ..frontend import import_model
from ..fusion.profile import Profile, profiling
from ..fusion.records import Records
from ..fusion.tuning_records import Trial, TuningRecords
from ..measure.budget import Budget
from ..measure.isolate import Failed
from ..measure.timing import Effort
from ..threads import choose_threads
from .evolutionary import EvolutionarySearch
from .measure import Bench
from .rpc_bench import RpcBench, Tracker
from .search import Search
from .state import State, TaskState
from .tasks import Task, survey
from .view import Progress
from .whole import Race, race_models

BATCH = 8
SEARCHES: dict[str, type[Search] | type[EvolutionarySearch]] = {
    "bayesian": Search,
    "evolutionary": EvolutionarySearch,
}
GAIN = 0.98  # ratio from which on a configuration is better than the default, and not by chance
CAREFUL = 4  # times the effort of a trial, for races
WHOLE = 30  # times, for the whole model
RACES = 3  # in processes of their own; the worst counts


@dataclass(frozen=True)
class Tuning:
    """What a run of the tuner has found.

    Attributes
    ----------
    db : Path
        The records.
    tasks, tuned : int
        Groups with several configurations, and those of them with a faster one than the default.
    trials, failed : int
        Configurations measured, earlier runs included, and those without a time.
    fixed, symbolic : int
        Groups that are not tuned: they have one configuration, or symbolic shapes.
    default_us, us : float
        Microseconds of all tasks' calls in a run of the model, each measured alone.
    model : Race or None
        The whole model, default against tuned; ``None`` where nothing was found.
    """

    db: Path
    tasks: int
    tuned: int
    trials: int
    failed: int
    fixed: int
    symbolic: int
    default_us: float
    us: float
    model: Race | None


def tune(
    model: Any,
    target: Any = "cpu",
    config: FusionConfig | None = None,
    *,
    db: str | os.PathLike[str],
    budget: str = "10m",
    runner: str = "local",
    search: str = "bayesian",
    seed: int = 0,
    effort: Effort | None = None,
    progress: Progress = lambda state: None,
) -> Tuning:
    """Measure configurations of a model's kernels, and record the fastest.

    Compile with ``db=...`` afterwards to use them. A run that was interrupted, or killed, is
    continued by the same call.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX file.
    target : str, dict or tvm.target.Target
        See :func:`tvm_fusion.device.parse`. Kernels run on this machine.
    config : FusionConfig, optional
        What the model will be compiled with: other options make other kernels.
    db : str or os.PathLike
        The file of records, made if it does not exist.
    budget : str
        ``"30m"`` of this run, or ``"trials=2000"`` of all runs.
    runner : str
        Where candidates are measured: ``"local"``, or ``"rpc://host:port/key"``: by the servers
        that TVM's RPC tracker there has under the key, all at a time.
    search : {"bayesian", "evolutionary"}
        How configurations are chosen: by :mod:`tvm_fusion.tuning.search`, or by MetaSchedule's
        evolutionary search and XGBoost cost model, which take as many trials and far more time.
    seed : int
        Of what is drawn; equal seeds propose the same configurations after equal measurements.
    effort : Effort, optional
        How long a measurement takes.
    progress : callable
        Told the state whenever it changes.

    Returns
    -------
    Tuning

    Raises
    ------
    UserError
        For a model, target, option, budget, runner, search or file that cannot be used.
    """
    spending, effort = Budget.parse(budget), effort or Effort()
    config = replace(config or FusionConfig(), db=None, profile=None)
    if search not in SEARCHES:
        raise UserError(f"search {search!r}", f"one of {', '.join(SEARCHES)}")
    spec = parse(target).rounding_to_tf32(TF32 in config.flags)
    tracker = _tracker(spec, runner)
    with Records.open(db) as records, profiling(Profile(records)):
        records.check_writable()
        state = State()
        progress(state)
        choose_threads()
        imported = import_model(model, config)
        has_run_kernels()  # evaluates constants
        found = survey(imported, spec, config)
        tuner = Tuner(spec, TuningRecords(records), effort, seed, search, progress, tracker)
        tuner.run(found.tasks, spending)
        state = tuner.state
        race = None
        if tracker is None and any(task.best and task.ratio < 1 for task in state.tasks):
            state.stage = "racing the whole model"
            progress(state)
            race = race_models(imported, spec, config, records.path, seed, _of_model(effort))
            if race.is_slower:
                tuner.give_up()
    return Tuning(
        db=Path(db),
        tasks=len(state.tasks),
        tuned=sum(task.ratio < 1 for task in state.tasks),
        trials=state.trials,
        failed=sum(task.failed for task in state.tasks),
        fixed=found.fixed,
        symbolic=found.symbolic,
        default_us=state.default_us,
        us=state.us,
        model=race,
    )


def _of_model(effort: Effort) -> Effort:
    """Take as long for the whole model as for some tens of trials, and to the end."""
    return Effort(WHOLE * effort.seconds, 10, 300, float("inf"), 10 * effort.timeout)


def _tracker(spec: TargetSpec, runner: str) -> Tracker | None:
    """Check that candidates can be measured; the tracker of a runner that is not this machine."""
    if runner != "local":
        tracker = Tracker.parse(runner)
        if len(spec.archs) > 1:
            raise UserError(f"target {spec.text!r} names several architectures", "one")
        tracker.servers()
        return tracker
    if spec.kind != "llvm" or spec.triple is not None:
        raise UserError(
            f"target {spec.text!r} cannot be measured by the runner 'local'",
            "cpu, the machine that this is",
            "tune on a machine that is the target, by --runner rpc://host:port/key or "
            "--export-candidates",
        )
    return None


class Tuner:
    """The loop over tasks.

    Parameters
    ----------
    spec : TargetSpec
        This machine.
    records : TuningRecords
        Where everything is kept.
    effort : Effort
        Of a trial.
    seed : int
        Of proposals and inputs.
    search : str
        Of :data:`SEARCHES`.
    progress : callable
        Told the state whenever it changes.
    tracker : Tracker, optional
        Of the servers that measure; by default this machine does.
    """

    def __init__(
        self,
        spec: TargetSpec,
        records: TuningRecords,
        effort: Effort,
        seed: int,
        search: str,
        progress: Progress,
        tracker: Tracker | None = None,
    ) -> None:
        self._tracker = tracker
        self._spec, self._records, self._effort = spec, records, effort
        self._seed, self._progress = seed, progress
        self._search = SEARCHES[search]
        self._benches: dict[TaskState, Bench | RpcBench] = {}
        self.state = State()

    def run(self, tasks: tuple[Task, ...], budget: Budget) -> None:
        """Tune until the budget is spent or every configuration is measured."""
        self.state.tasks = [self._resumed(task) for task in tasks]
        self._show("measuring defaults", budget)
        for one in self.state.tasks:
            if not one.default_us:
                self._measure(one, one.task.configs[0])
            self._show("measuring defaults", budget)
        self._check_defaults()
        while not budget.is_spent(self.state.trials):
            left = [task for task in self.state.tasks if task.weight > 0]
            if not left:
                break
            one = max(left, key=lambda task: task.weight)
            self._batch(one, budget)
        self._show("done", budget)

    def _check_defaults(self) -> None:
        """Stop where no default can be measured: such as code for instructions that are not here.

        A task whose default fails gets no trials, for there is nothing to compare with.
        """
        if self.state.tasks and not any(one.default_us for one in self.state.tasks):
            first = self.state.tasks[0]
            (error,) = {
                trial.error
                for trial in self._records.trials(first.task.key)
                if trial.config == first.task.configs[0]
            }
            raise UserError(
                f"no kernel for {self._spec.text!r} can be measured here ({first.task.title}: "
                f"{error})",
                "a target that this machine is",
            )

    def give_up(self) -> None:
        """Record defaults instead of what was found: the whole model is not faster with it."""
        for one in self.state.tasks:
            if one.ratio < 1:
                default = one.task.configs[0]
                self._keep(one, default, one.default_us, one.default_us)

    def _resumed(self, task: Task) -> TaskState:
        one = TaskState(task, self._search(task.configs, self._seed))
        for trial in self._records.trials(task.key):
            self._learn(one, trial)
        one.best = self._records.best(task.key)
        if one.best is not None:
            one.default_us = one.best.default_us
            one.ratio = min(1.0, one.best.us / one.best.default_us)
        return one

    def _batch(self, one: TaskState, budget: Budget) -> None:
        """Measure a few configurations of a task, and race what is better than its record."""
        better: list[Trial] = []
        configs = one.search.propose(BATCH)[: self._count(budget)]
        for trial in self._bench(one).trials(configs, self._effort):
            self._keep_trial(one, trial)
            if trial.ratio < GAIN * one.ratio:
                better.append(trial)
            self._show("tuning", budget)
            if budget.is_spent(self.state.trials):
                break
        one.idle += 1
        if better:
            self._race(one, min(better, key=lambda trial: trial.ratio))
        elif one.best is None:
            self._keep(one, one.task.configs[0], one.default_us, one.default_us)

    def _count(self, budget: Budget) -> int:
        """Give the size of a batch: what is left of the trials, if they are counted."""
        left = budget.left(self.state.trials)
        return BATCH if budget.trials is None else max(1, min(BATCH, int(left)))

    def _measure(self, one: TaskState, config: Any) -> None:
        self._keep_trial(one, self._bench(one).trial(config, self._effort))

    def _keep_trial(self, one: TaskState, trial: Trial) -> None:
        self._records.put_trial(one.task.key, one.task.title, trial)
        self._learn(one, trial)

    def _learn(self, one: TaskState, trial: Trial) -> None:
        one.search.tell(trial)
        one.trials += 1
        one.failed += bool(trial.error)
        if trial.default_us:
            one.default_us = min(one.default_us or trial.default_us, trial.default_us)

    def _race(self, one: TaskState, trial: Trial) -> None:
        """Measure a configuration, the one to use so far and the default in turns, carefully."""
        effort = replace(
            self._effort,
            seconds=CAREFUL * self._effort.seconds,
            most=CAREFUL * self._effort.most,
            timeout=CAREFUL * self._effort.timeout,
        )
        configs = [trial.config]
        if one.best is not None and one.ratio < 1:
            configs.append(one.best.config)
        try:
            times = [self._bench(one).race(configs, effort) for _ in range(RACES)]
        except Failed:
            return  # the trial that passed once stays on record, and is not used
        ratios = [max(t[k] / t[-1] for t in times) for k in range(len(configs))]
        ratio = min(ratios)
        if ratio >= GAIN:
            if one.best is None:
                self._keep(one, one.task.configs[0], one.default_us, one.default_us)
            return
        if ratios.index(ratio) == 0:
            default_us = min(t[-1] for t in times)
            self._keep(one, trial.config, default_us * ratio, default_us)
            one.idle = 0

    def _keep(self, one: TaskState, config: Any, us: float, default_us: float) -> None:
        self._records.put_best(one.task.key, one.task.title, config, us, default_us)
        one.best = self._records.best(one.task.key)
        one.default_us, one.ratio = default_us, us / default_us

    def _bench(self, one: TaskState) -> Bench | RpcBench:
        if one not in self._benches:
            self._benches[one] = (
                Bench(one.task, self._spec, self._seed)
                if self._tracker is None
                else RpcBench(one.task, self._spec, self._seed, self._tracker)
            )
        return self._benches[one]

    def _show(self, stage: str, budget: Budget) -> None:
        self.state.stage, self.state.left = stage, budget.describe(self.state.trials)
        self._progress(self.state)
