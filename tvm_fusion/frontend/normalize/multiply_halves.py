"""Let products of matrices and convolutions read half types that are cast to float32 before."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ...core.constants.numpy_types import numpy_dtype
from ...core.constants.weight_names import derived
from ..tensor_types import HALF, dtype_of
from .engine import Scope, op_name, rewrite_pass

_PRODUCTS = frozenset(
    {
        "relax.matmul",
        *(f"relax.nn.conv{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3)),
    }
)
_VIEWS = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze")


@rewrite_pass
def MultiplyHalves(value: Any, scope: Scope) -> Any:
    """``matmul(float32(a), float32(b)) = matmul(a, b, out_dtype=float32)``; convolutions as well.

    For a and b of one half type, views between them and the casts included: float32 holds each
    product of theirs, and their sums are taken in it either way. So matrix units multiply them, and
    weights are stored in their own type.
    """
    if op_name(value) not in _PRODUCTS or dtype_of(value) != "float32":
        return None
    sources = [_source(arg, scope) for arg in value.args[:2]]
    dtypes = {dtype_of(source[0]) for source in sources if source is not None}
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    sources = [
        found if found is not None else _exact(arg, dtype)
        for found, arg in zip(sources, value.args[:2], strict=True)
    ]
    if None in sources:
        return None
    operands = [_viewed(source, views, scope) for source, views in sources]
    info = type(value.attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(value.attrs, field.name) for field in info.fields}
    attrs = tvm.ir.make_node(info.type_key, **fields | {"out_dtype": "float32"})
    return relax.Call(value.op, [*operands, *value.args[2:]], attrs, value.ty_args)


def _source(arg: Any, scope: Scope) -> Any:
    """Return what of a half type is cast behind ``arg``, and the views of it, the last first."""
    views: list[relax.Call] = []
    while True:
        cast = scope.call(arg, "relax.astype")
        if cast is not None:
            return (cast.args[0], views) if dtype_of(cast.args[0]) in HALF else None
        view = scope.call(arg, *_VIEWS)
        if view is None:
            return None
        views.append(view)
        arg = view.args[0]


def _exact(arg: Any, dtype: str) -> Any:
    """Return a constant whose elements are all numbers of a half type, in that type."""
    if not isinstance(arg, GenericConst):
        return None
    wide = arg.value.numpy()
    with np.errstate(over="ignore"):
        narrow = wide.astype(numpy_dtype(dtype))
    if not np.array_equal(narrow.astype(wide.dtype), wide):
        return None
    return derived(relax.const(narrow, dtype), "half", [arg]), []


def _viewed(source: Any, views: list[relax.Call], scope: Scope) -> Any:
    for view in reversed(views):
        args = [source, *view.args[1:]]
        source = scope.emit(relax.Call(view.op, args, view.attrs, view.ty_args))
    return source
