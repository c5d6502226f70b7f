"""Simplify what importers leave expensive or unsupported: Relax passes over ``engine``.

* ``constants/``, ``extents/``: constants; shapes.
* ``expand``, ``attention``: operators as simpler ones.
* ``booleans``, ``clip``, ``fold_batch_norm``, ``scatter_rows``, ``rewritten``, ``UnitBatches``:
  operators written otherwise.
* ``functions``: calls with side effects, nested functions.
"""

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from ...core.names.inherit import inheriting
from ...core.untouched import on_rewritable
from .attention import ExpandAttention
from .booleans import BooleanArithmetic, CompareBooleans
from .clip import ClipIntegers, RecoverClip
from .constants.fold import FoldConstants
from .engine import Scope, rewrite_pass
from .expand import ExpandBatchNorm, ExpandMedian, ExpandNonzero, ExpandPower, IntegerPower
from .extents.apply_ranges import ApplyRanges
from .extents.clip_pool_window import ClipPoolWindow
from .extents.fold_zero import ConcatEmpty, FoldZeroExtents
from .extents.read import ReadExtents
from .extents.resolve_shapes import ResolveShapes
from .extents.unify import UnifyExtents
from .fold_batch_norm import FoldBatchNorm
from .functions import KeepCalls, LiftFunctions
from .rewritten import ClampTake, MultiplyHalves, RemoveIdentities, UnstackSum
from .scatter_rows import ScatterRows

__all__ = [
    "ApplyRanges",
    "BooleanArithmetic",
    "ClampTake",
    "ClipIntegers",
    "ClipPoolWindow",
    "CompareBooleans",
    "ConcatEmpty",
    "ExpandAttention",
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
    "UnifyExtents",
    "UnitBatches",
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
            # Before FoldConstants, for the positions of causal masks.
            ExpandAttention(),
            # Before RecoverClip, FoldBatchNorm and UnitBatches, which want constants where
            # expressions of constants stand.
            FoldConstants(),
            UnitBatches(),
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


@rewrite_pass
def UnitBatches(value: Any, scope: Scope) -> Any:
    """Replace ``a @ b[1, k, n]`` of a constant b by ``a @ b[k, n]``.

    PyTorch writes einsum as products of batches. Products of one activation are joined only where
    their weights are matrices.
    """
    product = scope.call(value, "relax.matmul")
    if product is None:
        return None
    a, b = product.args
    if not isinstance(b, GenericConst) or not 2 < b.ty.ndim <= a.ty.ndim:
        return None
    *batch, k, n = b.ty.shape
    if not all(isinstance(e, tirx.IntImm) and e.value == 1 for e in batch):
        return None
    matrix = scope.emit(relax.op.reshape(b, (k, n)))
    return relax.op.matmul(a, matrix, product.attrs.out_dtype or None)
