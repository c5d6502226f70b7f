"""The main job on a real model: compile ResNet-50, check it, time it.

The graph is the one inside the onnx package; its weights are drawn from a seed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from benchmarks import zoo
from tvm_fusion.cli import main

MODEL = "light_resnet50"
FOLDER = Path("build")


def demo(load: Callable[[], Any] = lambda: zoo.load(MODEL), name: str = "resnet50") -> int:
    """Run the commands that a user would type; stop at the first that fails.

    Parameters
    ----------
    name
        Of the model's file and of the artifact.

    Returns
    -------
    int
        Exit code of the command that failed, or 0.
    """
    FOLDER.mkdir(exist_ok=True)
    model, artifact = FOLDER / f"{name}.onnx", FOLDER / name
    onnx.save(load(), model)
    for command in (
        ["compile", str(model), "-o", str(artifact)],
        ["check", str(artifact), str(model)],
        ["run", str(artifact), "--repeat", "20"],
    ):
        print("$ tvm-fusion", *command, flush=True)
        if code := main(command):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(demo())
