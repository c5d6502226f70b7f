"""One candidate in a process of its own: built, compared with the default, timed in turns with it.

  fork
    build the candidate
    compare its results with the default's on random inputs
    rounds:  evict caches; time the default;  evict caches; time the candidate
    report both minima

Operands come from where they lie in the model, beyond the near caches, and weights from memory
where the last cache does not hold those of the model (:mod:`..measure.timing`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..core.contract.template import Claim, Config
from ..core.contract.tuned import Tuned
from ..deploy.runtime.results import leaves
from ..deploy.runtime.tensors import to_numpy, to_tensor
from ..device import Device, TargetSpec
from ..fusion.database.tuning_records import Trial
from ..measure.build import build_groups
from ..measure.isolate import Failed, isolated
from ..measure.timing import Effort, bound, check_same, in_turns, random_input
from .candidate_bench.tensors import even_ends
from .tasks import MAIN, Task, ends_of

GAIN = 0.99  # ratio from which on a configuration is better than the default, and not by chance


class Bench:
    """Measures candidates of one task against its default, on this machine."""

    def __init__(self, task: Task, spec: TargetSpec, seed: int) -> None:
        self._task, self._spec = task, spec
        self._default = build(task, None, spec)
        self._arrays = inputs_of(task, seed)

    def trial(self, config: Config, effort: Effort) -> Trial:
        """Measure one configuration; a better one than the default twice, and the worse counts."""
        try:
            if config == self._task.configs[0]:
                (us,) = self.race([], effort)
                return Trial(config, us, us)
            us, default_us = self.race([config], effort)
            if us < GAIN * default_us:
                again = self.race([config], effort)
                us, default_us = max((us, default_us), tuple(again), key=lambda t: t[0] / t[1])
        except Failed as reason:
            return Trial(config, None, None, str(reason))
        return Trial(config, us, default_us)

    def trials(self, configs: Sequence[Config], effort: Effort) -> Iterator[Trial]:
        """Measure configurations, one after the other."""
        return (self.trial(config, effort) for config in configs)

    def race(self, configs: Sequence[Config], effort: Effort) -> list[float]:
        """Measure configurations and the default in turns in one process.

        Returns
        -------
        list of float
            Microseconds of each, the default's last.

        Raises
        ------
        Failed
            If one crashes, takes too long or gives other results.
        """

        def measure() -> list[float]:
            device = tvm.cpu()
            args = [to_tensor(array, device) for array in self._arrays]
            machines = [
                relax.VirtualMachine(executable, device)
                for executable in (
                    *(build(self._task, config, self._spec) for config in configs),
                    self._default,
                )
            ]
            calls = [bound(machine, MAIN, args) for machine in machines]
            expected = [to_numpy(leaf).copy() for leaf in leaves(calls[-1]())]
            for call in calls[:-1]:
                check_same([to_numpy(leaf) for leaf in leaves(call())], expected)
            return in_turns(calls, effort, inputs=[to_numpy(arg) for arg in args])

        return isolated(measure, effort.timeout)


def build(
    task: Task,
    config: Config | None,
    spec: TargetSpec,
    change: Callable[[tvm.IRModule], tvm.IRModule] = lambda mod: mod,
) -> Any:
    """Build a task's group with a configuration, or with the default.

    Parameters
    ----------
    change
        Changes the scheduled module before it is lowered.

    Raises
    ------
    RuntimeError
        If the configuration cannot be emitted.
    """

    def lookup(claim: Claim, device: Device) -> Tuned | None:
        return None if config is None else Tuned(config, 1.0, 1.0, "this trial")

    return build_groups(task.mod, spec, lookup, change)


def inputs_of(task: Task, seed: int) -> list[np.ndarray]:
    """Draw the inputs of a task."""
    generator = np.random.default_rng(seed)
    drawn = [random_input(generator, param.ty) for param in task.mod[MAIN].params]
    for number, rows in ends_of(task).items():
        drawn[number] = even_ends(len(drawn[number]), rows).astype(drawn[number].dtype)
    return drawn
