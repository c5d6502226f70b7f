"""Small models of many architectures, which no law was written for: those of the robustness sweep.

That takes the extra ``zoo``.
"""

import functools
from typing import Any

import tvm

from benchmarks.robustness.__main__ import RECORD, load

from .table5 import imported


def names() -> list[str]:
    """Name the models that compile."""
    return [n for n, rows in load(RECORD).items() if rows.get("cpu:fp32", {}).get("kernels")]


def module(name: str, precision: str) -> tvm.IRModule:
    """Import a model as its users would."""
    return imported(_exported(name), precision)


@functools.lru_cache(1)
def _exported(name: str) -> Any:
    from benchmarks.robustness.catalog import exported

    return exported(name)[0]
