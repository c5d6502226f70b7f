"""Figures of a graph under each way of rewriting, by the plan; nothing is built."""

from typing import Any

import tvm
from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.fusion.claims import remembering
from tvm_fusion.fusion.estimate import Estimator
from tvm_fusion.layout.record import KERNEL
from tvm_fusion.pipeline import stage

#: What the model is rewritten with, by the way's name.
WAYS: dict[str, dict[str, Any]] = {
    "none": {"rewrite": "none"},
    "search": {},
    "reassociate": {"allow": ["reassociate"]},
}
#: Precision by target.
TARGETS = {"cpu:x86-64-v3": "fp32", "cuda:sm_90a": "fp16"}
DTYPES = {"fp32": "float32", "fp16": "float16"}


def figures(mod: tvm.IRModule, target: str, way: str) -> dict[str, Any]:
    """Rewrite a module and plan it.

    Parameters
    ----------
    mod
        As an importer gives it.
    target
        As of :func:`tvm_fusion.device.parse`.
    way
        One of :data:`WAYS`.

    Returns
    -------
    dict
        ``us``, ``kernels`` and ``flops`` of the plan; ``copies`` are the kernels on top that bring
        images to another layout, which is chosen behind the plan.
    """
    tvm_target = parse(target).tvm_target()
    rewrite = stage("rewrite", FusionConfig(**WAYS[way]))
    with tvm_target, remembering():
        mod = Sequential([transform.NormalizeImport(), rewrite])(mod)
        cost = Estimator(tvm_target).module(mod)
        with recording() as decisions:
            behind = [transform.Legalize(), transform.FuseOperators(), transform.PlanLayout()]
            Sequential(behind)(mod)
    copies = sum(decision.code == KERNEL for decision in decisions)
    found = {"us": round(cost.us, 2), "kernels": cost.kernels, "flops": cost.flops}
    return found | {"copies": copies}
