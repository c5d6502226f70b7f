"""The engines that can be measured, one file a family, and what each of them must provide.

An engine is a function ``prepare(job) -> Prepared``, named by an import path so that only its own
worker process imports it.
"""

from __future__ import annotations

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
    """What an engine is asked to run.

    Attributes
    ----------
    name
        The model's name in the zoo.
    model
        ONNX file, weights in a file beside it.
    inputs
        One array per graph input; the shapes are static.
    threads
        Threads that the engine may compute with.
    seed
        Seed of weights that are not in the ONNX file (torch modules).
    folder
        Where the engine may write.
    """

    name: str
    model: Path
    inputs: Mapping[str, np.ndarray]
    threads: int
    seed: int
    folder: Path


@dataclass(frozen=True)
class Prepared:
    """A model ready to run.

    Attributes
    ----------
    run
        What is timed: one inference, finished when it returns.
    outputs
        Turns what ``run`` returned into arrays by name; not timed.
    versions
        Package versions that made the result.
    facts
        What else is worth keeping: kernels, intermediate bytes, compile seconds...
    """

    run: Callable[[], Any]
    outputs: Callable[[Any], Mapping[str, np.ndarray]]
    versions: Mapping[str, str] = field(default_factory=dict)
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
