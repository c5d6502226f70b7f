"""Every stage as a TVM pass, to be used alone in any other pipeline."""

from __future__ import annotations

import os

from tvm.ir.transform import Pass

from ._tvm.errors import register_errors
from .deploy.build.lower import LowerToVM
from .ecg.legalize import Legalize
from .frontend.half.precision import ToHalfPrecision
from .frontend.normalize import NormalizeImport
from .fusion.describe import describe
from .fusion.fuse import FuseOperators
from .fusion.tuned_configs import tuned_configs
from .layout.plan_layout import PlanLayout
from .rewrite.bytes.products import ByteProducts
from .rewrite.norms.statistics import NormStatistics
from .rewrite.products.batch_matmuls import BatchMatmuls
from .rewrite.products.join_matmuls import JoinMatmuls
from .rewrite.products.transposed_phases import TransposedConvByPhases
from .rewrite.recompose.recompose import Recompose
from .rewrite.search.dnnfusion_search import GreedyEquivalents
from .rewrite.search.search import SearchEquivalents
from .rewrite.simplify import Rewrite
from .schedule import kernels, templates

register_errors()
_ = templates  # their import makes them known to the planner

__all__ = [
    "BatchMatmuls",
    "ByteProducts",
    "FuseOperators",
    "GreedyEquivalents",
    "JoinMatmuls",
    "Legalize",
    "LowerToVM",
    "NormStatistics",
    "NormalizeImport",
    "PlanLayout",
    "Recompose",
    "Rewrite",
    "ScheduleKernels",
    "SearchEquivalents",
    "ToHalfPrecision",
    "TransposedConvByPhases",
]


def ScheduleKernels(db: str | os.PathLike[str] | None = None) -> Pass:
    """Make kernels of all groups, planning again what a template cannot emit.

    See :class:`tvm_fusion.schedule.kernels.ScheduleKernels`.

    Parameters
    ----------
    db : str or os.PathLike, optional
        Records of :func:`tvm_fusion.tune`, whose configurations are used; those that the
        environment variable ``TVM_FUSION_RECORDS`` names when omitted.
    """
    return kernels.ScheduleKernels(FuseOperators, tuned_configs(db), describe)
