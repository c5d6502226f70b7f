"""Counts of the zoo's models and of small graphs, ours and stock TVM's."""

from typing import Any

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx

from benchmarks import zoo
from tvm_fusion import transform
from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.deploy.count import Count, count, count_stock
from tvm_fusion.deploy.memory.weights import MIN_BYTES, lift_constants
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.pipeline import stages

from .case import Case, compile_case


def model_ours(name: str, target: str) -> dict[str, int]:
    """Count what a compilation by this project launches for a model of the zoo."""
    return onnx_ours(zoo.load(name), target)


def onnx_ours(model: onnx.ModelProto, target: str) -> dict[str, int]:
    """Count what a compilation by this project launches for any model."""
    return _facts(count(lowered(model, target), parse(target).tvm_target(), tir_pipeline=PIPELINE))


def lowered(model: onnx.ModelProto, target: str) -> tvm.IRModule:
    """Lower a model through this project's pipeline, storage planning included."""
    mod = import_model(model).mod
    with parse(target).tvm_target():
        mod = tvm.ir.transform.Sequential(stages())(mod)
        lifted = lift_constants(mod, MIN_BYTES).mod
        return tvm.ir.transform.Sequential([transform.LowerToVM()])(lifted)


def model_stock(name: str, target: str) -> dict[str, int]:
    """Count what stock TVM launches for a model of the zoo."""
    return _facts(count_stock(from_onnx(zoo.load(name)), parse(target).tvm_target()))


def graph_ours(case: Case, target: str) -> dict[str, int]:
    """Count what this project launches for a small graph."""
    return _facts(compile_case(case, target).count)


def graph_stock(case: Case, target: str) -> dict[str, int]:
    """Count what stock TVM launches for a small graph."""
    return _facts(count_stock(case.build(), parse(target).tvm_target(), dims=case.dims))


def _facts(counted: Count) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "kernels": counted.kernels,
        "calls": counted.calls,
        "intermediate_bytes": counted.intermediate_bytes,
    }
    return {**facts, "caveats": list(counted.caveats)} if counted.caveats else facts
