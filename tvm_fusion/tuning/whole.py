"""The whole model, tuned against default: what is faster alone must be faster together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import Sequential

from .._tvm.versions import PIPELINE
from ..config import FusionConfig
from ..deploy.in_place import update_in_place
from ..deploy.lower import LowerToVM
from ..deploy.tensors import to_tensor
from ..deploy.toolchain import toolchain
from ..device import TargetSpec
from ..frontend import Imported
from ..fusion.claims import remembering
from ..fusion.profile import Profile, profiling
from ..fusion.records import Records
from ..measure.isolate import Failed, isolated
from ..measure.timing import Effort, in_turns, random_array
from ..pipeline import stages

SLOWER = 1.01  # ratio from which on the tuned model is slower, and not by chance


@dataclass(frozen=True)
class Race:
    """A whole model with defaults and with what was found, timed in turns.

    Attributes
    ----------
    default_us, us : float
        Least microseconds of a run, of the less favourable of two processes.
    error : str
        Why there are no times; else empty.
    is_slower : bool
        Whether what was found makes the model slower, in both processes.
    """

    default_us: float
    us: float
    error: str = ""
    is_slower: bool = False

    @property
    def gain(self) -> float:
        """How many times faster the model is."""
        return self.default_us / self.us if self.us else 1.0


def race_models(
    imported: Imported,
    spec: TargetSpec,
    config: FusionConfig,
    db: Path,
    seed: int,
    effort: Effort,
) -> Race:
    """Build a model twice, with defaults and with records, and time both in turns.

    Parameters
    ----------
    imported : Imported
        The model, of static shapes.
    spec : TargetSpec
        This machine.
    config : FusionConfig
        Its options.
    db : Path
        The records.
    seed : int
        Of the inputs.
    effort : Effort
        How long it takes.
    """
    if imported.dims:
        return Race(0.0, 0.0, "the model has symbolic dimensions")
    (name, signature), *_ = imported.signatures.items()
    generator = np.random.default_rng(seed)
    arrays = [random_array(generator, tuple(map(int, x.shape)), x.dtype) for x in signature.inputs]

    def measure() -> list[float]:
        with Records.open(db) as records, profiling(Profile(records)):  # of this process
            machines = [
                relax.VirtualMachine(_build(imported, spec, one), tvm.cpu())
                for one in (replace(config, db=db), config)
            ]
        args = [to_tensor(array, tvm.cpu()) for array in arrays]
        return in_turns([_bound(machine, name, args) for machine in machines], effort)

    try:
        # Another program that runs during one of them makes gains, too: UNet's 1.05 was 1.53 once.
        races = [isolated(measure, effort.timeout) for _ in range(2)]
    except Failed as reason:
        return Race(0.0, 0.0, str(reason))
    us, default_us = max(races, key=lambda times: times[0] / times[1])
    is_slower = all(tuned > SLOWER * default for tuned, default in races)
    return Race(default_us, us, is_slower=is_slower)


def _bound(machine: relax.VirtualMachine, name: str, args: list[Any]) -> Any:
    machine.set_input(name, *args)
    return lambda: machine.invoke_stateful(name)


def _build(imported: Imported, spec: TargetSpec, config: FusionConfig) -> Any:
    mod = update_in_place(imported.mod, imported.signatures, config.writes)
    with toolchain(spec), spec.tvm_target() as target, remembering():
        mod = Sequential([*stages(replace(config, dump=None)), LowerToVM()])(mod)
        return tvm.compile(mod, target, relax_pipeline=None, tir_pipeline=PIPELINE)
