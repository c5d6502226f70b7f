"""Kernels that are launched while the one before them still runs.

Every kernel waits at its start until all memory that the one before wrote is visible, having asked
for weights at most (weight_prefetch), or where it says so (dependency_wait). It lets the next one
be launched when all of its own blocks are about to end, or where it says so (dependents_launch), as
a block whose producers end first would be taken to end then. The time between two kernels is
hidden: programmatic dependent launch of NVIDIA's CUDA C++ Programming Guide. Launched any earlier,
the next kernel's blocks would crowd on the multiprocessors that are free first: BERT, ViT and T5 of
batch 1 took 2 to 15 % longer on one H200. A kernel that does neither is ordered as ever, so
external ones may stand between.
"""

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from ...core.tir.expressions import call_name
from ...core.tir.loops import find, sequence
from ...core.untouched import has_blocks, is_lowered, is_rewritable
from ...device import parse
from ...schedule.gpu.launch import dependency_wait, dependents_launch
from .weight_prefetch import prefetch, prefetched_weights

LAUNCH_PARAMS = "tirx.kernel_launch_params"
DEPENDENT = "tirx.use_programtic_dependent_launch"  # TVM 0.27's spelling


@tvm.transform.module_pass(opt_level=0, name="LaunchEarly")
class LaunchEarly:
    """Launch all kernels of rewritable functions early, where all devices can."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to the scheduled PrimFuncs that functions call which are not lowered yet."""
        target = Target.current()
        if target is None or not has_dependent_launch(target):
            return mod
        mod = mod.clone()
        for func in list(mod.functions.values()):
            if not is_rewritable(func) or is_lowered(func):
                continue
            called = relax.analysis.all_global_vars(func)
            callees = {gvar: mod[gvar] for gvar in called if isinstance(mod[gvar], tirx.PrimFunc)}
            prefetched = prefetched_weights(func, callees, target)
            for gvar, callee in callees.items():
                mod.update_func(gvar, launched_early(callee, prefetched.get(gvar, ())))
        return mod


@tvm.transform.module_pass(opt_level=0, name="ReadBehindWaits")
class ReadBehindWaits:
    """Keep reads of kernels that wait behind the wait.

    TVM marks all pointers of a device function as the only ones to their memory. A CUDA compiler
    takes what is only read through such a pointer to be the same all the time, and may read it
    before the wait.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to device functions, before code is generated."""
        mod = mod.clone()
        for gvar, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and any(map(_is_wait, find(func.body, ir.Call))):
                mod.update_func(gvar, func.without_attr("tirx.noalias"))
        return mod


def has_dependent_launch(target: Target) -> bool:
    """Tell whether all devices of a target know dependent launch."""
    return all(device.dependent_launch for device in parse(target).devices)


def launched_early(func: tirx.PrimFunc, prefetched: Sequence[ir.Var] = ()) -> tirx.PrimFunc:
    """Let the kernels of a scheduled PrimFunc be launched early.

    Parameters
    ----------
    func
        Over SBlocks and thread bindings; any other is returned as it is.
    prefetched
        Parameters that no kernel writes: kernels ask L2 for them before they wait.

    Returns
    -------
    PrimFunc
        Each of its kernels waits before it reads or writes anything else.
    """
    if not has_blocks(func) or LAUNCH_PARAMS in func.attrs:
        return func
    inner: set[tirx.For] = set()
    found: list[tirx.For] = []

    def enter(loop: tirx.For) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.THREAD_BINDING or loop in inner:
            return loop
        found.append(loop)
        inner.update(find(loop.body, tirx.For))
        calls = find(loop.body, ir.Call)
        before = [] if any(map(_is_wait, calls)) else [dependency_wait()]
        behind = [] if any(map(_is_launch, calls)) else [dependents_launch()]
        body = sequence([*map(prefetch, prefetched), *before, loop.body, *behind])
        binding, annotations = loop.thread_binding, loop.annotations
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, binding, annotations)

    body = tvm_ffi.structural_map(func.body, (tirx.For, enter), order="pre")
    return func.with_body(body).with_attr(LAUNCH_PARAMS, [DEPENDENT]) if found else func


def _is_wait(call: ir.Call) -> bool:
    return _is(call, "wait")


def _is_launch(call: ir.Call) -> bool:
    return _is(call, "launch_dependents")


def _is(call: ir.Call, action: str) -> bool:
    return call_name(call) == "griddepcontrol" and f'"{action}"' in map(str, call.args)
