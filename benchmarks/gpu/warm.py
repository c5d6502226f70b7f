"""Let PyTorch compile a folder's workloads in several processes, into the cache of a run.

``python3 -m benchmarks.gpu.warm DIR PROCESSES``: a process compiles every PROCESSES-th work and
calls it once. What it is compared with is not timed here.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch

from .catalog import works
from .decoder import DecodeStep
from .once import INDEX


def main(folder: Path, processes: int) -> None:
    """Start the processes and wait for them."""
    command = [sys.executable, "-m", "benchmarks.gpu.warm", str(folder), str(processes)]
    started = [subprocess.Popen([*command, str(part)]) for part in range(processes)]
    for process in started:
        process.wait()


def warm(folder: Path, processes: int, part: int) -> None:
    """Compile one part."""
    index = json.loads((folder / INDEX).read_text())
    known = {work.name: work for work in works(index["seed"], index["count"])}
    for name in index["names"][part::processes]:
        work = known[name]
        if isinstance(work, DecodeStep):
            continue
        torch._dynamo.reset()
        arguments = work.draw(0, "cuda")
        for side, peer in work.peers().items():
            try:
                peer(*work.given(side, arguments))
            # guard: what a library does not take, the run says
            except Exception as error:
                print(name, type(error).__name__, flush=True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        warm(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
