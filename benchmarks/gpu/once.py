"""Run each artifact of a folder once, on random inputs, for tools that watch every access.

``compute-sanitizer --tool memcheck python3 -m benchmarks.gpu.once DIR [NAME ...]``, or
``racecheck``; needs numpy and TVM's runtime, no PyTorch, which would take such a tool minutes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

import tvm_fusion

INDEX = "works.json"


def main(arguments: list[str]) -> None:
    """Run the named works, or all."""
    folder, *names = arguments
    index = json.loads(Path(folder, INDEX).read_text())
    rng = np.random.default_rng(0)
    for name in names or index["names"]:
        executable = tvm_fusion.load(Path(folder, name))
        inputs = {
            spec.name: rng.standard_normal([int(d) for d in spec.shape], np.float32).astype(
                spec.dtype
            )
            for spec in executable.signatures["main"].inputs
        }
        executable.run(inputs)
        executable.synchronize()
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
