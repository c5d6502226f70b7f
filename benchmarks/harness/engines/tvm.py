"""TVM as it comes, in two pipelines, and this project on top of it."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_fusion
from tvm_fusion.deploy.count import count_stock
from tvm_fusion.device import parse

from . import Job, Prepared

#: Fields of the counts, as the artifact's manifest names them.
COUNTS = ("kernels", "calls", "intermediate_bytes")


def ours(job: Job, db: Path | None = None) -> Prepared:
    """Compile with this project (and records), export, load the artifact again and run that."""
    folder = job.folder / "artifact"
    start = time.perf_counter()
    artifact = tvm_fusion.compile(str(job.model), target="llvm", db=db)
    artifact.export(folder)
    compile_seconds = time.perf_counter() - start
    facts: dict[str, Any] = {
        "compile_seconds": compile_seconds,
        "compile_peak_rss_mb": peak_rss_mb(),
        **{key: artifact.manifest["functions"]["main"][key] for key in COUNTS},
    }
    executable = tvm_fusion.load(folder)
    feeds = dict(job.inputs)
    return Prepared(
        run=lambda: executable.run(feeds),
        outputs=lambda result: {name: np.asarray(array) for name, array in result.items()},
        versions={"tvm_fusion": tvm_fusion.__version__, "apache-tvm": tvm.__version__},
        facts=facts,
    )


def stock_fused(job: Job) -> Prepared:
    """Stock TVM with the pipeline that it has for this target: operators are fused."""
    target = host_target(job.threads)
    return stock(job, target, relax.get_default_pipeline(target))


def stock_default(job: Job) -> Prepared:
    """Stock TVM as ``tvm.compile(mod, target)`` builds it: nothing is fused on a CPU."""
    return stock(job, host_target(job.threads), None)


def host_target(threads: int) -> tvm.target.Target:
    """Describe this machine to stock TVM."""
    # TVM's own answer is a model whose features a virtual machine may withhold.
    known = dict(*parse("cpu").attrs)
    return tvm.target.Target({"kind": "llvm", **known, "num-cores": threads})


def stock(
    job: Job,
    target: tvm.target.Target,
    pipeline: tvm.transform.Pass | None,
    is_counted: bool = True,
) -> Prepared:
    """Import and compile with stock TVM by a pipeline, or its default; count a fused one."""
    model = onnx.load(str(job.model))
    initializers = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in initializers]
    shapes = {name: list(job.inputs[name].shape) for name in names}
    start = time.perf_counter()
    mod = from_onnx(model, shape_dict=shapes)
    if pipeline is None:
        executable = tvm.compile(mod, target)
    else:
        executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    compile_seconds = time.perf_counter() - start
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    arguments = [tvm.runtime.tensor(job.inputs[name]) for name in names]
    output_names = [value.name for value in model.graph.output]

    def outputs(result) -> Mapping[str, np.ndarray]:
        results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return {n: array.numpy() for n, array in zip(output_names, results, strict=True)}

    facts: dict[str, Any] = {
        "compile_seconds": compile_seconds,
        "compile_peak_rss_mb": peak_rss_mb(),
    }
    if pipeline is not None and is_counted:
        facts |= _stock_counts(mod, target)
    return Prepared(
        run=lambda: run(*arguments),
        outputs=outputs,
        versions={"apache-tvm": tvm.__version__},
        facts=facts,
    )


def _stock_counts(mod: tvm.IRModule, target: tvm.target.Target) -> dict[str, Any]:
    try:
        count = count_stock(mod, target)
    except Exception as error:
        # A count that cannot be had is no reason to lose the latency; the table tells why.
        return {"not_counted": f"{type(error).__name__}: {error}"}
    return dict(zip(COUNTS, (count.kernels, count.calls, count.intermediate_bytes), strict=True))


def peak_rss_mb() -> float | None:
    """Return the highest resident size of this process so far, in MB (10**6 bytes).

    From ``/proc``, because ``ru_maxrss`` starts at the size of the process that spawned this one.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            lines = [line for line in status if line.startswith("VmHWM:")]
    except OSError:
        return None
    return int(lines[0].split()[1]) * 1024 / 1e6 if lines else None
