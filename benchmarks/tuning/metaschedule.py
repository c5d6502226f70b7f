"""Tune a model with stock TVM: its fusion, MetaSchedule's tasks, search, cost model and scheduler.

Run as ``python -m benchmarks.tuning.metaschedule MODEL INPUTS FOLDER TRIALS THREADS``; prints JSON.

  as relax.pipeline.static_shape_tuning_pipeline:  DecomposeOpsForInference, CanonicalizeBindings,
      LegalizeOps, AnnotateTIROpPattern, FoldConstant, FuseOps, FuseTIR
  extract tasks; leave out those whose design space cannot be generated
  tune_tasks: the gradient scheduler gives every task a batch first, and then what is left

The pipeline itself is not called for three reasons that change no candidate: an error of one task
ends its run; its batches of 64 give a small number of trials to the first tasks alone; and its
builder starts two interpreters for every batch, which take longer than what they build.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.relax.frontend.onnx import from_onnx

from benchmarks.harness import arrays
from benchmarks.harness.engines.tvm import host_target
from tvm_fusion.measure.isolate import Failed, isolated

SECONDS = 120.0  # that building, and then running, a candidate may take on a busy machine


def fusion() -> tvm.ir.transform.Pass:
    """Make the passes that stock TVM runs before it tunes."""
    return tvm.ir.transform.Sequential(
        [
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            relax.get_pipeline("zero"),
        ]
    )


def application(folder: Path, target: tvm.target.Target) -> tvm.ir.transform.Pass:
    """Make the passes of a build with the schedules of a database; the others stay as they are."""

    @tvm.ir.transform.module_pass(opt_level=0)
    def pipeline(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        with target:  # which MetaScheduleApplyDatabase asks for when it is made
            passes = [
                fusion(),
                relax.transform.MetaScheduleApplyDatabase(str(folder)),
                relax.get_pipeline("default_build"),
            ]
            return tvm.ir.transform.Sequential(passes)(mod)

    return pipeline


def tune(model: str, inputs: str, folder: str, trials: str, threads: str) -> dict[str, Any]:
    """Tune for a number of trials; says how many tasks there were, and how many were left out."""
    importlib.import_module("tvm.s_tir.tensor_intrin")  # 15 s, which forked builders inherit
    from tvm.s_tir import meta_schedule as ms

    cpus = os.sched_getaffinity(0)
    target = host_target(int(threads))
    shapes = {name: list(array.shape) for name, array in arrays.load(Path(inputs)).items()}
    with target:
        mod = fusion()(from_onnx(onnx.load(model), shape_dict=shapes))
    # Folding constants has run kernels, and TVM ties the thread that runs one to a core; the
    # process that times candidates would inherit that.
    os.sched_setaffinity(0, cpus)
    tasks = ms.relax_integration.extract_tasks(mod, target)
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        tasks, folder, num_threads=int(threads), seed=0
    )
    spaces = [_designs(context) for context in contexts]
    left = [k for k, designs in enumerate(spaces) if designs]
    database = ms.tune_tasks(
        tasks=[contexts[k] for k in left],
        task_weights=[weights[k] for k in left],
        work_dir=folder,
        max_trials_global=int(trials),
        num_trials_per_iter=max(1, int(trials) // len(left)),
        builder=_builder(),
        runner=ms.runner.LocalRunner(timeout_sec=SECONDS),
    )
    return {
        "tasks": len(tasks),
        "left_out": len(tasks) - len(left),
        "fixed": sum(designs == 1 for designs in spaces),
        "trials": len(database),
    }


def _designs(context: Any) -> int:
    """Count the designs of a task; 0 where they cannot be generated, which would end the run."""
    try:
        return len(context.generate_design_space())
    except Exception as error:  # guard: stock TVM's ScheduleError; the count tells of the task
        print(f"{context.task_name} is left out: {error}", file=sys.stderr)
        return 0


def _builder() -> Any:
    """Make a builder of forked processes that do what MetaSchedule's own do."""
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.s_tir.meta_schedule.builder.local_builder import default_build, default_export

    @derived_object
    class Forked(PyBuilder):
        def build(self, build_inputs: Any) -> Any:
            return [self._one(one) for one in build_inputs]

        def _one(self, one: Any) -> Any:
            def make() -> str:
                return default_export(default_build(one.mod, one.target, one.params))

            try:
                return BuilderResult(isolated(make, SECONDS), None)
            except Failed as reason:
                return BuilderResult(None, str(reason))

    return Forked()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # MetaSchedule prints tables
    answers.write(json.dumps(tune(*sys.argv[1:])) + "\n")
    answers.close()
