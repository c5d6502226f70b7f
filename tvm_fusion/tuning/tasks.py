"""What there is to tune in a model: its distinct groups that can have several configurations.

Groups are taken as the scheduling stage gets them, after layouts are chosen, so that what is
recorded is what a compilation looks up.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import Sequential
from tvm.target import Target

from ..config import FusionConfig
from ..core.contract.template import TEMPLATE, Claim, Config, Refusal
from ..core.contract.templates import template
from ..deploy.memory.in_place import update_in_place
from ..device import TargetSpec, device_of
from ..frontend import Imported
from ..fusion.claims import remembering
from ..fusion.database.key import Key
from ..fusion.database.tuning_records import text
from ..pipeline import stages
from ..schedule.stage.emit import group_of, is_group

MAIN = "main"


@dataclass(frozen=True, eq=False)
class Task:
    """A group whose kernels can have several configurations."""

    key: Key  # what its records belong to
    title: str  # its operators and the shapes of its outputs, for a reader
    calls: int  # how often the model calls it
    claim: Claim  # with the default configuration
    configs: tuple[Config, ...]  # the design space, the default first
    # The group, and ``main``, which calls it with the constants that the model passes.
    mod: tvm.IRModule


@dataclass(frozen=True, eq=False)
class Fixed:
    """A group without choices."""

    claim: Claim  # of its template
    calls: int  # how often the model calls it


@dataclass(frozen=True)
class Survey:
    """The groups of a model."""

    tasks: tuple[Task, ...]  # those that can be tuned
    fixed: tuple[Fixed, ...]  # distinct groups whose templates offer one configuration
    # Distinct groups of symbolic shapes that have choices: there is no one shape to measure.
    symbolic: int
    # Constants that contractions read in a run of the model: see
    # :mod:`tvm_fusion.deploy.cuda_graph.weight_prefetch`.
    weight_bytes: int
    constant_bytes: int  # constants that all groups read in a run
    planned: tvm.IRModule  # the model in groups, as the scheduling stage gets it


def survey(imported: Imported, spec: TargetSpec, config: FusionConfig) -> Survey:
    """Plan a model and find its tasks.

    Parameters
    ----------
    config
        The options that it will be compiled with.
    """
    passes = stages(replace(config, dump=None))[:-1]
    mod = update_in_place(imported.mod, imported.signatures, config.writes)
    target = spec.tvm_target()
    with target, remembering():
        mod = Sequential(passes)(mod)
    tasks: dict[Key, Task] = {}
    fixed: dict[Key, Fixed] = {}
    symbolic: set[Key] = set()
    weight_bytes = constant_bytes = 0
    for gvar, call, calls in calls_of(mod):
        size = calls * _constant_bytes(call)
        constant_bytes += size
        if "contraction" in str(mod[gvar].attrs[TEMPLATE]):
            weight_bytes += size
        task = _task(mod, gvar, call, calls, target)
        if isinstance(task, Task):
            known = tasks.get(task.key)
            tasks[task.key] = task if known is None else replace(known, calls=known.calls + calls)
        elif isinstance(task, Key):
            symbolic.add(task)
        elif task is not None:
            key = Key.of(task.claim.group, task.claim.template.name, spec.device)
            known_calls = fixed[key].calls if key in fixed else 0
            fixed[key] = replace(task, calls=known_calls + calls)
    return Survey(
        tuple(tasks.values()),
        tuple(fixed.values()),
        len(symbolic),
        weight_bytes,
        constant_bytes,
        mod,
    )


def calls_of(mod: tvm.IRModule) -> Iterator[tuple[ir.GlobalVar, relax.Call, int]]:
    """Yield every group with one of its calls and the number of them."""
    found: dict[ir.GlobalVar, list[relax.Call]] = {}
    for func in mod.functions.values():
        if not isinstance(func, relax.Function) or is_group(func):
            continue
        for block in func.body.blocks:
            for binding in block.bindings:
                call = binding.value
                if isinstance(call, relax.Call) and is_group(mod.functions.get(call.op)):
                    found.setdefault(call.op, []).append(call)
    for gvar, calls in found.items():
        yield gvar, calls[0], len(calls)


def _task(
    mod: tvm.IRModule, gvar: ir.GlobalVar, call: relax.Call, calls: int, target: Target
) -> Task | Fixed | Key | None:
    """Make a task; or give a group without choices, or the key of one of symbolic shapes."""
    func = mod[gvar]
    device, group = device_of(target), group_of(mod, func)
    claimant = template(str(func.attrs[TEMPLATE]), target)
    claim = claimant.claim(group, device)
    if isinstance(claim, Refusal):
        return None  # the scheduling stage plans it again, and says so
    key = Key.of(group, claimant.name, device)
    configs = {text(config): config for config in claimant.configs(claim, device)}
    if len(configs) < 2:
        return Fixed(claim, calls)
    if not all(
        isinstance(d, tirx.IntImm) for v in (*group.inputs, *group.outputs) for d in v.shape
    ):
        return key
    return Task(key, title_of(claim), calls, claim, tuple(configs.values()), alone(mod, gvar, call))


def ends_of(task: Task) -> dict[int, int]:
    """Tell which parameters of ``main`` end groups of ragged rows, and how many rows there are.

    Zeros, as other integers are measured with, would leave nothing to multiply.
    """
    ragged = task.claim.ragged
    if ragged is None:
        return {}
    groups, rows = int(ragged.groups), int(ragged.rows)
    types = [param.ty for param in task.mod[MAIN].params]
    return {
        number: rows
        for number, type_ in enumerate(types)
        if [*map(int, type_.shape.values)] == [groups] and str(type_.dtype).startswith("int")
    }


def _constant_bytes(call: relax.Call) -> int:
    found = [arg for arg in call.args if isinstance(arg, ir.GenericConst)]
    tensors = [c for c in found if isinstance(c.ty, relax.TensorType)]
    return sum(map(bytes_of, tensors))


def bytes_of(constant: ir.GenericConst) -> int:
    """Return the bytes of a constant tensor."""
    size: int = math.prod(constant.value.shape) * tvm.DataType(constant.ty.dtype).itemsize
    return size


def title_of(claim: Claim) -> str:
    """Name a group by its operators and the shapes of its outputs."""
    shapes = ", ".join("x".join(str(int(d)) for d in value.shape) for value in claim.group.outputs)
    return f"{claim.group.title} [{shapes}]"


def alone(mod: tvm.IRModule, gvar: ir.GlobalVar, call: relax.Call) -> tvm.IRModule:
    """Make a module of one group, with the constants of one of its calls."""
    func = mod[gvar]
    needed: dict[ir.GlobalVar, Any] = {gvar: func}
    for binding in func.body.blocks[0].bindings:
        if isinstance(binding.value, relax.Call) and binding.value.args:
            callee = binding.value.args[0]
            if isinstance(callee, ir.GlobalVar):
                needed[callee] = mod[callee]
    args: list[relax.Expr] = []
    params: list[relax.Var] = []
    for number, (param, arg) in enumerate(zip(func.params, call.args, strict=True)):
        if isinstance(arg, ir.GenericConst):
            args.append(arg)
        else:
            params.append(relax.Var(f"x{number}", param.ty))
            args.append(params[-1])
    builder = relax.BlockBuilder(tvm.IRModule(needed))
    with builder.function(MAIN, params):
        with builder.dataflow():
            output = builder.emit_output(relax.Call(gvar, args))
        builder.emit_func_output(output)
    return builder.get()
