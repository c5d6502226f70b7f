"""MetaSchedule's evolutionary search and XGBoost cost model over the design spaces of templates.

Kernels of templates are ready PrimFuncs, which no schedule primitive makes; so a design is a
schedule of a token function that has one sampled decision for each field of a configuration:

  for field in fields:  index = sample_categorical(its values);  annotate(block, field, index)

A postprocessor refuses combinations that are not in the space, a mutator draws one decision anew,
and the cost model's features are the configuration's sizes. Builders and runners are this package's
own (:mod:`..measure`), since a candidate is built from its configuration.
"""

import importlib.util
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from ...core.contract.template import Config
from ...errors import UserError
from ...fusion.database.tuning_records import Trial, text
from .bayesian import FAILED, features_of

BATCH = 8
WARMUP = 16  # trials before the cost model is asked
ATTEMPTS = 4  # batches without anything new, after which the space counts as measured
_NEEDED = ("xgboost", "psutil", "cloudpickle")


class EvolutionarySearch:
    """Proposes configurations of one task by MetaSchedule; used as :class:`.bayesian.Search` is.

    Parameters
    ----------
    configs
        The design space, the default first.

    Raises
    ------
    UserError
        If the packages that MetaSchedule needs are not installed.
    """

    def __init__(self, configs: Sequence[Config], seed: int) -> None:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise UserError(
                f"the evolutionary search needs {', '.join(missing)}",
                advice="install tvm_fusion[tune], or take the search 'bayesian'",
            )
        self._configs, self._seed, self._given_up = configs, seed, False
        self._number = {text(config): i for i, config in enumerate(configs)}
        self._known = {0}
        self._space = _Space(configs)
        self._context, self._model, self._database = _context(self._space, configs, seed)
        self._waiting: list[Config] = []
        self._told: list[tuple[Any, Any]] = []  # since the cost model was trained

    def tell(self, trial: Trial) -> None:
        """Learn what a configuration takes."""
        from tvm.s_tir import meta_schedule as ms

        number = self._number.get(text(trial.config))
        if number is None:
            return
        self._known.add(number)
        candidate = self._space.candidate(trial.config)
        result = ms.runner.RunnerResult([min(trial.ratio, FAILED)], None)
        self._database.commit_tuning_record(
            ms.database.TuningRecord(
                candidate.sch.trace,
                self._database.commit_workload(self._space.mod),
                result.run_secs,
                self._context.target,
                candidate.args_info,
            )
        )
        self._told.append((candidate, result))

    @property
    def is_over(self) -> bool:
        """Whether all configurations are measured, or the search finds no new ones."""
        return self._given_up or len(self._known) == len(self._configs)

    def propose(self, count: int) -> list[Config]:
        """Choose configurations that are not measured yet."""
        attempts = 0
        with _seeded(self._seed + len(self._known)):
            if self._told:
                candidates, results = map(list, zip(*self._told, strict=True))
                self._model.update(self._context, candidates, results)
                self._told = []
            while len(self._waiting) < count and attempts < ATTEMPTS:
                candidates = self._context.generate_measure_candidates() or []
                waiting = {text(config) for config in self._waiting}
                found = [self._space.config(candidate.sch) for candidate in candidates]
                new = [
                    config
                    for config in found
                    if self._number[text(config)] not in self._known and text(config) not in waiting
                ]
                self._context.notify_runner_results(candidates, [])
                self._waiting += new
                attempts += not new
        proposed, self._waiting = self._waiting[:count], self._waiting[count:]
        self._given_up = not proposed
        return proposed


class _Space:
    """Configurations as schedules of a token function."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._names = list(configs[0])
        self._values = [
            sorted({config[name] for config in configs}, key=lambda v: (isinstance(v, str), v))
            for name in self._names
        ]
        self._members = {tuple(config[name] for name in self._names) for config in configs}
        x = te.placeholder((1,), name="x")
        token = te.create_prim_func([x, te.compute((1,), lambda i: x[i], name="token")])
        self.mod = tvm.IRModule({"main": token.with_attr("global_symbol", "main")})

    def schedule(self, sch: Any, decisions: Sequence[int | None]) -> None:
        """Sample a value for each field, and write which it is into the module."""
        block = sch.get_sblock("token")
        for name, values, decision in zip(self._names, self._values, decisions, strict=True):
            even = [1.0 / len(values)] * len(values)
            index = sch.sample_categorical(list(range(len(values))), even, decision)
            sch.annotate(block, f"tvm_fusion.{name}", index)

    def design(self, sch: Any) -> list[Any]:
        """Return the design space of a schedule, as MetaSchedule's generators do."""
        self.schedule(sch, [None] * len(self._names))
        return [sch]

    def candidate(self, config: Config) -> Any:
        """Make the candidate that stands for a configuration."""
        from tvm.s_tir import meta_schedule as ms

        sch = s_tir.Schedule(self.mod)
        pairs = zip(self._values, self._names, strict=True)
        self.schedule(sch, [values.index(config[name]) for values, name in pairs])
        info = ms.arg_info.ArgInfo.from_entry_func(self.mod, remove_preproc=True)
        return ms.search_strategy.MeasureCandidate(sch, info)

    def config(self, sch: Any) -> Config:
        """Read the configuration that a schedule stands for."""
        found = sch.get(sch.get_sblock("token")).annotations
        indices = [int(found[f"tvm_fusion.{name}"]) for name in self._names]
        pairs = zip(self._names, self._values, indices, strict=True)
        return {name: values[index] for name, values, index in pairs}

    def has(self, sch: Any) -> bool:
        """Whether a schedule stands for a member of the design space."""
        config = self.config(sch)
        return tuple(config[name] for name in self._names) in self._members


def _context(space: _Space, configs: Sequence[Config], seed: int) -> tuple[Any, Any, Any]:
    """Make MetaSchedule's context, cost model and database for a space."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    generator = random.Random(seed)
    rows = dict(zip(map(text, configs), features_of(configs).astype("float32"), strict=True))

    @derived_object
    class InSpace(ms.postproc.PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Any) -> bool:
            return space.has(sch)

    @derived_object
    class DrawOne(ms.mutator.PyMutator):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, trace: Any, _: Any) -> Any:
            drawn = [i for i in trace.insts if i.kind.name == "SampleCategorical"]
            one = generator.choice(drawn)
            index = generator.randrange(len(one.attrs[0]))
            return trace.with_decision(one, index, remove_postproc=True)

    @derived_object
    class Sizes(ms.feature_extractor.PyFeatureExtractor):
        def extract_from(self, context: Any, candidates: Any) -> list[Any]:
            found = (rows[text(space.config(candidate.sch))] for candidate in candidates)
            return [tvm.runtime.tensor(row[None]) for row in found]

    context = ms.TuneContext(
        space.mod,
        target=tvm.target.Target({"kind": "llvm", "num-cores": 1}),
        space_generator=ms.space_generator.ScheduleFn(
            space.design, sch_rules=[], postprocs=[InSpace()], mutator_probs={DrawOne(): 1.0}
        ),
        search_strategy=ms.search_strategy.EvolutionarySearch(
            population_size=128, init_min_unmeasured=1, max_fail_count=50
        ),
        num_threads=1,
        rand_state=seed + 1,
    )
    model = ms.cost_model.XGBModel(extractor=Sizes(), num_warmup_samples=WARMUP, tree_method="hist")
    database = ms.database.MemoryDatabase()
    context.pre_tuning(len(configs) + BATCH, BATCH, database=database, cost_model=model)
    return context, model, database


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed numpy's own generator, by which the cost model scores before it knows anything."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)
