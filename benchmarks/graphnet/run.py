"""Runs an artifact in a process that has neither PyTorch nor the compiler; answers lines."""

import os
import sys
import time

import numpy as np

from tvm_fusion.deploy.runtime.load import load


def main() -> None:
    """Load ``sys.argv[1]``; a line is ``time``, or the file that gets the results."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a runtime prints is no answer
    folder, given = sys.argv[1:]
    executable = load(folder)
    with np.load(given) as arrays:
        taken = {spec.name: arrays[spec.name] for spec in executable.signatures["main"].inputs}
    for line in sys.stdin:
        start = time.perf_counter()
        results = executable.run(taken)
        if line.strip() == "time":
            print(time.perf_counter() - start, file=answers)
        else:
            np.savez(line.strip(), *(as_numpy(x) for x in results.values()))
            print("saved", file=answers)


def as_numpy(result: object) -> np.ndarray:
    """Return a result in a dtype that a file can have: bfloat16 is a dtype of its own."""
    array = np.asarray(result)
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


if __name__ == "__main__":
    main()
