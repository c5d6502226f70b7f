"""Simplify what importers leave expensive or unsupported: one Relax pass a file."""

from __future__ import annotations

import tvm
from tvm import relax

from ...core.names.inherit import inheriting
from ...core.untouched import on_rewritable
from .apply_ranges import ApplyRanges
from .boolean_arithmetic import BooleanArithmetic
from .clamp_take import ClampTake
from .clip_integers import ClipIntegers
from .clip_pool_window import ClipPoolWindow
from .compare_booleans import CompareBooleans
from .concat_empty import ConcatEmpty
from .expand_batch_norm import ExpandBatchNorm
from .expand_median import ExpandMedian
from .expand_nonzero import ExpandNonzero
from .expand_power import ExpandPower
from .fold_batch_norm import FoldBatchNorm
from .fold_constants import FoldConstants
from .fold_zero_extents import FoldZeroExtents
from .integer_power import IntegerPower
from .keep_calls import KeepCalls
from .lift_functions import LiftFunctions
from .multiply_halves import MultiplyHalves
from .read_extents import ReadExtents
from .recover_clip import RecoverClip
from .remove_identities import RemoveIdentities
from .resolve_shapes import ResolveShapes
from .scatter_rows import ScatterRows
from .unstack_sum import UnstackSum

__all__ = [
    "ApplyRanges",
    "BooleanArithmetic",
    "ClampTake",
    "ClipIntegers",
    "ClipPoolWindow",
    "CompareBooleans",
    "ConcatEmpty",
    "ExpandBatchNorm",
    "ExpandMedian",
    "ExpandNonzero",
    "ExpandPower",
    "FoldBatchNorm",
    "FoldConstants",
    "FoldZeroExtents",
    "IntegerPower",
    "KeepCalls",
    "LiftFunctions",
    "MultiplyHalves",
    "NormalizeImport",
    "ReadExtents",
    "RecoverClip",
    "RemoveIdentities",
    "ResolveShapes",
    "ScatterRows",
    "UnstackSum",
]


def NormalizeImport() -> tvm.transform.Pass:
    """Return the passes of this package in the order in which they need each other.

    Raises
    ------
    UserError
        For a read of an element of a tensor that has none.

    Examples
    --------
    The importer of ONNX writes a residual sum as a sum over a stack:

    >>> mod = module(lambda x, y: op.sum(op.stack((x, y), axis=0), axis=[0]), (8,), (8,))
    >>> calls(mod), calls(NormalizeImport()(mod))
    (['relax.stack', 'relax.sum'], ['relax.add'])
    """
    return tvm.transform.Sequential(
        inheriting(
            LiftFunctions(),
            # Before all that drops what is not read.
            KeepCalls(),
            ResolveShapes(),
            # Before FoldConstants, which would cast weights.
            MultiplyHalves(),
            ApplyRanges(),
            UnstackSum(),
            ConcatEmpty(),
            # Before FoldConstants: numpy has no maximum of an empty array.
            FoldZeroExtents(),
            RemoveIdentities(),
            # Before RecoverClip and FoldBatchNorm, which want constants where expressions of
            # constants stand.
            FoldConstants(),
            RecoverClip(),
            ClipIntegers(),
            ExpandBatchNorm(),
            FoldBatchNorm(),
            ClipPoolWindow(),
            ClampTake(),
            CompareBooleans(),
            ExpandMedian(),
            ExpandNonzero(),
            ExpandPower(),
            BooleanArithmetic(),
            # An output that became an alias of the binding before it takes that binding's place.
            on_rewritable(relax.transform.CanonicalizeBindings()),
        ),
        name="NormalizeImport",
    )
