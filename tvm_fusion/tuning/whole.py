"""The whole model: what is faster alone must be faster together.

plan the model once;  build it with any choice of configurations;  time two choices in turns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import Sequential

from .._tvm.versions import PIPELINE
from ..core.contract.template import Claim, Config
from ..core.contract.tuned import Tuned
from ..deploy.build.lower import LowerToVM
from ..deploy.runtime.results import leaves
from ..deploy.runtime.tensors import to_numpy, to_tensor
from ..deploy.toolchain import toolchain
from ..device import Device, TargetSpec
from ..frontend import Imported
from ..fusion.claims import remembering
from ..fusion.database.key import Key
from ..fusion.database.tuning_records import text
from ..fusion.fuse import FuseOperators
from ..measure.isolate import Failed, isolated
from ..measure.timing import Effort, bound, check_same, in_turns, random_array
from ..schedule.kernels import ScheduleKernels

# Which winners make the whole model faster: added to it in races of the whole model.
#
#   chosen = the default of every task;  winners, those that gain most first
#   add(all winners)
#   add(some):
#       race the model of chosen and some against that of chosen, in turns
#       it gains half of what they gain alone, or more:  chosen += some
#       else:  add(one half of them), add(the other half)
#
# A configuration that is faster alone can be slower in the model, where caches hold other things.
# Of many at once the sum is seen that no race could see of one of them.


EXPECTED = 0.5  # of the gain that winners have alone


@dataclass(frozen=True)
class Winner:
    """A configuration that is faster than its task's default, measured alone."""

    key: Key  # of the task
    config: Config  # the configuration
    gain_us: float  # microseconds that all calls of a run are faster


class Model(Protocol):
    """What races choices; see :class:`.whole.WholeModel`."""

    def race(self, one: Chosen, other: Chosen) -> tuple[float, float]:
        """Time two choices; microseconds of each."""


class Selection:
    """The winners that are used.

    Parameters
    ----------
    has_time
        Whether there is time for another race.

    Attributes
    ----------
    chosen : dict of Key to Config
        What makes the model faster.
    gain : float
        How many times faster, by the races.
    """

    def __init__(self, model: Model, has_time: Callable[[], bool]) -> None:
        self._model, self._has_time = model, has_time
        self.chosen: dict[Key, Config] = dict(DEFAULTS)
        self.gain = 1.0

    def run(self, winners: Sequence[Winner]) -> None:
        """Choose among the winners."""
        ordered = sorted(winners, key=lambda one: -one.gain_us)
        together = self._add(ordered)
        if together > self.gain:  # parts of them were not tried, or gained less
            self.chosen, self.gain = _configs(ordered), together

    def _add(self, some: Sequence[Winner]) -> float:
        """Add those that gain what is expected of them; returns the gain of all at once."""
        if not some or not self._has_time():
            return 0.0
        try:
            us, before = self._model.race({**self.chosen, **_configs(some)}, self.chosen)
        except Failed:  # one of them
            us = before = 1.0
        together = self.gain * before / us
        if us < before and before - us >= EXPECTED * sum(one.gain_us for one in some):
            self.chosen |= _configs(some)
            self.gain = together
        elif len(some) > 1:
            self._add(some[: len(some) // 2])
            self._add(some[len(some) // 2 :])
        return together


def _configs(winners: Sequence[Winner]) -> dict[Key, Config]:
    return {one.key: one.config for one in winners}


LOOSER = 10.0  # times the tolerance of one task, for results behind many
KEPT = 3  # builds: of the default, of what is chosen, of what may be added

Chosen = Mapping[Key, Config]
DEFAULTS: Chosen = {}


@dataclass(frozen=True)
class Race:
    """A whole model with defaults and with what was found, timed in turns."""

    # Least microseconds of a run, of the less favourable of two processes.
    default_us: float
    us: float
    error: str = ""  # why there are no times; else empty

    @property
    def gain(self) -> float:
        """How many times faster the model is; 1 where there are no times."""
        return self.default_us / self.us if self.us else 1.0


class WholeModel:
    """A planned model whose kernels can be made with any choice of configurations.

    Parameters
    ----------
    imported
        The model, of static shapes.
    planned
        Its groups, as the scheduling stage gets them.
    effort
        How long a race takes.
    """

    def __init__(
        self, imported: Imported, planned: tvm.IRModule, spec: TargetSpec, seed: int, effort: Effort
    ) -> None:
        (self._name, signature), *_ = imported.signatures.items()
        generator = np.random.default_rng(seed)
        self._arrays = [
            random_array(generator, tuple(map(int, x.shape)), x.dtype) for x in signature.inputs
        ]
        self._mod, self._spec, self._effort = planned, spec, effort
        self._built: dict[frozenset[tuple[Key, str]], Any] = {}

    def race(self, one: Chosen, other: Chosen) -> tuple[float, float]:
        """Time the model with two choices in turns, in a process of its own; microseconds.

        Raises
        ------
        Failed
            If one crashes or takes too long, or their results differ.
        """
        executables = [self._build(chosen) for chosen in (one, other)]

        def measure() -> tuple[float, float]:
            machines = [relax.VirtualMachine(built, tvm.cpu()) for built in executables]
            # Tensors of its own for each: a model may write to its inputs.
            calls = [bound(machine, self._name, self._args()) for machine in machines]
            results, expected = (_arrays_of(call()) for call in calls)
            check_same(results, expected, LOOSER)
            us, other_us = in_turns(calls, self._effort)
            return us, other_us

        return isolated(measure, self._effort.timeout)

    def judge(self, chosen: Chosen) -> Race:
        """Race a choice against the defaults in two processes."""
        try:
            # Another program that runs during one makes gains, too: UNet's 1.05 was 1.53 once.
            races = [self.race(chosen, DEFAULTS) for _ in range(2)]
        except Failed as reason:
            return Race(0.0, 0.0, str(reason))
        us, default_us = max(races, key=lambda times: times[0] / times[1])
        return Race(default_us, us)

    def _args(self) -> list[Any]:
        return [to_tensor(array.copy(), tvm.cpu()) for array in self._arrays]

    def _build(self, chosen: Chosen) -> Any:
        name = frozenset((key, text(config)) for key, config in chosen.items())
        if name not in self._built:
            while len(self._built) >= KEPT:
                self._built.pop(next(n for n in self._built if n))  # the defaults stay
            self._built[name] = build_model(self._mod, chosen, self._spec)
        self._built[name] = self._built.pop(name)  # the latest use last
        return self._built[name]


def build_model(planned: tvm.IRModule, chosen: Chosen, spec: TargetSpec) -> Any:
    """Build a planned model with configurations for some of its groups.

    Parameters
    ----------
    planned
        Groups, as the scheduling stage gets them.
    chosen : mapping of Key to Config
        Configurations other than the default.
    """
    with toolchain(spec), spec.tvm_target() as target, remembering():
        scheduling = ScheduleKernels(FuseOperators, _lookup(chosen))
        mod = Sequential([scheduling, LowerToVM()])(planned)
        return tvm.compile(mod, target, relax_pipeline=None, tir_pipeline=PIPELINE)


def _lookup(chosen: Chosen) -> Callable[[Claim, Device], Tuned | None]:
    def lookup(claim: Claim, device: Device) -> Tuned | None:
        config = chosen.get(Key.of(claim.group, claim.template.name, device))
        return None if config is None else Tuned(config, 1.0, 1.0, "this race")

    return lookup


def _arrays_of(result: Any) -> list[np.ndarray]:
    return [to_numpy(leaf).copy() for leaf in leaves(result)]
