"""One model in a process of its own: compiles it, waits for its turn, is timed.

Prints a line of JSON when it is ready, waits for a line, and prints another with the times.
"""

import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tvm_fusion
from benchmarks.gpu.run import captured
from benchmarks.gpu_models.profile import kernels
from benchmarks.gpu_models.worker import relative, timed
from tvm_fusion.deploy.runtime.artifact import manifest

from .models import made

SEED = 1129
WRONG = 0.05  # of the largest element; float16 stays below a tenth of that

Call = Callable[[], Any]


@torch.no_grad()
def main(name: str) -> None:
    """Do it all for one model."""
    module, inputs = made(name, SEED)
    start = time.perf_counter()
    ours, row = _ours(module, inputs)
    row["compile_s"] = round(time.perf_counter() - start, 1)
    module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
    start = time.perf_counter()
    sides = {"ours": ours(inputs), "inductor": _inductor(module, inputs)}
    if inputs[0].dim() == 4:
        sides["inductor_nhwc"] = _inductor(
            copy.deepcopy(module).to(memory_format=torch.channels_last),
            tuple(x.to(memory_format=torch.channels_last) for x in inputs),
        )
    row["inductor_s"] = round(time.perf_counter() - start, 1)
    wide = copy.deepcopy(module).float()  # a captured graph reads the weights where they are
    exact = wide(*(x.float() if x.is_floating_point() else x for x in inputs))
    results = {side: call() for side, call in sides.items()}
    row["errors"] = {
        side: max(relative(torch.from_dlpack(a), b.double()) for a, b in zip(r, exact, strict=True))
        for side, r in results.items()
    }
    own, theirs = row["errors"]["ours"], row["errors"]["inductor"]
    is_right = own <= max(WRONG, 3 * theirs)
    row["wrong"] = None if is_right else f"an error of {own:.2e}, PyTorch's is {theirs:.2e}"
    print(json.dumps(row | {"device": torch.cuda.get_device_name(0)}), flush=True)
    sys.stdin.readline()
    row = timed(sides)
    row["profile"] = {side: kernels(call) for side, call in sides.items() if side == "ours"}
    print(json.dumps(row), flush=True)


def _ours(
    module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Callable[[tuple[Tensor, ...]], Call], dict[str, Any]]:
    """Compile for the device that is here; also tell of the artifact."""
    major, minor = torch.cuda.get_device_capability()
    target = f"cuda:sm_{major}{minor}" + "a" * (major == 9)
    artifact = tvm_fusion.compile(torch.export.export(module, inputs), target=target)
    folder = tempfile.mkdtemp()
    artifact.export(folder)
    executable = tvm_fusion.load(folder)
    signature = executable.signatures["main"]
    names = [spec.name for spec in signature.inputs]
    outputs = [spec.name for spec in signature.outputs]

    def call(given: tuple[Tensor, ...]) -> Call:
        named = dict(zip(names, given, strict=True))

        def run() -> list[Any]:
            found = executable.run(named)
            return [found[name] for name in outputs]

        return run

    counts = json.loads(Path(folder, manifest.MANIFEST).read_text())["functions"]["main"]
    return call, {"kernels": counts["kernels"]}


def _inductor(module: nn.Module, inputs: tuple[Tensor, ...]) -> Call:
    """Let PyTorch compile a module in its default mode, and capture a CUDA graph of it."""
    torch.compiler.reset()
    compiled = torch.compile(module, dynamic=False)
    graph = captured(lambda *_: compiled(*inputs), [[]])

    def replay(_read: Any = (compiled, inputs)) -> Any:  # which lie where the graph reads them
        graph.replay()
        return graph.held[0]

    return replay


if __name__ == "__main__":
    main(*sys.argv[1:])
