"""Measured configurations: tasks of a model, candidates, races, records.

plan the model, measuring what the planner asks where that is allowed
tasks = its distinct groups with several configurations
tune them until most of the budget is spent
choose among the winners by races of the whole model
race the whole model, tuned against default
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._tvm.fork import has_run_kernels
from ..config import Config, configure
from ..device import TargetSpec, parse
from ..device.plain_cpu import warn_of_plain_cpu
from ..errors import UserError, whole_number
from ..frontend import import_model
from ..fusion.database.records import Records
from ..fusion.database.tuned_configs import tuned_configs
from ..fusion.database.tuning_records import TuningRecords
from ..fusion.profile import Profile, profiling
from ..measure.alternatives import AlternativeBench
from ..measure.budget import Budget
from ..measure.profiling import check_measurable
from ..measure.timing import Effort, swept
from ..threads import choose_threads
from .rpc_bench import Tracker
from .state import State
from .tasks import survey
from .tuner import SEARCHES, Tuner
from .view import Progress
from .whole import Race, Selection, WholeModel, Winner

__all__ = ["Tuning", "tune"]


WHOLE = 20  # times the effort of a trial, for the whole model
SELECTING, MOST_SELECTING = 0.3, 180.0  # of a budget of time, for races of the whole model


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
    profile : dict of str to int
        Questions of the planner: see :meth:`tvm_fusion.fusion.profile.Profile.counts`.
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
    profile: dict[str, int]
    default_us: float
    us: float
    model: Race | None


def tune(
    model: Any,
    target: Any = "cpu",
    config: Config | None = None,
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
    continued by the same call; until a run has ended by comparing what it has found in the whole
    model, what the run before it has chosen is used.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX or ``.pt2`` file.
    target : str, dict or tvm.target.Target
        See :func:`tvm_fusion.device.parse`. Kernels run on this machine.
    config : FusionConfig or dict, optional
        What the model will be compiled with: other options make other kernels. With ``profile``,
        alternatives of the planner are measured first, within that budget of their own.
    db : str or os.PathLike
        The file of records, made if it does not exist.
    budget : str
        ``"30m"`` of this run, or ``"trials=2000"`` of all runs.
    runner : str
        Where candidates are measured: ``"local"``, or ``"rpc://host:port/key"``: by the servers
        that TVM's RPC tracker there has under the key, all at a time.
    search : {"bayesian", "evolutionary"}
        How configurations are chosen: by :mod:`~tvm_fusion.tuning.search.bayesian`, or by
        MetaSchedule's evolutionary search and XGBoost cost model, which take as many trials and far
        more time.
    seed : int
        Of what is drawn; equal seeds propose the same configurations after equal measurements.
    effort : Effort, optional
        How long a measurement takes.
    progress : callable
        Told the state whenever it changes.

    Raises
    ------
    UserError
        For a model, target, option, budget, runner, search or file that cannot be used.
    """
    spending, effort = Budget.parse(budget), effort or Effort()
    seed = whole_number("seed", seed, 0)
    if not isinstance(effort, Effort):
        raise UserError(f"effort of type {type(effort).__name__}", "an Effort")
    config = configure(config)
    comparing = None if config.profile is None else Budget.parse(config.profile)
    config = replace(config, db=None, profile=None)
    if search not in SEARCHES:
        raise UserError(f"search {search!r}", f"one of {', '.join(SEARCHES)}")
    spec = parse(target).permitting(config.flags)
    config = config.for_kind(spec.kind)
    warn_of_plain_cpu(target)
    tracker = _tracker(spec, runner)
    if comparing is not None:
        check_measurable(spec)
        if tracker:
            raise UserError(
                f"runner {runner!r} with the option profile",
                "local: alternatives of the planner are measured on this machine",
                "tune without it, or measure them by `tune --export-candidates --profile`",
            )
    with Records.open(db) as records:
        records.check_writable()
        state = State()
        progress(state)
        choose_threads()
        imported = import_model(model, config)
        has_run_kernels()  # evaluates constants
        tuned = tuned_configs(db)
        bench = None if comparing is None else AlternativeBench(spec, comparing, tuned)
        profile = Profile(records, bench)
        with profiling(profile):
            found = survey(imported, spec, config)
        size = swept(found.constant_bytes, spec.device.l3_bytes)
        effort = replace(effort, swept=size)
        tuner = Tuner(spec, TuningRecords(records), effort, seed, search, progress, tracker)
        reserve = 0.0 if tracker else min(SELECTING * (spending.seconds or 0.0), MOST_SELECTING)
        tuner.run(found.tasks, spending.without(reserve))
        state = tuner.state
        winners = tuner.winners(spending.without(reserve / 2))
        race = None
        if not winners or tracker or imported.dims:
            if winners and imported.dims:
                race = Race(0.0, 0.0, "the model has symbolic dimensions")
            tuner.use({one.key for one in winners})
        else:
            tuner.show("racing the whole model", spending)
            model = WholeModel(imported, found.planned, spec, seed, _of_model(effort))
            race = _choose(tuner, winners, model, spending)
            tuner.show("done", spending)
    return Tuning(
        db=Path(db),
        tasks=len(state.tasks),
        tuned=sum(task.ratio < 1 for task in state.tasks),
        trials=state.trials,
        failed=sum(task.failed for task in state.tasks),
        fixed=len(found.fixed),
        symbolic=found.symbolic,
        profile=profile.counts(),
        default_us=state.default_us,
        us=state.us,
        model=race,
    )


def _choose(
    tuner: Tuner, winners: Sequence[Winner], model: WholeModel, budget: Budget
) -> Race | None:
    """Keep the winners that make the whole model faster; ``None`` where there are none."""
    last = time.monotonic()

    def has_time() -> bool:
        """Whether two more races, of which one is the last, end in time."""
        nonlocal last
        took, last = time.monotonic() - last, time.monotonic()
        return budget.seconds is None or budget.left(0) > 3 * took

    selection = Selection(model, has_time)
    selection.run(winners)
    race = model.judge(selection.chosen) if selection.chosen else None
    # Of the less favourable of two processes; 1 where there are no times.
    tuner.use(selection.chosen if race is not None and race.gain > 1 else ())
    return race


def _of_model(effort: Effort) -> Effort:
    """Take as long for the whole model as for some tens of trials, and to the end."""
    return Effort(WHOLE * effort.seconds, 10, 300, float("inf"), 10 * effort.timeout)


def _tracker(spec: TargetSpec, runner: str) -> Tracker | None:
    """Check that candidates can be measured; the tracker of a runner that is not this machine."""
    if not isinstance(runner, str):
        raise UserError(f"runner {runner!r}", "local, or rpc://host:port/key of a tracker")
    if runner != "local":
        tracker = Tracker.parse(runner)
        if len(spec.archs) > 1:
            raise UserError(f"target {spec.text!r} names several architectures", "one")
        tracker.servers()
        return tracker
    if spec.kind != "llvm" or spec.triple is not None:
        raise UserError(
            f"target {spec.text!r} cannot be measured by the runner 'local'",
            "cpu, this machine",
            "tune on a machine that is the target, by --runner rpc://host:port/key or "
            "--export-candidates",
        )
    return None
