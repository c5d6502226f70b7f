"""Every stage as a TVM pass, to be used alone in any other pipeline.

Examples
--------
The examples of the passes share these lines: ``module`` makes a module of one function, ``calls``
names what it calls.

>>> import numpy as np
>>> import tvm
>>> from tvm import relax
>>> from tvm.relax import op
>>> import tvm_fusion.device
>>> from tvm_fusion.transform import *
>>> cpu = tvm_fusion.device.parse("cpu:x86-64-v3").tvm_target()
>>> def module(build, *shapes, dtype="float32"):
...     types = [relax.TensorType(shape, dtype) for shape in shapes]
...     inputs = [relax.Var(f"x{i}", type) for i, type in enumerate(types)]
...     builder = relax.BlockBuilder()
...     with builder.function("main", inputs):
...         with builder.dataflow():
...             out = builder.emit_output(build(*inputs))
...         builder.emit_func_output(out)
...     return builder.get()
>>> def calls(mod):
...     values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
...     names = []
...     for value in values:
...         if isinstance(value, relax.Call):
...             is_tir = value.op == tvm.ir.Op.get("relax.call_tir")
...             callee = value.args[0] if is_tir else value.op
...             names.append(getattr(callee, "name_hint", None) or callee.name)
...     return names
>>> def weight(*shape, dtype="float32"):
...     return relax.const(np.linspace(-1, 1, np.prod(shape)).reshape(shape).astype(dtype))
"""

import os

from tvm.ir.transform import Pass

from ._tvm.errors import register_errors
from .deploy.build.amd_registers import spills
from .deploy.build.lower import LowerToVM
from .ecg.legalization.legalize import Legalize
from .frontend.half.precision import ToHalfPrecision
from .frontend.normalize import NormalizeImport
from .fusion.database.tuned_configs import tuned_configs
from .fusion.describe import describe
from .fusion.fuse import FuseOperators
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

    Raises
    ------
    UserError
        If there is no current target, and for a file of records that cannot be read.

    Examples
    --------
    >>> mod = module(lambda x: op.nn.relu(op.matmul(x, weight(16, 4))), (8, 16))
    >>> with cpu:
    ...     scheduled = ScheduleKernels()(FuseOperators()(Legalize()(mod)))
    >>> (name,) = calls(scheduled)
    >>> bool(scheduled[name].attrs["tirx.is_scheduled"])
    True
    """
    return kernels.ScheduleKernels(FuseOperators, tuned_configs(db), describe, spills)
