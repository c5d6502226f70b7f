"""One model in a process of its own: gets ready, waits for its turn, is timed.

Prints a line of JSON when it is ready, waits for a line, and prints another with the times.
"""

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tvm_fusion
from benchmarks.gpu.run import captured

from . import weights
from .models import MODELS, Model
from .profile import kernels

ROUNDS, CALLS = 20, 5
WRONG = 0.05  # of the largest element; float16 stays below a tenth of that

Side = Callable[[], Any]


def main(name: str, folder: str, rival: str, profile: str) -> None:
    """Do it all for one model."""
    sides, row = prepare(MODELS[name], Path(folder) / name, "cuda", bool(int(rival)))
    print(json.dumps(row), flush=True)
    if row["wrong"]:
        return
    sys.stdin.readline()
    row = timed(sides)
    if int(profile):
        row["profile"] = {side: kernels(call) for side, call in sides.items()}
    print(json.dumps(row), flush=True)


@torch.no_grad()
def prepare(
    model: Model, folder: Path, device: str, rival: bool
) -> tuple[dict[str, Side], dict[str, Any]]:
    """Load and compile; compare everybody's result with that of a float64 run.

    Parameters
    ----------
    model, folder, device
        What to load, and where it runs.
    rival
        Whether PyTorch compiles it, too.

    Returns
    -------
    dict of str to callable
        What is to be timed, by side.
    dict of str to (float, dict, str or None)
        The first part of the row; ``wrong`` says what, if anything is.
    """
    module, inputs = model.module(device), model.draw(1, device)
    ours = _loaded(folder, module, inputs)
    results = {"ours": poisoned(ours), "eager": model.result(module(**inputs))}
    sides: dict[str, Side] = {"ours": ours}
    layouts = {"inductor": torch.contiguous_format}
    if model.has_images:
        layouts["inductor_nhwc"] = torch.channels_last
    for side, layout in layouts.items() if rival else ():
        results[side], sides[side] = _compiled(model, module, inputs, layout)
    exact = _exact(model, inputs, device)
    errors = {side: relative(result, exact) for side, result in results.items()}
    row = {"about": _about(), "wrong": None, "errors": errors}
    if not errors["ours"] <= max(WRONG, 3 * errors["eager"]):
        eager = f"eager PyTorch's is {errors['eager']:.2e}"
        row["wrong"] = f"an error of {errors['ours']:.2e}; {eager}"
    return sides, row


def _loaded(folder: Path, module: torch.nn.Module, inputs: dict[str, Tensor]) -> Side:
    """Load an artifact with a module's weights; its call."""
    weights.restore(folder, {n: p.cpu().numpy() for n, p in module.named_parameters()})
    executable = tvm_fusion.load(folder)
    (output,) = [spec.name for spec in executable.signatures["main"].outputs]
    return lambda: executable.run(inputs)[output]


def _compiled(
    model: Model, module: torch.nn.Module, inputs: dict[str, Tensor], layout: torch.memory_format
) -> tuple[Tensor, Side]:
    """Let PyTorch compile a module, images in a layout; give its result and a CUDA graph of it."""
    module = copy.deepcopy(module).to(memory_format=layout)  # an earlier graph reads the other's
    given = {
        n: v.to(memory_format=layout) if v.dim() == 4 and model.has_images else v
        for n, v in inputs.items()
    }
    torch.compiler.reset()
    compiled = torch.compile(module, dynamic=False)
    graph = captured(lambda *_: model.result(compiled(**given)), [[]])
    graph.replay()

    def replay(_read: Any = (compiled, given)) -> None:  # which lie where the graph reads them
        graph.replay()

    return graph.held[0].clone(), replay


def _exact(model: Model, inputs: dict[str, Tensor], device: str) -> Tensor:
    """Run the same weights and inputs in float64."""
    module = model.module(device)
    for parameter in module.parameters():
        parameter.data = parameter.data.double()
    wide = {n: v.double() if v.is_floating_point() else v for n, v in inputs.items()}
    return model.result(module(**wide))


def poisoned(side: Side) -> Tensor:
    """Call where results lie in memory that held NaNs before."""
    for _ in range(3):
        torch.from_dlpack(side()).fill_(float("nan"))
    return torch.from_dlpack(side()).clone()


def relative(found: Tensor, exact: Tensor) -> float:
    """Root of the summed squares of the error, relative to that of the exact result."""
    error = float((found.double() - exact).norm() / exact.norm())
    return error if error == error else float("inf")


def timed(sides: dict[str, Side]) -> dict[str, Any]:
    """Time sides in turns, waiting for the device after each call: medians in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    host: list[float] = []
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for number in range(ROUNDS + 1):
        for name, side in sides.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                side()
                back = time.perf_counter()
                wait()
                if number:  # the first round warms up
                    times[name].append(1e6 * (time.perf_counter() - start))
                    host += [1e6 * (back - start)] if name == "ours" else []
    us = {name: statistics.median(found) for name, found in times.items()}
    least = {name: min(found) for name, found in times.items()}
    return {"us": us, "least_us": least, "host_us": statistics.median(host)}


def _about() -> dict[str, Any]:
    import transformers

    return {
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
