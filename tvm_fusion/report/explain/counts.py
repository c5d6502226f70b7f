"""Kernels that a model launches: those of the plan, and those of stock TVM beside it."""

from __future__ import annotations

import os
from typing import Any

from ..._tvm.versions import PIPELINE
from ...core.decisions import Decision, record
from ...core.whole_extents import with_numbers_of_steps
from ...deploy.count import Count, count, count_stock
from ...deploy.count.machine import ONE_TRIP
from ...deploy.memory.weights import MIN_BYTES, lift_constants
from ...errors import reason_of
from ..planned import PlannedModel
from .parts import Counts


def count_scheduled(planned: PlannedModel, scheduled: Any) -> Counts:
    """Count what scheduled functions launch, once they are lowered."""
    lowered = planned.lowered(lift_constants(scheduled, MIN_BYTES).mod)
    target = planned.spec.tvm_target()
    dims = _extents(planned)
    counted = count(lowered, target, function=planned.main, dims=dims, tir_pipeline=PIPELINE)
    return _facts(counted)


def count_stock_tvm(model: Any, planned: PlannedModel) -> tuple[Counts | None, str]:
    """Count stock TVM from its own importer if that takes the same model, else from our import.

    None where its passes refuse the model, or a loop of the model would count as one trip.
    """
    target, mod = planned.spec.tvm_target(), planned.imported.mod
    origin = "this package's importer"
    theirs = _stock_import(model, planned)
    if theirs is not None:
        mod, origin = theirs, "TVM's importer"
    try:
        counted = count_stock(mod, target, function=planned.main, dims=_extents(planned))
    # guard: recorded; one schedule rule's assertion ends stock TVM's whole pipeline
    except Exception as error:
        sentence = f"Stock TVM cannot compile the model ({reason_of(error)}); it is not counted."
        record(Decision("stock TVM", "", "fallback", "stock_failed", sentence))
        return None, ""
    if any(ONE_TRIP in caveat for caveat in counted.caveats):
        sentence = "Stock TVM's kernels are not counted: its passes hide how long the loops are."
        record(Decision("stock TVM", "", "fallback", "stock_loop_not_counted", sentence))
        return None, ""
    return _facts(counted), origin


def _stock_import(model: Any, planned: PlannedModel) -> Any:
    """Import an ONNX model in its own precision and of fixed shapes; None for any other model."""
    inputs = planned.imported.signatures[planned.main].inputs
    shapes = {spec.name: list(spec.shape) for spec in inputs}
    is_path = isinstance(model, (str, os.PathLike))
    if not is_path and type(model).__name__ != "ModelProto":
        return None
    if planned.config.precision != "fp32" or planned.imported.dims:
        return None
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    from ...frontend.quiet import quiet_importer

    try:
        with quiet_importer():
            return from_onnx(onnx.load(model) if is_path else model, shape_dict=shapes)
    # guard: recorded; TVM's importer lacks what ours adds and raises anything
    except Exception as error:
        sentence = f"TVM's importer cannot take the model ({reason_of(error)}); ours is counted."
        record(Decision("stock TVM", "", "fallback", "stock_import_failed", sentence))
        return None


def _extents(planned: PlannedModel) -> dict[str, int]:
    """Take symbolic dimensions at the upper ends of their ranges, as the manifest does."""
    highest = {name: dim.high for name, dim in planned.imported.dims.items()}
    return with_numbers_of_steps(planned.imported.mod[planned.main], highest)


def _facts(counted: Count) -> Counts:
    return Counts(
        counted.kernels, counted.calls, counted.intermediate_bytes, tuple(counted.caveats)
    )
