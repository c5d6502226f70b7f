"""Kernels of ``benchmarks.gpu`` as measured on an H200, against what their claims say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.catalog import works
from benchmarks.records import read
from tvm_fusion.device import parse
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.features import NAMES, features_of
from tvm_fusion.fusion.fitted import MODELLED
from tvm_fusion.report.planned import plan_model

RESULT = Path(__file__).parents[1] / "gpu" / "results" / "gpu.json.xz"
DTYPES = ("float16", "bfloat16")
MEMORY, UNIT_MEMORY = 4.8e12, 1.25e11  # bytes a second; of one multiprocessor, 64 a clock
KILOCLOCK_US = 0.45  # of models' clocks, at 1.98 GHz, if they are a tenth too many


def least(kind: str) -> dict[str, float]:
    """Tell what features cost at the peak rates of the device; memory is in models' clocks."""
    if kind.endswith(MODELLED):
        return {"kiloclocks": KILOCLOCK_US}
    device = parse("cuda:sm_90a").device
    matrix, vector = (1e12 / device.peak_flops[dtype] for dtype in ("float16", "float32"))
    memory = dict.fromkeys(("weight_kib", "other_kib"), 1e6 * 1024 / MEMORY)
    unit = {"unit_kib": 1e6 * 1024 / UNIT_MEMORY}
    return {**memory, **unit, "matrix_mflop": matrix, "vector_mflop": vector}


def samples() -> Iterator[dict[str, Any]]:
    """Plan every work of half types that is one kernel, and take its measured time."""
    record = read(RESULT)
    about = record["about"]
    measured = {row["name"]: row for row in record["rows"]}
    target = about["target"]
    cost = CostModel(parse(target).device)
    for work in works(about["seed"], about["count"]):
        row = measured.get(work.name)
        if row is None or row["dtype"] not in DTYPES or row["wrong"] or "ours" not in row["us"]:
            continue
        plan = plan_model(work.exported(), target)
        claims = [claim for one in plan.plans.values() for claim in one.claims]
        if len(claims) != 1 or claims[0].template.is_fallback:
            continue
        (claim,) = claims
        features = features_of(claim, cost.cache_bytes, cost.units)
        yield {
            "model": "gpu",
            "title": work.name,
            "template": claim.template.name,
            "calls": 1,
            "us": round(row["us"]["ours"], 2),
            "roofline_us": round(cost.roofline([claim]), 2),
            **{n: float(f"{x:.5g}") for n, x in zip(NAMES, features.row, strict=True)},
        }
