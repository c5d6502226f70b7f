"""Time graphs on this machine's device, compiled here under each way of rewriting.

Processes compile side by side. Results are compared with those of the graph as it is, in float32 on
the CPU; what is right is timed in turns, on GPUs as CUDA graphs (that takes PyTorch).
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from typing import Any

import numpy as np

import tvm_fusion
from tvm_fusion._tvm.ffi_speed import speed_up_ffi
from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.runtime.artifact.manifest import MANIFEST
from tvm_fusion.device import parse

from . import pairs
from .counting import DTYPES, WAYS
from .taso import GRAPHS, graph

#: Largest root of summed squares of an error, relative to the result's, by precision: weights are
#: rounded, too.
ALLOWED = {"fp32": 1e-4, "fp16": 3e-2}
#: What is compared with, on a CPU.
REFERENCE = "reference"
#: Those that take longest to compile come first.
SLOW = ("nasnet_a", "inception_v3")

Side = Callable[..., list[list[Any]]]  # results of each of its functions
Job = tuple[str, str]  # name of a work, and of a side


def sides(name: str) -> list[str]:
    """Name the alternatives of a work."""
    return ["one", "two"] if name in pairs.PAIRS else list(WAYS)


def works() -> list[str]:
    """Name all workloads: TASO's graphs, and convolutions with what is fused with them."""
    return [*sorted(GRAPHS, key=lambda name: name not in SLOW), *pairs.PAIRS]


def measured(
    names: Iterable[str], target: str, processes: int, seconds: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compile, check and time workloads.

    Parameters
    ----------
    names
        Of :func:`works`.
    target
        Of this machine's device, as of :func:`tvm_fusion.device.parse`.
    seconds
        After which no more is compiled; what is not ready by then is left out.

    Yields
    ------
    (str, dict)
        Name of a work, and by side ``us``, ``error``, ``kernels`` and ``compile_s``; or ``wrong``.
    """
    names, is_gpu = list(names), "gpu" in parse(target).tvm_target().keys
    precision = "fp16" if is_gpu else "fp32"
    jobs = [(name, side) for name in names for side in [*sides(name), REFERENCE]]
    until = time.monotonic() + seconds
    with (
        tempfile.TemporaryDirectory() as folder,
        get_context("spawn").Pool(processes) as pool,
    ):
        compiling = {
            job: pool.apply_async(_compile, (job, Path(folder), target, precision)) for job in jobs
        }
        ready: dict[str, dict[str, Any]] = {name: {} for name in names}
        for (name, side), answer in compiling.items():
            try:
                ready[name][side] = answer.get(max(0.0, until - time.monotonic()))
            except TimeoutError:
                ready[name]["wrong"] = f"{side} was not compiled within {seconds:.0f} s"
            # guard: a graph that is not compiled is a line of the page
            except Exception as error:
                ready[name]["wrong"] = f"{side}: {type(error).__name__}: {error}"[:300]
        pool.terminate()
        time_on = _on_gpu if is_gpu else _on_cpu
        for name in names:
            row = ready[name]
            yield (
                name,
                row if "wrong" in row else _row(Path(folder) / name, row, precision, time_on),
            )


def _compile(job: Job, folder: Path, target: str, precision: str) -> dict[str, Any]:
    """Compile and export the functions of a side, one behind the other."""
    speed_up_ffi()
    name, side = job
    is_reference = side == REFERENCE
    dtype = DTYPES["fp32" if is_reference else precision]
    if name in pairs.PAIRS:
        modules, options = pairs.modules(name, dtype)["one" if is_reference else side], {}
    else:
        modules, options = [graph(name, dtype)], WAYS["none" if is_reference else side]
    kernels, start = 0, time.perf_counter()
    for number, module in enumerate(modules):
        path = folder / name / side / str(number)
        config = FusionConfig(**options, cuda_graph=False)  # calls are captured as a whole
        artifact = tvm_fusion.compile(module, "cpu" if is_reference else target, config)
        artifact.export(path)
        kernels += json.loads((path / MANIFEST).read_text())["functions"]["main"]["kernels"]
    return {"kernels": kernels, "compile_s": round(time.perf_counter() - start, 1)}


def _row(
    folder: Path,
    ready: Mapping[str, Any],
    precision: str,
    time_on: Callable[[Mapping[str, Side], list[np.ndarray]], dict[str, tuple[list[Any], float]]],
) -> dict[str, Any]:
    reference = _side(folder / REFERENCE)
    rng = np.random.default_rng(0)
    specs = tvm_fusion.load(folder / REFERENCE / "0").signatures["main"].inputs
    inputs = [rng.standard_normal([int(n) for n in s.shape], np.float32) for s in specs]
    exact = [np.from_dlpack(y) for y in reference(*inputs)[-1]]
    own = [x.astype(DTYPES[precision]) for x in inputs]
    names = [side for side in ready if side != REFERENCE]
    found = time_on({side: _side(folder / side) for side in names}, own)
    row: dict[str, Any] = {side: dict(ready[side]) for side in names}
    for side, (results, us) in found.items():
        pairs = zip(results, exact, strict=True)
        error = max(np.linalg.norm(y.astype("f8") - e) / np.linalg.norm(e) for y, e in pairs)
        row[side] |= {"us": us, "error": float(f"{error:.2e}")}
        if not error <= ALLOWED[precision]:
            row["wrong"] = f"{side} has an error of {error:.1e}"
    return row


def _side(folder: Path) -> Side:
    """Load functions that are called one behind the other."""
    loaded = [tvm_fusion.load(path) for path in sorted(folder.iterdir())]
    names = [[spec.name for spec in one.signatures["main"].inputs] for one in loaded]

    def call(*values: Any) -> list[list[Any]]:
        found: list[list[Any]] = []
        for one, own in zip(loaded, names, strict=True):
            given = found[-1] if found else values
            found.append([*one.run(dict(zip(own, given, strict=True))).values()])
        return found

    return call


def _on_cpu(
    alternatives: Mapping[str, Side], inputs: list[np.ndarray]
) -> dict[str, tuple[list[Any], float]]:
    """Run on the CPU: results, and the least microseconds of calls in turns."""
    from tvm_fusion.measure.timing import Effort, in_turns

    calls = [partial(side, *inputs) for side in alternatives.values()]
    results = [[np.from_dlpack(y).copy() for y in call()[-1]] for call in calls]
    times = in_turns(calls, Effort(seconds=2.0, hopeless=float("inf")))
    return dict(zip(alternatives, zip(results, times, strict=True), strict=True))


def _on_gpu(
    alternatives: Mapping[str, Side], inputs: list[np.ndarray]
) -> dict[str, tuple[list[Any], float]]:
    """Run on the GPU: results, and the median microseconds of CUDA graphs in turns."""
    import torch
    import tvm_ffi

    from benchmarks.gpu.run import alternate, captured, poisoned

    def streamed(side: Side, *tensors: Any) -> list[list[Any]]:
        with tvm_ffi.use_torch_stream(torch.cuda.stream(torch.cuda.current_stream())):
            return side(*tensors)

    def last(side: Side, *tensors: Any) -> list[Any]:
        return streamed(side, *tensors)[-1]

    given = [torch.from_numpy(x).cuda() for x in inputs]
    calls = {name: partial(streamed, side) for name, side in alternatives.items()}
    found = {name: poisoned(partial(last, side), given) for name, side in alternatives.items()}
    results = {name: [y.cpu().numpy() for y in tensors] for name, tensors in found.items()}
    times = alternate({name: captured(call, [given]) for name, call in calls.items()})
    return {name: (results[name], us) for name, us in times.items()}
