"""Tune tasks: measure their configurations, and record those that beat the defaults.

  measure the default of each: what it may gain is its time over a roofline of all of them
  until the budget is spent:
    task = the one with the most to gain, less as trials find nothing
    for a batch of configurations:  measure in a process of its own;  record the trial
    what beats the winner so far:  race it against the default and the winner;  keep the winner
  choose among the winners by what the whole model gains (:mod:`.whole`);  record all of them

Trials are on the disk when they are measured, so that a run that is killed is continued by running
it again. Configurations are recorded to be used when all races are over: a killed run leaves those
of the run before it, and its own winners are raced again. MetaSchedule's task scheduler is not
used: its database is written when a task is picked again, a resumed run starts anew, an error of
one task ends the run, and its builder and runner start Python anew for every batch (2.5 s before
anything is built, where a trial here takes 0.2 s). Its search and its cost model can be chosen
(:mod:`.search.evolutionary`).
"""

from collections.abc import Container
from dataclasses import replace
from statistics import median
from typing import Any

from ..device import TargetSpec
from ..errors import UserError
from ..fusion.database.key import Key
from ..fusion.database.tuning_records import Trial, TuningRecords, text
from ..measure.budget import Budget
from ..measure.isolate import Failed
from ..measure.timing import Effort
from .measure import GAIN, Bench
from .rpc_bench import RpcBench, Tracker
from .search.bayesian import Search
from .search.evolutionary import EvolutionarySearch
from .state import State, TaskState
from .tasks import Task
from .view import Progress
from .whole import Winner

BATCH = 8
SEARCHES: dict[str, type[Search] | type[EvolutionarySearch]] = {
    "bayesian": Search,
    "evolutionary": EvolutionarySearch,
}
CAREFUL = 4  # times the effort of a trial, for races
RACES = 3  # in processes of their own; the median counts: the whole model is raced at the end


class Tuner:
    """The loop over tasks.

    Parameters
    ----------
    search
        Of :data:`SEARCHES`.
    progress
        Told the state whenever it changes.
    tracker
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
        self.show("measuring defaults", budget)
        for one in self.state.tasks:
            if not one.default_us:
                self._measure(one, one.task.configs[0])
            self.show("measuring defaults", budget)
        self._check_defaults()
        while not budget.is_spent(self.state.trials):
            weights = self.state.weights()
            most = max(weights, default=0.0)
            if not most:
                break
            self._batch(self.state.tasks[weights.index(most)], budget)
        self.show("done", budget)

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
                "a target that this machine can run",
            )

    def winners(self, budget: Budget) -> list[Winner]:
        """List what is faster than its default, measured alone.

        An earlier run may have been killed before its winners were recorded, or have kept a default
        since the whole model was not faster with another configuration: these are raced again,
        with what was found since.
        """
        for one in self.state.tasks:
            again = one.fastest
            if again is None or again.ratio >= GAIN * one.ratio or text(again.config) in one.raced:
                continue
            if budget.is_spent(0) and budget.trials is None:
                break
            self._race(one, again)
        return [
            Winner(one.task.key, one.winner, one.task.calls * one.default_us * (1 - one.ratio))
            for one in self.state.tasks
            if one.winner is not None
        ]

    def use(self, chosen: Container[Key]) -> None:
        """Record the winners that are chosen, and the defaults of other tasks, all at once."""
        with self._records.records.transaction():
            for one in self.state.tasks:
                if one.task.key not in chosen:
                    one.winner, one.ratio = None, 1.0
                if one.default_us:
                    config = one.task.configs[0] if one.winner is None else one.winner
                    us = one.default_us * one.ratio
                    self._records.put_best(one.task.key, one.task.title, config, us, one.default_us)

    def _resumed(self, task: Task) -> TaskState:
        """Go on with what is recorded; configurations of another design space say nothing."""
        one = TaskState(task, self._search(task.configs, self._seed))
        space = set(map(text, task.configs))
        for trial in self._records.trials(task.key):
            if text(trial.config) in space:
                self._learn(one, trial)
        best = self._records.best(task.key)
        if best is not None:
            one.default_us = best.default_us
            if best.us < best.default_us and text(best.config) in space:
                one.winner, one.ratio = best.config, best.us / best.default_us
        return one

    def _batch(self, one: TaskState, budget: Budget) -> None:
        """Measure a few configurations of a task, and race what is better than its record."""
        better: list[Trial] = []
        configs = one.search.propose(BATCH)[: self._count(budget)]
        for trial in self._bench(one).trials(configs, self._effort):
            self._keep_trial(one, trial)
            if trial.ratio < GAIN * one.ratio:
                better.append(trial)
            self.show("tuning", budget)
            if budget.is_spent(self.state.trials):
                break
        one.idle += 1
        if better:
            self._race(one, min(better, key=lambda trial: trial.ratio))

    def _count(self, budget: Budget) -> int:
        """Return the size of a batch: what is left of the trials, if they are counted."""
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
        if one.fastest is None or trial.ratio < one.fastest.ratio:
            one.fastest = trial
        if trial.default_us:
            one.default_us = min(one.default_us or trial.default_us, trial.default_us)

    def _race(self, one: TaskState, trial: Trial) -> None:
        """Measure a configuration, the winner so far and the default in turns, carefully."""
        effort = replace(
            self._effort,
            seconds=CAREFUL * self._effort.seconds,
            most=CAREFUL * self._effort.most,
            timeout=CAREFUL * self._effort.timeout,
        )
        one.raced.add(text(trial.config))
        configs = [trial.config, *([] if one.winner is None else [one.winner])]
        try:
            times = [self._bench(one).race(configs, effort) for _ in range(RACES)]
        except Failed:
            return  # the trial that passed once stays on record, and is not used
        ratios = [median(t[k] / t[-1] for t in times) for k in range(len(configs))]
        if ratios[0] < GAIN and ratios[0] == min(ratios):
            one.winner, one.ratio = trial.config, ratios[0]
            one.default_us = min(t[-1] for t in times)
            one.idle = 0

    def _bench(self, one: TaskState) -> Bench | RpcBench:
        if one not in self._benches:
            self._benches[one] = (
                Bench(one.task, self._spec, self._seed)
                if self._tracker is None
                else RpcBench(one.task, self._spec, self._seed, self._tracker)
            )
        return self._benches[one]

    def show(self, stage: str, budget: Budget) -> None:
        """Tell the progress."""
        self.state.stage, self.state.left = stage, budget.describe(self.state.trials)
        self._progress(self.state)
