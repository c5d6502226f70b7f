"""Alternatives of the planner, measured beside each other in a process of their own.

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

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir.transform import Sequential

from .._tvm.versions import PIPELINE
from ..core.decisions import recording
from ..core.template import TEMPLATE
from ..core.tuned import Lookup, untuned
from ..deploy.lower import LowerToVM
from ..deploy.tensors import to_numpy, to_tensor
from ..deploy.toolchain import toolchain
from ..device import TargetSpec
from ..ecg.graph import Value
from ..fusion.fuse import FuseOperators
from ..fusion.profile import Alternative, NotNow, Part, Unmeasured
from ..program.primitive import call_group, call_tir, primitive_function
from ..schedule.kernels import ScheduleKernels
from .budget import Budget
from .isolate import Failed, isolated
from .timing import Effort, bound, check_same, in_turns, leaves, random_input

MAIN = "main"
EFFORT = Effort(seconds=0.02, fewest=3, most=15, hopeless=float("inf"), timeout=120.0)
BATCHES = 5
LEAST_US = 0.05  # of what takes no longer than an empty function


class AlternativeBench:
    """Measures what the planner asks, on this machine, as long as a budget lasts.

    Parameters
    ----------
    spec : TargetSpec
        This machine.
    budget : Budget
        What may be spent.
    tuned : callable
        Gives the configuration that kernels will have.
    effort : Effort
        Of a batch.
    """

    def __init__(
        self,
        spec: TargetSpec,
        budget: Budget,
        tuned: Lookup = untuned,
        effort: Effort = EFFORT,
    ) -> None:
        self._spec, self._budget, self._tuned, self._effort = spec, budget, tuned, effort
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
            measure = partial(timed, modules, self._spec, self._tuned, self._effort, clock)
            us = isolated(measure, self._effort.timeout)
            if us[0] > us[-1]:  # what speaks against fusing must do so twice
                again = isolated(measure, self._effort.timeout)
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
) -> list[float]:
    """Build modules of groups and time their ``main`` in turns, in this process.

    Parameters
    ----------
    modules : sequence of IRModule
        Of static shapes; their ``main`` take and return the same tensors.
    spec : TargetSpec
        This machine.
    tuned : callable
        Gives the configuration that kernels will have.
    effort : Effort
        Of each of :data:`BATCHES` batches.
    clock : callable
        Seconds.

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
        bound(relax.VirtualMachine(_build(mod, spec, tuned), device), MAIN, args)
        for mod in (_empty(params), *modules)
    ]
    first, *others = [[to_numpy(leaf).copy() for leaf in leaves(call())] for call in calls[1:]]
    for results in others:
        check_same(results, first)
    batches = [in_turns(calls, effort, clock) for _ in range(BATCHES)]
    medians = [statistics.median(times) for times in zip(*batches, strict=True)]
    return [max(us - medians[0], LEAST_US) for us in medians[1:]]


def _build(mod: tvm.IRModule, spec: TargetSpec, tuned: Lookup) -> Any:
    with toolchain(spec), spec.tvm_target() as target, recording() as decisions:
        scheduled = Sequential([ScheduleKernels(FuseOperators, tuned)])(mod)
        for decision in decisions:
            if decision.verdict == "fallback":
                raise RuntimeError(decision.sentence)
        lowered = Sequential([LowerToVM()])(scheduled)
        return tvm.compile(lowered, target, relax_pipeline=None, tir_pipeline=PIPELINE)


def modules_of(alternatives: Sequence[Alternative]) -> list[tvm.IRModule]:
    """Write alternatives as modules whose ``main`` take and return the same tensors.

    Raises
    ------
    ValueError
        If they meet in tensors of other layouts.
    """
    types: dict[Value, relax.TensorType] = {}
    for parts in alternatives:
        for part in parts:
            tensors = (*part.group.inputs, *part.group.outputs)
            for own, value in zip(tensors, (*part.inputs, *part.outputs), strict=True):
                known = types.setdefault(value, own.type)
                if not tvm_ffi.structural_equal(known, own.type):
                    raise ValueError(f"{value.name} has two layouts, {known} and {own.type}")
    made = [{value for part in parts for value in part.outputs} for parts in alternatives]
    outputs = [value for part in alternatives[0] for value in part.outputs]
    wanted = [v for v in dict.fromkeys(outputs) if all(v in values for values in made)]
    inputs: dict[Value, None] = {}
    for parts, values in zip(alternatives, made, strict=True):
        read = (value for part in parts for value in part.inputs if value not in values)
        inputs.update(dict.fromkeys(read))
    given = [
        value
        for value in inputs
        if value.constant is None
        or not tvm_ffi.structural_equal(value.constant.ty, types[value])  # it has a layout
    ]
    if not wanted:
        raise ValueError("they have no result in common")
    params = {value: types[value] for value in given}
    return [_module(parts, params, wanted) for parts in alternatives]


def _module(
    parts: Alternative, params: dict[Value, relax.TensorType], wanted: Sequence[Value]
) -> tvm.IRModule:
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {
        op.gvar: op.func for part in parts for op in part.group.members
    }
    builder = relax.BlockBuilder(tvm.IRModule(functions))
    variables = {v: relax.Var(f"x{n}", type_) for n, (v, type_) in enumerate(params.items())}
    known: dict[Value, relax.Expr] = dict(variables)
    with builder.function(MAIN, list(variables.values())):
        with builder.dataflow():
            for part in _ordered(parts):
                for value in part.inputs:
                    if value not in known:
                        known[value] = value.constant
                _emit(builder, part, known)
            outputs = [builder.emit_output(known[value]) for value in wanted]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def _ordered(parts: Alternative) -> list[Part]:
    """Sort parts so that each comes after those whose results it reads."""
    order: list[Part] = []
    left = list(parts)
    while left:
        waiting = {value for part in left for value in part.outputs}
        ready = [p for p in left if not any(v in waiting and v not in p.outputs for v in p.inputs)]
        if not ready:
            raise ValueError("they wait for each other")
        order += ready
        left = [part for part in left if part not in ready]
    return order


def _emit(builder: relax.BlockBuilder, part: Part, known: dict[Value, relax.Expr]) -> None:
    group = part.group
    if not part.template:
        inside = {own: known[v] for own, v in zip(group.inputs, part.inputs, strict=True)}
        for op in group.members:
            inside[op.results[0]] = builder.emit(call_tir(op, inside))
        known.update({v: inside[own] for own, v in zip(group.outputs, part.outputs, strict=True)})
        return
    func = primitive_function(group, {TEMPLATE: part.template})
    call = call_group(builder.add_func(func, "group"), group, [known[v] for v in part.inputs])
    result = builder.emit(call)
    if len(part.outputs) == 1:
        known[part.outputs[0]] = result
        return
    for number, value in enumerate(part.outputs):
        known[value] = builder.emit(relax.TupleGetItem(result, number))


def _empty(params: Sequence[relax.Var]) -> tvm.IRModule:
    """Make a function of the same parameters that returns one tensor of a byte."""
    builder = relax.BlockBuilder()
    own = [relax.Var(f"x{n}", param.ty) for n, param in enumerate(params)]
    with builder.function(MAIN, own):
        with builder.dataflow():
            output = builder.emit_output(relax.const(np.zeros((1,), "int8")))
        builder.emit_func_output(output)
    return builder.get()
