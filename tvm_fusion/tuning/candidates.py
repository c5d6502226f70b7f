"""A folder of candidates: built where the compiler is, to be measured where the device is.

  survey the model; tasks by their share of its time
  per task the default and configurations that are not recorded yet: on GPUs those that the
    analytical models rank first, one of each tile; else those that the search proposes
  before that, where comparisons are wanted: the questions that the planner cannot answer by the
    records, each with its alternatives; while there are some, no tasks,
    for the plan may change
  build each into a library, in a process of its own (:mod:`.build_candidates`)
  folder/  candidates.json  measure.py  candidate_bench/  NUMBER_NUMBER.so ...

``measure.py`` (:mod:`.candidate_bench`) needs neither the compiler nor this package. What it
writes is imported like any exported records; exporting again continues from there.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm

from .._tvm.fork import has_run_kernels
from ..config import FusionConfig
from ..core.contract.template import Config
from ..core.contract.tuned import Lookup
from ..device import TargetSpec, parse
from ..device.plain_cpu import warn_of_plain_cpu
from ..errors import UserError
from ..frontend import import_model
from ..fusion.cost import CostModel
from ..fusion.database.records import Records
from ..fusion.database.tuned_configs import tuned_configs
from ..fusion.database.tuning_records import Trial, TuningRecords, text
from ..fusion.profile import Alternative, NotNow, Profile, Unmeasured, profiling, question_of
from ..measure.alternative_modules import modules_of, tolerance
from ..measure.budget import Budget
from ..measure.isolate import Failed
from ..measure.timing import TOLERANCE
from . import candidate_bench
from .build_candidates import export_question, export_task
from .search.bayesian import Search
from .tasks import Task, bytes_of, survey

SCHEMA = 4
GAIN = 0.98  # ratio from which on a configuration is better than the default
_SCRIPT = '''"""Measure this folder of candidates; --help says how."""

import sys
from pathlib import Path

from candidate_bench.measure import main

sys.exit(main(Path(__file__).resolve().parent))
'''


def export_candidates(
    model: Any,
    target: Any,
    folder: str | os.PathLike[str],
    config: FusionConfig | None = None,
    *,
    db: str | os.PathLike[str],
    budget: str = "trials=64",
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Build candidates of a model's kernels into a folder.

    Parameters
    ----------
    model, target, config
        As of :func:`tvm_fusion.tune`; the device need not be present. With ``config.profile``, what
        the planner would measure comes first: as long as it has questions that the records do not
        answer, the folder has their alternatives, and no candidates of kernels.
    folder
        Made; must be empty if it exists.
    db
        Records: what they have is not built again; what cannot be built is recorded.
    budget
        ``trials=N``: candidates besides defaults, shared among the tasks by their time.
    progress
        Told in a line what is done next.

    Returns
    -------
    dict
        ``folder``, ``tasks``, ``candidates``, ``comparisons``, ``failed``.

    Raises
    ------
    UserError
        For a model, target, budget, folder or file that cannot be used.
    """
    spending = Budget.parse(budget)
    if spending.trials is None:
        raise UserError(f"budget {budget!r} of candidates to export", "trials=N")
    config = config or FusionConfig()
    asking = None if config.profile is None else Budget.parse(config.profile)
    config = replace(config, db=None, profile=None)
    spec = parse(target).permitting(config.flags)
    config = config.for_kind(spec.kind)
    warn_of_plain_cpu(target)
    if len(spec.archs) > 1:
        raise UserError(f"target {spec.text!r} names several architectures", "one")
    place = _empty(Path(folder))
    with Records.open(db) as records:
        records.check_writable()
        progress("planning")
        imported = import_model(model, config)
        has_run_kernels()
        questions = None
        if asking is not None:
            size = sum(map(bytes_of, imported.weight_names))
            questions = QuestionExport(spec, place, asking, tuned_configs(db), size)
        profile = Profile(records, questions)
        with profiling(profile):
            found = survey(imported, spec, config)
        known = TuningRecords(records)
        table = _Table(place, spec, seed, questions.entries if questions else [])
        failed = profile.failed if questions else 0
        tasks = [] if table.comparisons else _shares(found.tasks, spec)
        for number, (share, task) in enumerate(tasks):
            count = max(1, round(spending.trials * share))
            progress(f"building task {number + 1} of {len(tasks)}: {task.title}")
            chosen = _chosen(task, known.trials(task.key), count, seed, spec)
            entry, reasons = export_task(task, chosen, spec, place, number, found.weight_bytes)
            for one, reason in reasons:
                known.put_trial(task.key, task.title, Trial(one, None, None, reason))
            failed += len(reasons)
            table.add(entry)
    return {
        "folder": str(place),
        "tasks": len(table.tasks) - table.comparisons,
        "candidates": sum(len(task["candidates"]) for task in table.tasks),
        "comparisons": table.comparisons,
        "failed": failed,
    }


class _Table:
    """What ``candidates.json`` says; it is there after each task, so that a kill loses one."""

    def __init__(
        self, folder: Path, spec: TargetSpec, seed: int, questions: Sequence[dict[str, Any]]
    ) -> None:
        self.tasks, self.comparisons = list(questions), len(questions)
        self._path = folder / "candidates.json"
        self._data = {
            "schema": SCHEMA,
            "kind": spec.kind,
            "target": spec.text,
            "apache-tvm": tvm.__version__,
            "seed": seed,
            "gain": GAIN,
            "tolerance": TOLERANCE,
            "tasks": self.tasks,
        }
        bench = Path(candidate_bench.__file__).parent
        shutil.copytree(bench, folder / bench.name, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "measure.py").write_text(_SCRIPT)
        self._write()

    def add(self, entry: dict[str, Any]) -> None:
        """Add a task that has candidates besides its default."""
        if len(entry["candidates"]) > 1:
            self.tasks.append(entry)
            self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._data, indent=1) + "\n")


def _empty(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{str(folder)!r} is not empty", "a folder to make", "name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{str(folder)!r} cannot be made ({error.strerror})") from error
    return folder


def _shares(tasks: Sequence[Task], spec: TargetSpec) -> list[tuple[float, Task]]:
    """Return each task with its share of the time that all calls are estimated to take."""
    cost = CostModel(spec.device)
    times = [task.calls * cost.cost(task.claim).us for task in tasks]
    total = sum(times) or 1.0
    shares = [(us / total, task) for us, task in zip(times, tasks, strict=True)]
    return sorted(shares, key=lambda one: -one[0])


def _chosen(
    task: Task, trials: Sequence[Trial], count: int, seed: int, spec: TargetSpec
) -> list[Config]:
    """Choose the default, and configurations that are not recorded."""
    default = task.configs[0]
    tried = {text(trial.config) for trial in trials}
    ranked = [
        one
        for one in task.claim.template.estimates(task.claim, spec.device)
        if one[0] == default or text(one[0]) not in tried
    ]
    if ranked:
        return choose(ranked, default, 1 + count)
    search = Search(task.configs, seed)
    for trial in trials:
        search.tell(trial)
    return [default, *([] if search.is_over else search.propose(count))]


# Questions of the planner as candidates: the profile database of a device that is elsewhere.
#
#   plan the model; the planner asks what its records do not answer:
#     build each alternative into a library;  go on by the model
#
# The answers are measured where the device is (:mod:`.candidate_bench`) and imported. The plan that
# follows from them may have other questions, which the next folder has.
class QuestionExport:
    """What a :class:`~..fusion.profile.Profile` takes for a bench; it builds, and answers nothing.

    Parameters
    ----------
    budget
        How many questions; or how long to build.
    tuned
        Gives the configurations that kernels will have.

    Attributes
    ----------
    entries : list of dict
        The questions, as the table has them.
    """

    def __init__(
        self, spec: TargetSpec, folder: Path, budget: Budget, tuned: Lookup, model_bytes: int
    ) -> None:
        self._spec, self._folder, self._budget = spec, folder, budget
        self._tuned, self._model_bytes = tuned, model_bytes
        self.entries: list[dict[str, Any]] = []

    def __call__(self, alternatives: Sequence[Alternative]) -> tuple[Sequence[float], int]:
        """Build alternatives.

        Raises
        ------
        Unmeasured
            If one cannot be built.
        NotNow
            Otherwise: there is no answer yet.
        """
        number = len(self.entries)
        if not self._budget.is_spent(number):
            try:
                mods = modules_of(alternatives)
                entry = export_question(
                    question_of(alternatives, self._spec.device),
                    mods,
                    tolerance(alternatives),
                    self._tuned,
                    self._spec,
                    self._folder,
                    number,
                    self._model_bytes,
                )
            except (Failed, ValueError) as reason:
                raise Unmeasured(str(reason)) from reason
            self.entries.append(entry)
        raise NotNow


# Which configurations of a design space to measure: those that its model ranks first, all sorts.
#
# The model is the template's: :meth:`..core.contract.template.Template.estimates`. Chosen are the
# default; of each tile (its sizes, and how warps share it) the configuration with the least
# estimate, in the order of the estimates; of the default's tile two other pipelines or orders.
# What makes a tile, of GEMM and of attention; the rest are its variants.
TILE = (
    *("kernel", "block_m", "block_n", "warps_m", "warps_n", "consumers", "is_ping_pong"),
    *("blocks_per_sm", "split_k", "warps", "rows_of_warp", "uses_wgmma"),
)
USUAL_GROUP_M = 8
VARIANTS = 2

Estimated = tuple[Config, float]


def choose(found: Sequence[Estimated], default: Config, count: int) -> list[Config]:
    """Choose configurations by what they are estimated to take.

    Parameters
    ----------
    found : sequence of (Config, float)
        A design space with the clocks of each.
    default
        The first one that is chosen.
    """
    ranked = [
        config
        for config, _ in sorted(
            found, key=lambda one: (one[1], one[0].get("group_m", 0) != USUAL_GROUP_M)
        )
        if config != default
    ]
    variants = [c for c in ranked if _tile(c) == _tile(default)]
    variants = variants[: min(VARIANTS, (count - 1) // 2)]
    tiles = {_tile(default)}
    others = []
    for config in ranked:
        if _tile(config) not in tiles:
            tiles.add(_tile(config))
            others.append(config)
    chosen = [default, *others[: max(0, count - 1 - len(variants))], *variants]
    chosen += [c for c in ranked if c not in chosen]  # small design spaces
    return chosen[:count]


def _tile(config: Config) -> tuple[object, ...]:
    return tuple(config.get(name) for name in TILE)
