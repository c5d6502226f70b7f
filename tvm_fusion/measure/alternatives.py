"""Alternatives of the planner, measured against each other in a process of their own.

  fork
    per alternative: build  main(inputs) = its groups, one after the other
    build  empty(inputs)
    compare the results of all alternatives on random inputs
    batches:  rounds of (evict caches; time one call) over the alternatives and empty, in turns
    report, per alternative, the median over batches of the minimum over rounds, less empty's
  where that speaks against the first, which is what is fused: once more; what favours it counts

What an empty function takes is the virtual machine's, and is not the kernels'; its calls of kernels
are, since fused ones are fewer.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..core.contract.tuned import Lookup, untuned
from ..deploy.runtime.results import leaves
from ..deploy.runtime.tensors import to_numpy, to_tensor
from ..device import TargetSpec
from ..fusion.profile import Alternative, NotNow, Unmeasured
from .alternative_modules import MAIN, empty_module, modules_of, tolerance
from .budget import Budget
from .build import build_groups
from .isolate import Failed, isolated
from .timing import Effort, bound, check_same, in_turns, random_input

EFFORT = Effort(seconds=0.02, fewest=3, most=15, hopeless=float("inf"), timeout=120.0)
BATCHES = 5
LEAST_US = 0.05  # of what takes no longer than an empty function


class AlternativeBench:
    """Measures what the planner asks, on this machine, as long as a budget lasts.

    Parameters
    ----------
    tuned
        Gives the configuration that kernels will have.
    """

    def __init__(
        self,
        spec: TargetSpec,
        budget: Budget,
        tuned: Lookup = untuned,
    ) -> None:
        self._spec, self._budget, self._tuned = spec, budget, tuned
        self._spent = 0

    def __call__(self, alternatives: Sequence[Alternative]) -> tuple[Sequence[float], int]:
        """Measure alternatives; microseconds of each, and of how many batches.

        Raises
        ------
        Unmeasured
            If one cannot be built, crashes, takes too long or gives other results.
        NotNow
            If the budget is spent.
        """
        if self._budget.is_spent(self._spent):
            raise NotNow
        self._spent += 1
        try:
            modules = modules_of(alternatives)
            clock = time.thread_time if _is_serial() else time.perf_counter
            least = tolerance(alternatives)
            measure = partial(timed, modules, self._spec, self._tuned, EFFORT, clock, least)
            us = isolated(measure, EFFORT.timeout)
            if us[0] > us[-1]:  # what speaks against fusing must do so twice
                again = isolated(measure, EFFORT.timeout)
                us = min(us, again, key=lambda times: times[0] / times[-1])
            return us, BATCHES
        except (Failed, ValueError) as reason:
            raise Unmeasured(str(reason)) from reason


def _is_serial() -> bool:
    """Whether kernels run on one thread, of whose processor time other programs take none."""
    return os.environ.get("TVM_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")) == "1"


def timed(
    modules: Sequence[tvm.IRModule],
    spec: TargetSpec,
    tuned: Lookup = untuned,
    effort: Effort = EFFORT,
    clock: Callable[[], float] = time.perf_counter,
    least: float = 0.0,
) -> list[float]:
    """Build modules of groups and time their ``main`` in turns, in this process.

    Parameters
    ----------
    modules
        Of static shapes; their ``main`` take and return the same tensors.
    tuned
        Gives the configuration that kernels will have.
    effort
        Of each of :data:`BATCHES` batches.
    least
        Tolerance of their results, at least.

    Returns
    -------
    list of float
        Microseconds of each.

    Raises
    ------
    ValueError
        If their results differ.
    """
    device = tvm.cpu()
    generator = np.random.default_rng(0)
    params = modules[0][MAIN].params
    args = [to_tensor(random_input(generator, param.ty), device) for param in params]
    calls: list[Callable[[], Any]] = [
        bound(relax.VirtualMachine(build_groups(mod, spec, tuned), device), MAIN, args)
        for mod in (empty_module(params), *modules)
    ]
    first, *others = [[to_numpy(leaf).copy() for leaf in leaves(call())] for call in calls[1:]]
    for results in others:
        check_same(results, first, least=least)
    batches = [in_turns(calls, effort, clock) for _ in range(BATCHES)]
    medians = [statistics.median(times) for times in zip(*batches, strict=True)]
    return [max(us - medians[0], LEAST_US) for us in medians[1:]]
