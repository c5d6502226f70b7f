"""The engines that can be measured, one file a family, and what each of them must provide.

An engine is a function ``prepare(job) -> Prepared``, named by an import path so that only its own
worker process imports it.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

#: The engine that the others are compared with.
OURS = "ours"

#: Peer name -> ``module:function``.
ENGINES: Mapping[str, str] = {
    OURS: "benchmarks.harness.engines.tvm:ours",
    "tvm": "benchmarks.harness.engines.tvm:stock_fused",
    "tvm-default": "benchmarks.harness.engines.tvm:stock_default",
    "onnxruntime": "benchmarks.harness.engines.onnxruntime:optimized",
    "openvino": "benchmarks.harness.engines.openvino:openvino",
    "openvino-default": "benchmarks.harness.engines.openvino:default_precision",
    "torch": "benchmarks.harness.engines.torch:eager",
    "torch-compile": "benchmarks.harness.engines.torch:compiled",
}

#: Largest allowed error of peers that may compute in a half type; the settings' of the others.
TOLERANCES: Mapping[str, float] = {"openvino-default": 5e-2}

#: Who says what is right: peers that share weights and inputs share a reference.
ONNX_REFERENCE = "benchmarks.harness.engines.onnxruntime:unoptimized"
REFERENCES: Mapping[str, str] = {
    "torch": "benchmarks.harness.engines.torch:eager",
    "torch-compile": "benchmarks.harness.engines.torch:eager",
}


class Unavailable(Exception):
    """The engine cannot take part: not installed, or it has no form of this model."""


@dataclass(frozen=True)
class Job:
    """What an engine is asked to run."""

    name: str  # the model's name in the zoo
    model: Path  # ONNX file, weights in a file next to it
    inputs: Mapping[str, np.ndarray]  # one array per graph input; the shapes are static
    threads: int  # threads that the engine may compute with
    seed: int  # seed of weights that are not in the ONNX file (torch modules)
    folder: Path  # where the engine may write


@dataclass(frozen=True)
class Prepared:
    """A model ready to run."""

    run: Callable[[], Any]  # what is timed: one inference, finished when it returns
    # Turns what ``run`` returned into arrays by name; not timed.
    outputs: Callable[[Any], Mapping[str, np.ndarray]]
    # Package versions that made the result.
    versions: Mapping[str, str] = field(default_factory=dict)
    # What else is worth keeping: kernels, intermediate bytes, compile seconds...
    facts: Mapping[str, Any] = field(default_factory=dict)


def resolve(path: str) -> Callable[[Job], Prepared]:
    """Import the function behind ``module:function``.

    Raises
    ------
    Unavailable
        When a package that the engine needs is not installed.
    """
    module, _, function = path.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise Unavailable(f"{error.name} is not installed") from error
