"""Run each artifact of a folder once, on random inputs, for tools that watch every access.

``compute-sanitizer --tool memcheck python3 -m benchmarks.gpu.once DIR [NAME ...]``, or
``racecheck``; needs numpy and TVM's runtime, no PyTorch, which would take such a tool minutes.
Integers are numbers of rows of the first input, if it is a table, or any byte; offsets of packed
sequences rise to its number of tokens.
"""

import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

import tvm_fusion

INDEX = "works.json"


def main(arguments: list[str]) -> None:
    """Run the named workloads, or all."""
    folder, *names = arguments
    index = json.loads(Path(folder, INDEX).read_text())
    rng = np.random.default_rng(0)
    for name in names or index["names"]:
        executable = tvm_fusion.load(Path(folder, name))
        specs = executable.signatures["main"].inputs
        executable.run({spec.name: _drawn(rng, spec, specs[0]) for spec in specs})
        executable.synchronize()
        print(name, flush=True)


def _drawn(rng: np.random.Generator, spec: Any, first: Any) -> np.ndarray:
    shape, dtype = [int(d) for d in spec.shape], np.dtype(spec.dtype)
    rows = int(first.shape[0])
    if spec.name == "offsets":
        tokens = int(first.shape[-2])
        inner = np.sort(rng.integers(0, tokens, shape[0] - 2))
        return np.array([0, *inner, tokens], dtype)
    if dtype.kind in "iu":
        return rng.integers(0, rows if dtype.itemsize > 1 else 127, shape).astype(dtype)
    return rng.standard_normal(shape, np.float32).astype(dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
