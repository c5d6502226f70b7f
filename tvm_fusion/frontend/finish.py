"""Normalize an imported module: dataflow blocks, precision, bounds of symbolic dimensions."""

from collections.abc import Mapping

import tvm
from tvm import relax

from ..config import FusionConfig
from ..core.names.inherit import inheriting
from ..core.untouched import is_rewritable, on_rewritable
from ..signature import DimRange
from .half.precision import ToHalfPrecision
from .normalize import NormalizeImport, UnifyExtents


def finish(mod: tvm.IRModule, config: FusionConfig, ranges: Mapping[str, DimRange]) -> tvm.IRModule:
    """Bring an imported module into the form that the later stages expect.

    Parameters
    ----------
    mod
        As TVM's importer left it.
    ranges
        Dimensions that stay symbolic.

    Returns
    -------
    tvm.IRModule
        Normalised, each of our functions with a dataflow block.
    """
    to_dataflow = on_rewritable(relax.transform.ConvertToDataflow(min_size=1))
    # Before the first pass that canonicalizes bindings, as ConvertToDataflow does.
    passes = [*inheriting(UnifyExtents(), to_dataflow), NormalizeImport()]
    if config.precision != "fp32":
        wide = bool(config.wide_residuals)
        passes += inheriting(ToHalfPrecision(config.precision, config.half_io, wide))
    mod = with_bounds(mod, ranges)  # for the passes, too
    return with_bounds(tvm.transform.Sequential(passes)(mod), ranges)


def with_bounds(mod: tvm.IRModule, ranges: Mapping[str, DimRange]) -> tvm.IRModule:
    """Write the bounds of symbolic dimensions where TVM's memory planner looks for them.

    ``StaticPlanBlockMemory`` reads the function attributes ``tir_var_upper_bound`` and
    ``tir_var_lower_bound``: maps from the name of a variable in the signature to an integer.
    """
    if not ranges:
        return mod
    bounds = {
        "tir_var_upper_bound": {name: r.high for name, r in ranges.items()},
        "tir_var_lower_bound": {name: r.low for name, r in ranges.items()},
    }
    mod = mod.clone()
    for gvar, func in mod.functions.items():
        if is_rewritable(func) and not ranges.keys().isdisjoint(
            var.name for var in relax.analysis.defined_symbolic_vars(func)
        ):
            mod[gvar] = func.with_attrs(bounds)
    return mod


def without_bounds(mod: tvm.IRModule) -> tvm.IRModule:
    """Drop the bounds that an importer wrote for variables that are about to be renamed."""
    mod = mod.clone()
    for gvar, func in mod.functions.items():
        if is_rewritable(func):
            mod[gvar] = func.without_attr("tir_var_upper_bound").without_attr("tir_var_lower_bound")
    return mod
