"""The command line: plan, measure both ways, write ``results/profile.json.xz``, ``README.md``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.transform import Sequential

from benchmarks import zoo
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import read, write
from tvm_fusion._tvm.fork import has_run_kernels
from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.build.lower import LowerToVM
from tvm_fusion.deploy.runtime.tensors import to_tensor
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.claims import remembering
from tvm_fusion.fusion.profile import Unmeasured
from tvm_fusion.measure.alternatives import AlternativeBench
from tvm_fusion.measure.budget import Budget
from tvm_fusion.measure.isolate import isolated
from tvm_fusion.measure.profiling import profiled
from tvm_fusion.measure.timing import Effort, bound, in_turns
from tvm_fusion.pipeline import stages
from tvm_fusion.report.planned import plan_model

from .decisions import Answer, answers, kernels
from .table import render

HERE = Path(__file__).parent
MODELS = (
    *("t5_small_enc", "bert_base", "gpt2"),
    *("resnet50", "mobilenet_v2", "convnext_tiny", "unet2d"),
)
THREADS = 1  # by whose processor time everything is timed: other programs take none of it
WHOLE = Effort(seconds=2.0, fewest=5, most=40, hopeless=float("inf"), timeout=600.0)


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--budget", default="10m", help="of measuring, a model (default: 10m)")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(THREADS)
    path = HERE / "results" / "profile.json.xz"
    record: dict[str, Any] = read(path) if path.exists() else {"models": {}}
    record["environment"] = environment.describe(ROOT)
    for name in options.models:
        record["models"][name] = _model(name, options.budget)
        write(path, record)
        print(name, record["models"][name], file=sys.stderr, flush=True)
    (HERE / "README.md").write_text(render(record))
    return 0


def _model(name: str, budget: str) -> dict[str, Any]:
    model, spec = zoo.load(name, 0), parse("cpu")
    with TemporaryDirectory() as folder:
        config = FusionConfig(db=Path(folder) / "p.db", profile=budget)
        plain = kernels(plan_model(model, "cpu"))
        with answers() as found:
            plan = plan_model(model, "cpu", config)
            profiled_kernels = kernels(plan)
        again = plan_model(model, "cpu", config)
        kernels(again)
        assert again.profile["measured"] == 0 or plan.profile["estimated"]
        whole = _whole(model, spec, (FusionConfig(), FusionConfig(db=config.db)))
    changed = [answer for answer in found if answer.is_changed]
    return {
        **plan.profile,
        "load": round(os.getloadavg()[2], 1),
        "layouts": sum(answer.is_layout for answer in found),
        "kernels": plain,
        "kernels_profiled": profiled_kernels,
        "changed": len(changed),
        "confirmed": sum(_is_confirmed(answer, spec) for answer in changed),
        **({"ms": whole[0], "ms_profiled": whole[1]} if whole else {"same_code": True}),
        "changes": [answer.row() for answer in changed],
    }


def _is_confirmed(answer: Answer, spec: Any) -> bool:
    """Measure both ways once more, and tell whether the decision stays."""
    try:
        us, _ = AlternativeBench(spec, Budget(None, 1))(answer.alternatives)
    except Unmeasured:
        return False
    return Answer.fuses(tuple(us), 0.0) == Answer.fuses(answer.measured, 0.0)


def _whole(model: Any, spec: Any, configs: tuple[FusionConfig, ...]) -> list[float]:
    """Time the whole model with each config in turns, by the one thread's processor time.

    Milliseconds; empty where both have the same kernels.
    """
    imported = import_model(model, FusionConfig())
    has_run_kernels()

    def measure() -> list[float]:
        (name, signature), *_ = imported.signatures.items()
        generator = np.random.default_rng(0)
        args = []
        for value in signature.inputs:
            shape, kind = tuple(map(int, value.shape)), np.dtype(value.dtype)
            is_index = kind.kind in "iub"
            array = np.zeros(shape) if is_index else generator.standard_normal(shape)
            args.append(to_tensor(array.astype(kind), tvm.cpu()))
        mods, calls = [], []
        for config in configs:
            with (
                profiled(config, spec),
                toolchain(spec),
                spec.tvm_target(),
                remembering(),
            ):
                mods.append(Sequential([*stages(config), LowerToVM()])(imported.mod))
        if _kernels(mods[0]) == _kernels(mods[1]):
            return []
        for mod in mods:
            with toolchain(spec), spec.tvm_target() as target:
                built = tvm.compile(mod, target, relax_pipeline=None, tir_pipeline=PIPELINE)
            calls.append(bound(relax.VirtualMachine(built, tvm.cpu()), name, args))
        for call in calls:
            call()
        return [round(us / 1e3, 3) for us in in_turns(calls, WHOLE, time.thread_time)]

    return isolated(measure, WHOLE.timeout)


def _kernels(mod: tvm.IRModule) -> Counter[int]:
    """List a module's kernels, whatever their names."""
    funcs = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return Counter(tvm_ffi.structural_hash(f.without_attr("global_symbol")) for f in funcs)


if __name__ == "__main__":
    sys.exit(main())
