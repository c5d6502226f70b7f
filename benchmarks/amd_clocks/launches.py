"""Launches of the zoo's models, beside those of the same models for an H100; plans, no device."""

import sys
from collections.abc import Iterable, Iterator
from functools import cache

from benchmarks import zoo
from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.count import count
from tvm_fusion.report.planned import plan_model

CUDA = "cuda:sm_90a"
DIM = 64  # of a symbolic dimension


def rows(arch: str, models: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Plan models and count the launches of a call.

    Yields
    ------
    tuple of str and two int
        The model, its launches, and those of CUDA.
    """
    for model in models:
        found = model, launches(model, f"rocm:{arch}"), launches(model, CUDA)
        print(arch, *found, file=sys.stderr, flush=True)
        yield found


@cache
def launches(model: str, target: str) -> int:
    """Count the launches of a call of a model in float16."""
    planned = plan_model(zoo.load(model), target, FusionConfig(precision="fp16"))
    made = planned.lowered(planned.scheduled(planned.plans))
    inputs = planned.imported.signatures[planned.main].inputs
    symbols = {extent for one in inputs for extent in one.shape if str(extent).isidentifier()}
    found = count(
        made,
        planned.spec.tvm_target(),
        function=planned.main,
        dims=dict.fromkeys(symbols, DIM),
        tir_pipeline=PIPELINE,
    )
    return found.kernels
