"""Constant weights along K: as tensor cores read narrow types, and as GEMV reads fastest.

    x W = x transpose(W')          W' = transpose(W), contiguous along K

The transposition is an index of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import tvm
from tvm import ir, relax, tirx
from tvm.ir import GenericConst
from tvm.target import Target

from ..._tvm.ir.buffer import declare
from ...core.constants.contiguous import contiguous
from ...core.constants.weight_names import derived
from ...core.tir.expressions import load
from ...core.tir.loops import constant, index
from ...core.untouched import is_rewritable
from ...device import Device, device_of
from ...frontend.normalize.engine import Scope, op_name, rewrite
from ...frontend.tensor_types import dtype_of
from ...program.stage import Axis, Stage
from ...schedule.contraction.problem.results import Result
from ...schedule.contraction.problem.sum_of_products import SumOfProducts
from ...schedule.contraction.skinny.gemv.model import gemv_clocks
from ...schedule.contraction.skinny.mma.config import LEAST_ROWS_K_CONTIGUOUS, skinny_gemm_config

FEW_ROWS = 8  # of skinny GEMM, which reads weights in any order
# Types of B, by the device's name of what tensor cores multiply.
NARROW = {"float8_e4m3fn": "float8", "float8_e5m2": "float8", "int8": "int8", "uint8": "int8"}
# Types that wgmma, mma.sync and GEMV read in any order.
ANY_ORDER = ("float16", "bfloat16")


@tvm.transform.module_pass(opt_level=0, name="TransposeWeights")
class TransposeWeights:
    """Store constant weights along K for the products that want it.

    ``wgmma`` reads operands of half types in any order, those of float8, int8 and tfloat32 along K
    alone, as ``ldmatrix`` does. GEMV of half types reads along K where its
    :mod:`model <tvm_fusion.schedule.contraction.skinny.gemv.model>` says that it is faster. Where
    one function of a module wants a type so, the others read their matrices of it so, too: a
    prefill and a decode share them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function, for a GPU."""
        target = Target.current()
        if target is None or target.kind.name not in ("cuda", "rocm"):
            return mod
        device = device_of(target)
        ours = {g: tvm.IRModule({g: f}) for g, f in mod.functions.items() if is_rewritable(f)}
        wanted: dict[ir.GlobalVar, set[str]] = {gvar: set() for gvar in ours}
        for gvar, alone in ours.items():
            rewrite(alone, partial(_note, device=device, types=wanted[gvar]))
        result = mod
        for gvar, alone in ours.items():
            others = {dtype for other in wanted if other != gvar for dtype in wanted[other]}
            new = rewrite(alone, partial(_along_k, device=device, others=others))
            if new is not alone:
                result = mod.clone() if result is mod else result
                result[gvar] = new[gvar]
        return result


class _Product(NamedTuple):
    """A product with a constant weight."""

    weight: GenericConst
    casts: list[str]  # of the weight, the last one first
    rows: int | None  # that it is multiplied with; None of a symbolic number

    @classmethod
    def of(cls, value: Any, scope: Scope) -> _Product | None:
        """Read a binding's value."""
        if op_name(value) != "relax.matmul" or value.args[0].ty.ndim < 2:
            return None
        x, operand = value.args
        casts = []
        while (cast := scope.call(operand, "relax.astype")) is not None:
            casts.append(dtype_of(cast))
            operand = cast.args[0]
        weight = scope.value(operand)
        if not isinstance(weight, GenericConst) or weight.ty.ndim < 2:
            return None
        return cls(weight, casts, _rows(x, weight))

    def wants(self, device: Device) -> bool:
        """Whether it reads its weight along K."""
        dtype = dtype_of(self.weight)
        if self.is_of_halves:
            few = self.rows is not None and self.rows < LEAST_ROWS_K_CONTIGUOUS
            shape = map(int, self.weight.value.shape)
            return few and _reads_along_k(self.rows, *shape, dtype, device)
        is_narrow = (
            device.has_matrix("mma.sync", NARROW[dtype])
            if dtype in NARROW
            else (dtype == "float32" and device.rounds_to_tf32)
        )
        return is_narrow and (self.rows is None or self.rows > FEW_ROWS)

    @property
    def is_of_halves(self) -> bool:
        """Whether it is of a matrix in a type that is read in any order."""
        is_matrix = self.weight.ty.ndim == 2 and not self.casts
        return is_matrix and dtype_of(self.weight) in ANY_ORDER


def _note(value: Any, scope: Scope, device: Device, types: set[str]) -> None:
    """Note the type of a weight that a product wants along K."""
    found = _Product.of(value, scope)
    if found is not None and found.wants(device):
        types.add(dtype_of(found.weight))


def _along_k(value: Any, scope: Scope, device: Device, others: set[str]) -> Any:
    """Rewrite a product that wants its weight along K, or shares its type with others."""
    found = _Product.of(value, scope)
    if found is None:
        return None
    weight, casts, _ = found
    is_shared = dtype_of(weight) in others and weight.ty.ndim == 2
    if not is_shared and not found.wants(device):
        return None
    stored = derived(_transposed([weight]), "permute_dims", [weight], _transposed)
    order = [*range(weight.ty.ndim - 2), weight.ty.ndim - 1, weight.ty.ndim - 2]
    made = scope.emit(relax.op.permute_dims(stored, order))
    for dtype in reversed(casts):
        made = scope.emit(relax.op.astype(made, dtype))
    return relax.op.matmul(value.args[0], made, out_dtype=value.attrs.out_dtype)


def _rows(x: ir.Expr, weight: GenericConst) -> int | None:
    """Count the rows of A; ``None`` where their number is symbolic."""
    if x.ty.shape is None:
        return None
    extents = [constant(extent) for extent in x.ty.shape]
    rows = extents[:-1] if weight.ty.ndim == 2 else extents[-2:-1]
    known = [extent for extent in rows if extent is not None]
    return prod(known) if len(known) == len(rows) else None


def _transposed(weights: Sequence[GenericConst]) -> GenericConst:
    (weight,) = weights
    return relax.const(contiguous(weight.value.numpy().swapaxes(-1, -2)), dtype_of(weight))


@cache
def _reads_along_k(rows: int, terms: int, columns: int, dtype: str, device: Device) -> bool:
    """Whether a GEMV takes less time with its weight along K than along N."""
    given = rows, terms, columns, dtype
    found = [skinny_gemm_config(_matrices(*given, order), device) for order in (True, False)]
    along_k, along_n = (None if c is None else gemv_clocks(c, device) for c in found)
    return along_k is not None and (along_n is None or along_k < along_n)


def _matrices(rows: int, terms: int, columns: int, dtype: str, is_along_k: bool) -> SumOfProducts:
    """Describe the product of matrices."""
    extents = {"m": rows, "n": columns, "k": terms}
    axes = {n: Axis(tirx.Var(n, "int64"), index(extent)) for n, extent in extents.items()}
    m, n, k = (axis.var for axis in axes.values())

    def operand(name: str, *order: ir.Var) -> ir.Expr:
        shape = [index(extents[v.name]) for v in order]
        return tirx.Cast("float32", load(declare(shape, dtype, name), list(order)))

    left, right = operand("a", m, k), operand("b", *((n, k) if is_along_k else (k, n)))
    c = declare([index(rows), index(columns)], "float32", "c")
    step = load(c, [m, n]) + left * right
    zero, total = tirx.const(0, "float32"), tirx.Var("total", "float32")
    sums = Stage("c", (axes["m"], axes["n"]), (axes["k"],), (c,), ((m, n),), (step,), (zero,))
    return SumOfProducts(sums, left, right, "float32", total, (Result(c, (m, n), total, None),))
