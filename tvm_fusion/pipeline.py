"""The stages in order: the only file that knows all of them.

TVM knows both pipelines by name once this package is installed: ``relax.get_pipeline("tvm_fusion",
target=target)`` inside a pipeline of one's own, or ``tvm.compile(mod, target,
relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")`` for a whole build.
"""

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.ir.transform import Pass, PassContext, Sequential
from tvm.target import Target
from tvm.tirx import compilation_pipeline

from . import transform
from ._tvm.versions import PIPELINE, register_pipelines
from .config import FusionConfig
from .core.current_target import current_target
from .core.progress import report
from .core.untouched import has_blocks
from .deploy.build.dump import Dump
from .deploy.cuda_graph.dependent_launch import ReadBehindWaits
from .device.plain_cpu import warn_of_plain_cpu
from .ecg.legalization.composites import CompileComposites
from .ecg.legalization.unlowered import RefuseUnlowered
from .lower.cleanup import DropArgumentChecks, DropEmptyLoops, DropScopePragmas, ValidNames
from .lower.cpu import NaturalAlignment, ParallelTrips, RegistersOnStack
from .lower.expressions import BindOnce, without_cse
from .lower.flatten import s_tir_pipeline
from .lower.float_math import HyperbolicByExponentials, KeepNaNTests, PassNaNOn
from .lower.integers import DivideByNoZeroExtent, DivideByPositive, LowerIntegers
from .lower.narrow_types import BytesForBooleans, CastFloat8
from .lower.thread_values import NarrowLanes, PrivateReductionResults
from .parallel.peer_sums import PeerSums
from .schedule.gpu.threads.anchored_sums import AnchorSums
from .schedule.gpu.threads.lane_moves import ExchangeByLaneMoves, ReduceByLaneMoves
from .schedule.math.amd_half_functions import AmdHalfFunctions
from .schedule.math.half_math import HalfMath
from .schedule.math.ptx_math import PtxMath
from .schedule.math.quotients import DivideByScales

STAGES: tuple[tuple[str, Callable[..., Pass]], ...] = (
    ("rewrite", transform.Rewrite),
    ("ecg", transform.Legalize),
    ("fusion", transform.FuseOperators),
    ("layout", transform.PlanLayout),
    ("schedule", transform.ScheduleKernels),
)
_WORDS = {
    "rewrite": "rewriting",
    "ecg": "classifying operators",
    "fusion": "fusing operators",
    "layout": "choosing layouts",
    "schedule": "scheduling kernels",
}


def stages(config: FusionConfig | None = None) -> list[Pass]:
    """List the passes of all stages, with a dump after each where the config names a folder.

    What legalization leaves is refused before anything is planned.
    """
    config = config or FusionConfig()
    passes: list[Pass] = []
    for number, (name, _) in enumerate(STAGES, start=1):
        passes += [_told(_WORDS[name]), stage(name, config)]
        if name == "ecg":
            passes.append(RefuseUnlowered())
        if config.dump is not None:
            passes.append(Dump(config.dump / f"{number}_{name}.py"))
    return passes


def _told(words: str) -> Pass:
    """Make a pass that changes nothing and tells that a stage begins."""

    @tvm.transform.module_pass(opt_level=0, name="TellProgress")
    def tell(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        report(words)
        return mod

    return tell


def stage(name: str, config: FusionConfig) -> Pass:
    """Make the pass of one stage, with its options."""
    make = dict(STAGES)[name]
    if make is transform.Rewrite:
        rewrite = make(config.rewrite, config.flags, config.without)
        if config.workers == 1 or "peer_sums" in config.without:
            return rewrite
        return Sequential([rewrite, PeerSums(config.workers)])
    if make is transform.ScheduleKernels:
        return make(config.db)
    return make()


def relax_pipeline(*, target: Target | None = None, lower: bool = True) -> Pass:
    """Build the Relax pipeline: normalisation, all stages, the virtual machine's lowering.

    Applying it to its own result changes nothing.

    Parameters
    ----------
    target
        What to compile for; ``Target.current()`` when omitted, asked for when the pass runs.
    lower
        Whether to lower for the virtual machine as well. ``False`` leaves ``call_tir`` on scheduled
        PrimFuncs, for pipelines that go on with memory planning of their own.

    Returns
    -------
    Pass
        A module pass.
    """

    @tvm.transform.module_pass(opt_level=0, name=PIPELINE)
    def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        chosen = target or current_target(f"the pipeline {PIPELINE!r}")
        warn_of_plain_cpu(chosen)
        with chosen:
            first: list[Pass] = [transform.NormalizeImport()]
            last: list[Pass] = []
            if lower:
                first.append(CompileComposites())
                last.append(transform.LowerToVM())
            return Sequential([*first, *stages(), *last])(mod)

    return run


def tir_pipeline():
    """Build the TIR pipeline: scheduled functions and thread-level kernels, each in its own way.

    TVM lowers functions over SBlocks (S-TIR) and thread-level ones (TIRx) by different passes but
    runs one pipeline over a module; this one parts the module by the attribute ``s_tir``.

    Returns
    -------
    tuple
        The module pass and the factories of host and device finalisation, as TVM registers them.
    """
    s_tir_passes, finalize_host_tvm, finalize_device_tvm = s_tir_pipeline(ReduceByLaneMoves)
    tirx_passes, _, _ = compilation_pipeline.PIPELINE_MAP["tirx"]()

    @tvm.transform.module_pass(opt_level=0, name=PIPELINE)
    def run(mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        exact = [ValidNames(), BytesForBooleans(), KeepNaNTests(), HyperbolicByExponentials()]
        exact.append(CastFloat8())
        dropped = [DropEmptyLoops(), DropScopePragmas()]
        mod = Sequential([*dropped, *exact, HalfMath(), PtxMath(), BindOnce()])(mod)
        scheduled: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
        thread_level: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
        for gvar, func in mod.functions.items():
            is_thread_level = isinstance(func, tirx.PrimFunc) and not has_blocks(func)
            (thread_level if is_thread_level else scheduled)[gvar] = func
        with without_cse(ctx):
            s_tir_module = tvm.IRModule(scheduled, attrs=mod.attrs)
            lowered = s_tir_passes(Sequential([DivideByPositive()])(s_tir_module))
        if thread_level:
            lowered.update(tirx_passes(tvm.IRModule(thread_level, attrs=mod.attrs)))
        return lowered

    def finalize_host() -> Pass:
        before = [
            DropArgumentChecks(),
            DivideByNoZeroExtent(),
            NaturalAlignment(),
            RegistersOnStack(),
            DivideByScales(),
        ]
        after = [LowerIntegers(), PassNaNOn(), ParallelTrips()]
        return Sequential([*before, finalize_host_tvm(), *after])

    def finalize_device() -> Pass:
        before = [
            ReadBehindWaits(),
            PrivateReductionResults(),
            AmdHalfFunctions(),
            ExchangeByLaneMoves(),
            AnchorSums(),
            NarrowLanes(),
        ]
        return Sequential([*before, finalize_device_tvm(), LowerIntegers(), PassNaNOn()])

    return run, finalize_host, finalize_device


register_pipelines()  # for a checkout that is on the path but not installed
