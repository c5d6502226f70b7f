"""Independent matrix products of one shape, as one batched product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target
from tvm_ffi import structural_equal

from ...core.constants.weight_names import derived
from ...core.decisions import Decision, record
from ...core.names.source import Sources, names_of, sources_of
from ...frontend.normalize.engine import Scope, op_name, rewrite
from ..egraph.changes import Change, note
from ..search.judge import Choose, always


@dataclass(frozen=True)
class _Product:
    """``left @ matrix + bias``: one of several that are concatenated."""

    left: relax.Var
    matrix: GenericConst
    bias: GenericConst | None
    out_dtype: Any
    sources: Sources

    @property
    def terms(self) -> int:
        return int(self.matrix.ty.shape[0])

    @property
    def width(self) -> int:
        return int(self.matrix.ty.shape[1])

    def is_like(self, other: _Product) -> bool:
        """Whether two products can be two batches of one."""
        return (
            structural_equal(self.left.ty, other.left.ty)
            and structural_equal(self.matrix.ty, other.matrix.ty)
            and (self.bias is None) == (other.bias is None)
            and self.out_dtype == other.out_dtype
        )


@tvm.transform.module_pass(opt_level=0, name="BatchMatmuls")
class BatchMatmuls:
    """``[x A | y B | ...] = [x, y, ...] [A, B, ...]`` as batches, for constant matrices A, B, ...

    What was several narrow products and a copy of their results is one product. Its left operand
    is the tensor that ``x | y | ...`` are the pieces of. Where they are none, they are
    concatenated, if that copies no more than the one of the results did, which goes; on CPUs such
    products are grouped instead.

    AITemplate's ``fuse_parallel_gemms``. Each element is the same sum of the same terms. A matrix
    that something else reads as well stays, or it would be stored twice.

    Examples
    --------
    >>> def halves(x):
    ...     pieces = op.split(x, 2, axis=1)
    ...     return op.concat([op.matmul(pieces[i], weight(32, 32)) for i in (0, 1)], axis=1)
    >>> with cpu:
    ...     calls(BatchMatmuls()(module(halves, (8, 64)))).count("relax.matmul")
    1
    """

    def __init__(self, choose: Choose = always) -> None:
        self._choose = choose

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function; refusals are recorded."""
        return rewrite(mod, partial(_batched, choose=self._choose))


def _batched(value: Any, scope: Scope, choose: Choose) -> Any:
    if op_name(value) != "relax.concat" or not isinstance(value.args[0], relax.Expr):
        return None
    fields = scope.value(value.args[0])
    if not isinstance(fields, relax.Tuple) or len(fields.fields) < 2:
        return None
    found = [_product(field, scope) for field in fields.fields]
    products = [p for p in found if p is not None]
    if len(products) < len(found):
        return None
    first = products[0]
    axis, dims = int(value.attrs.axis), first.left.ty.ndim
    if axis not in (-1, dims - 1) or not all(p.is_like(first) for p in products):
        return None
    if len({hash(p.left) for p in products}) == 1:
        return None  # one wide product
    if any(scope.uses(p.matrix) != 1 for p in products):
        sentence = "One of their weights has other readers too, and would be stored twice."
        _tell(products, "refused", "weight_shared", sentence)
        return None
    source = _whole(products, scope)
    if source is None:
        target = Target.current()
        if target is not None and target.kind.name == "llvm":
            sentence = "CPU kernels compute different products in one launch without copies."
            _tell(products, "refused", "grouped", sentence)
            return None
        if first.terms > first.width:
            sentence = "Their activations, which would be copied, are larger than the results."
            _tell(products, "refused", "wide_operands", sentence)
            return None
    choice = choose(scope.func, [scope.target])
    if not choice.is_taken:
        return None
    if source is None:
        source = scope.emit(relax.op.concat([p.left for p in products], axis=dims - 1))
    _tell(
        products,
        "accepted",
        "batched",
        f"{len(products)} independent products are one batched product.",
    )
    lefts, letters = ascii_lowercase[-3:] + ascii_lowercase[:-3], ascii_uppercase
    pairs = [f"{x} {a}" for x, a in zip(lefts, letters, strict=True)][: len(products)]
    both = (", ".join(part[: len(products)]) for part in (lefts, letters))
    after = " ".join(f"[{part}]" for part in both)
    name = ", ".join(p.left.name for p in products)
    rule, before = ("batch_matmuls",), f"[{' | '.join(pairs)}]"
    note(Change("", name, rule, before, after, choice.gain))
    return _product_of_batches(products, source, scope)


def _product(field: Any, scope: Scope) -> _Product | None:
    """Take a concatenated tensor for a product with a matrix, and with a row that is added."""
    bias: GenericConst | None = None
    addition = scope.call(field, "relax.add")
    if addition is not None:
        if scope.uses(field) != 1:
            return None
        sums = [x for x in addition.args if not isinstance(x, GenericConst)]
        rows = [x for x in addition.args if isinstance(x, GenericConst)]
        if len(sums) != 1 or len(rows) != 1:
            return None
        (field,), (bias,) = sums, rows
    product = scope.call(field, "relax.matmul")
    if product is None or scope.uses(field) != 1:
        return None
    left, matrix = product.args
    if not isinstance(left, relax.Var) or not isinstance(matrix, GenericConst):
        return None
    if matrix.ty.ndim != 2 or left.ty.ndim < 2 or not isinstance(left.ty.shape, relax.ShapeExpr):
        return None
    width = int(matrix.ty.shape[1])
    if bias is not None and (bias.ty.ndim != 1 or int(bias.ty.shape[0]) != width):
        return None
    return _Product(left, matrix, bias, product.attrs.out_dtype, sources_of(field))


def _whole(products: list[_Product], scope: Scope) -> relax.Var | None:
    """Find the tensor that the left operands are all the pieces of, in order."""
    whole: relax.Var | None = None
    for number, product in enumerate(products):
        piece = scope.value(product.left)
        if not isinstance(piece, relax.TupleGetItem) or piece.index != number:
            return None
        split = scope.call(piece.tuple_value, "relax.split")
        if split is None or int(split.attrs.axis) not in (-1, product.left.ty.ndim - 1):
            return None
        if whole is not None and not whole.same_as(split.args[0]):
            return None
        whole = split.args[0]
    if whole is None or not isinstance(whole, relax.Var):
        return None
    return whole if int(whole.ty.shape[-1]) == len(products) * products[0].terms else None


def _product_of_batches(products: list[_Product], source: relax.Var, scope: Scope) -> relax.Expr:
    first, count = products[0], len(products)
    outer = list(first.left.ty.shape)[:-1]
    dims = len(outer) + 2
    # Batches and rows change places: from (..., rows, batches, columns) and back.
    swapped = [*range(dims - 3), dims - 2, dims - 3, dims - 1]
    left = scope.emit(relax.op.reshape(source, (*outer, count, first.terms)))
    left = scope.emit(relax.op.permute_dims(left, swapped))
    matrices = _stacked([p.matrix for p in products])
    result = scope.emit(relax.op.matmul(left, matrices, first.out_dtype))
    result = scope.emit(relax.op.permute_dims(result, swapped))
    biases = [p.bias for p in products if p.bias is not None]
    if biases:
        result = scope.emit(relax.op.add(result, _stacked(biases)))
    return relax.op.reshape(result, (*outer, count * first.width))


def _stacked(parts: list[GenericConst]) -> GenericConst:
    def stacked(parts: Sequence[GenericConst]) -> GenericConst:
        together = np.stack([p.value.numpy() for p in parts])
        return relax.const(together, str(parts[0].ty.dtype.dtype))

    return derived(stacked(parts), "stack", parts, stacked)


def _tell(products: list[_Product], verdict: Any, code: str, sentence: str) -> None:
    title = ", ".join(p.left.name for p in products)
    names = names_of(source for p in products for source in p.sources)
    record(Decision(title, "", verdict, code, sentence, producer_names=names))
