"""What any tuning can gain at most: the kernels of the defaults beside bounds of their work.

Run as ``python -m benchmarks.tuning.bounds``; writes ``bounds.json.xz`` and the page.

  for each distinct kernel of a model, on one thread, in processor time, caches of level 2 evicted:
      us, peak = least time of the kernel, rate of multiply-adds in registers before and after
      bound    = max(operations / (attained * peak), bytes / bandwidth)
  attained, bandwidth = the highest share of its peak, and the highest rate, of any kernel
  the whole model by one thread, and by all

Operations are those of the algorithm: products with padding do not count, exponentials count 16.
Bytes are each input and each output once. What some kernel attains is what the others might.
"""

import argparse
import itertools
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from benchmarks import zoo
from benchmarks.convolutions.peak import peak
from benchmarks.cost_model.sample import distinct
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import write
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.core.contract.tuned import untuned
from tvm_fusion.core.tir.loops import constant
from tvm_fusion.deploy.runtime.tensors import to_tensor
from tvm_fusion.device import TargetSpec, parse
from tvm_fusion.frontend import Imported, import_model
from tvm_fusion.fusion.features import is_contraction
from tvm_fusion.measure.build import build_groups
from tvm_fusion.measure.isolate import isolated
from tvm_fusion.measure.timing import Effort, bound, in_turns, random_array, random_input, swept
from tvm_fusion.schedule.convolution.problem.problem import ConvProblem
from tvm_fusion.schedule.convolution.template import ConvDetails
from tvm_fusion.tuning.tasks import MAIN, survey, title_of
from tvm_fusion.tuning.whole import build_model

from .bounds_page import RESULT, bounds
from .page import HERE, MODELS, load, render

EFFORT = Effort(seconds=0.1, fewest=5, most=40, hopeless=float("inf"), timeout=120.0)
TITLE = 60  # characters


def main() -> int:
    """Measure what is asked for and write the page; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning.bounds", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", nargs="*", default=MODELS, metavar="NAME")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a whole model")
    options = parser.parse_args()
    os.environ |= {"TVM_NUM_THREADS": "1", "TVM_BIND_THREADS": "0"}
    record = bounds()
    record = {"environment": environment.describe(ROOT), **{k: record.get(k, {}) for k in MODELS}}
    for name in options.models:
        record[name] = measured(name, options.threads, options.seconds)
        print(name, record[name]["whole_ms"], file=sys.stderr, flush=True)
        write(RESULT, record)
    (HERE / "README.md").write_text(render(load(HERE / "results"), record))
    return 0


def measured(name: str, threads: int, seconds: float) -> dict[str, Any]:
    """Time a model's distinct kernels, and the whole, with defaults."""
    spec = parse("cpu")
    imported = import_model(zoo.load(name, 0))
    found = survey(imported, spec, FusionConfig())
    sizes = {task.key: len(task.configs) for task in found.tasks}
    effort = replace(EFFORT, swept=swept(found.constant_bytes, spec.device.l3_bytes))
    rows = [
        (
            title_of(claim)[:TITLE],
            claim.template.name,
            calls,
            sizes.get(key, 1),
            *isolated(partial(timed, module, spec, effort), effort.timeout),
            round(operations(claim) / 1e6, 3),
            round(claim.bytes / 1024, 1),
        )
        for claim, key, calls, module in distinct(found.planned, spec)
    ]
    built = build_model(found.planned, {}, spec)
    whole = {
        str(count): isolated(partial(least_ms, built, imported, count, seconds))
        for count in dict.fromkeys((1, threads))
    }
    return {"load": round(os.getloadavg()[0], 1), "whole_ms": whole, "kernels": rows}


def timed(module: tvm.IRModule, spec: TargetSpec, effort: Effort) -> tuple[float, float]:
    """Time a group, and multiply-adds in registers before and after: us, and their GFLOP/s.

    The clock of a core changes by some percents from one second to another.
    """
    rng = np.random.default_rng(0)
    arrays = [random_input(rng, param.ty) for param in module[MAIN].params]
    machine = relax.VirtualMachine(build_groups(module, spec, untuned), tvm.cpu())
    call = bound(machine, MAIN, [to_tensor(array, tvm.cpu()) for array in arrays])
    call()
    before = peak(time.thread_time)
    (us,) = in_turns([call], effort, time.thread_time, arrays)
    return round(us, 1), round(max(before, peak(time.thread_time)), 1)


def least_ms(built: Any, imported: Imported, threads: int, seconds: float) -> float:
    """Time a model; one thread in its processor time. For a process of its own."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    (entry, signature), *_ = imported.signatures.items()
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, [*map(int, x.shape)], x.dtype) for x in signature.inputs]
    machine = relax.VirtualMachine(built, tvm.cpu())
    call = bound(machine, entry, [to_tensor(array, tvm.cpu()) for array in inputs])
    effort = Effort(seconds=seconds, most=1 << 20)
    clock = time.thread_time if threads == 1 else time.perf_counter
    return round(in_turns([call], effort, clock)[0] / 1e3, 3)


def operations(claim: Claim) -> float:
    """Count the operations of a group; of direct convolutions without products with padding."""
    details = claim.details
    share = inside(details.problem) if isinstance(details, ConvDetails) else 1.0
    members = claim.group.members
    return sum(op.flops * (share if is_contraction(op) else 1.0) for op in members)


def inside(problem: ConvProblem) -> float:
    """Return the share of a convolution's multiplications that do not read padding."""
    axes = (*problem.batch, problem.y, problem.x, problem.k, *problem.window)
    extents = {axis.var: constant(axis.extent) or 1 for axis in axes}
    share = 1.0
    for var, (begin, end) in problem.image.inside.items():
        atoms = problem.image.sums.get(var, {var: 1})
        ranges = [[n * i for i in range(extents.get(v, end))] for v, n in atoms.items()]
        places = [sum(place) for place in itertools.product(*ranges)]
        share *= sum(begin <= place < end for place in places) / len(places)
    return share


if __name__ == "__main__":
    sys.exit(main())
