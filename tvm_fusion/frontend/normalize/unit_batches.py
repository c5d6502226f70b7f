"""Write weights that are a batch of one matrix as that matrix."""

from typing import Any

from tvm import relax, tirx
from tvm.ir import GenericConst

from .engine import Scope, rewrite_pass


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
