"""Norms between two matrix products, as factors of rows behind the second.

    layer_norm(x; g, e) W = rstd(x) (x W' - mean(x) s) + e W    W' = g W - mean of its columns
    rms_norm(x; g) W      = rstd(x) (x (g W))                   s[n] = sum over k of W'[k, n]

A norm's mean is a product of x with ones: a W' whose columns add up to zero takes it off
beforehand, but for what W' is rounded by: s. Without it, float16 rows of a mean of 100 standard
deviations give 1.8e-3 of error instead of 2.1e-4, the error of a norm of its own.
What is left of the norm are two numbers of each row, of statistics of tiles of 64 columns that the
kernel of the first product writes besides x:

    mean[m, t], square[m, t] = statistics of x[m, 64 t : 64 t + 64]
    rstd[m] = rsqrt((sum over t of square[m, t] + 64 (mean[m, t] - mean[m])^2) / K + epsilon)

Both products' kernels add up what they need, so that the norm's own is gone. Statistics of a tile
are of deviations from its own mean: nothing cancels, whatever the mean of the row.

On an H200, a layer of BERT at 128 tokens takes 19.6 us instead of 22.0, and 18.4 without any norm.
With sums of the rows of A taken by idle warps of the second product it takes 25.2. The whole of
BERT takes 337 us instead of 358, GPT-2 348 instead of 375, host included. Many rows lose: gain.py
tells which. One kernel of a product and its norm never gains (benchmarks/gpu/FUSED_GEMMS.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from ...core.constants.weight_names import derived
from ...core.untouched import is_rewritable
from ...device import device_of
from ...frontend.tensor_types import HALF, dtype_of
from .matches import MOST, Norm, is_product, is_same_rows, norms_between_products
from .operators import normed_product, statistics_of


@tvm.transform.module_pass(opt_level=0, name="NormStatistics")
class NormStatistics:
    """``norm(x) W = rstd(x) (x W')`` where a product's kernel gives the statistics of ``x``.

    For half types on GPUs with wgmma, whose kernels add them up.

    Examples
    --------
    >>> def block(x, residual):
    ...     h = op.matmul(x, weight(1024, 1024, dtype="float16")) + residual
    ...     normed = op.nn.rms_norm(h, weight(1024, dtype="float16"), axes=[-1])
    ...     return op.matmul(normed, weight(1024, 1024, dtype="float16"))
    >>> mod = module(block, (4096, 1024), (4096, 1024), dtype="float16")
    >>> with tvm_fusion.device.parse("cuda:sm_90a").tvm_target():
    ...     calls(NormStatistics()(mod))[:4]
    ['relax.matmul', 'relax.add', 'tile_statistics', 'norm_rows']
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function; norms that stay are recorded."""
        target = Target.current()
        if target is None or target.kind.name != "cuda":
            return mod
        device = device_of(target)
        if not device.tma or not device.has_matrix("wgmma", "float16"):
            return mod
        for gvar, func in list(mod.functions.items()):
            if not is_rewritable(func):
                continue
            norms = norms_between_products(func, device.sm_count or 1)
            if norms:
                rewriter = _Rewriter(mod, norms)
                made = relax.analysis.remove_all_unused(rewriter.visit_expr(func))
                mod = rewriter.builder_.get()
                mod[gvar] = made
        return mod


@dataclass(frozen=True)
class _Rewritten:
    """A norm in the new function: its rows as a matrix, and their statistics."""

    norm: Norm
    x: relax.Var
    statistics: tuple[relax.Expr, ...]


@dataclass(frozen=True)
class _Folded:
    """A matrix with a norm's scale in it, sums of its columns, the norm's shift times it."""

    weight: GenericConst
    sums: GenericConst
    shift: GenericConst | None


@mutator
class _Rewriter(PyExprMutator):
    """Puts products of raw rows in the place of products of norms."""

    def __init__(self, mod: tvm.IRModule, norms: dict[int, Norm]) -> None:
        super().__init__(mod)
        self._norms = norms
        self._done: dict[int, _Rewritten] = {}
        self._folded: dict[tuple[int, int], _Folded] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        norm = self._norms.get(hash(binding.var))
        value = binding.value
        if norm is not None:
            self._done[hash(binding.var)] = done = self._statistics(norm)
            self._bind(binding.var, self._normalized(done))
            return
        if is_same_rows(value) and hash(value.args[0]) in self._done:
            self._done[hash(binding.var)] = self._done[hash(value.args[0])]
        if is_product(value) and hash(value.args[0]) in self._done:
            self._bind(binding.var, self._product(self._done[hash(value.args[0])], value))
            return
        super().visit_var_binding_(binding)

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        made = self.builder_.normalize(value)
        self.builder_.emit_normalized(relax.VarBinding(var, made))

    def _call(self, operator: Callable[..., Any], *given: relax.Expr) -> relax.Var:
        name = operator.__name__
        return self.builder_.emit(self.builder_.call_te(operator, *given, primfunc_name_hint=name))

    def _statistics(self, norm: Norm) -> _Rewritten:
        """Compute the statistics of tiles: of the kernel that writes the rows."""
        emit, x = self.builder_.emit, self.visit_expr(norm.call.args[0])
        if x.ty.ndim != 2:
            x = emit(relax.op.reshape(x, (norm.rows, norm.columns)))
        found = self._call(statistics_of(norm.is_centred), x)
        parts = (found,)
        if norm.is_centred:
            parts = tuple(emit(relax.TupleGetItem(found, i)) for i in range(2))
        return _Rewritten(norm, x, parts)

    def _normalized(self, done: _Rewritten) -> relax.Expr:
        """Normalize element by element, for what else reads the norm."""
        emit, norm, op = self.builder_.emit, done.norm, relax.op
        dtype = dtype_of(norm.call)
        mean, rstd = self._row_values(done)
        value = emit(op.astype(done.x, "float32"))
        if mean is not None:
            value = emit(op.subtract(value, mean))
        value = emit(op.multiply(value, rstd))
        value = emit(op.multiply(value, _float32(norm.scale)))
        if norm.shift is not None:
            value = emit(op.add(value, _float32(norm.shift)))
        value = emit(op.astype(value, dtype))
        return op.reshape(value, norm.call.ty.shape)

    def _product(self, done: _Rewritten, call: relax.Call) -> relax.Expr:
        """Multiply raw rows, and scale what comes out."""
        emit, op = self.builder_.emit, relax.op
        folded = self._fold(done.norm, call.args[1], dtype_of(call))
        mean, rstd = self._row_values(done)
        value = emit(op.matmul(done.x, folded.weight, out_dtype="float32"))
        if mean is None:
            value = emit(op.multiply(value, rstd))
        else:  # one operator: proposals join a product with the nearest reader of its rows
            shift = [] if folded.shift is None else [folded.shift]
            value = self._call(normed_product, value, mean, rstd, folded.sums, *shift)
        value = emit(op.astype(value, dtype_of(call))) if dtype_of(call) in HALF else value
        return op.reshape(value, call.ty.shape)

    def _row_values(self, done: _Rewritten) -> tuple[relax.Var | None, relax.Var]:
        """Return the mean of rows, if the norm subtracts it, and rstd."""
        found = self._call(done.norm.row_values, *done.statistics)
        if not done.norm.is_centred:
            return None, found
        mean, rstd = (self.builder_.emit(relax.TupleGetItem(found, i)) for i in range(2))
        return mean, rstd

    def _fold(self, norm: Norm, weight: GenericConst, dtype: str) -> _Folded:
        key = hash(norm.call), hash(weight)
        if key not in self._folded:
            made = fold(norm.scale.value.numpy(), weight.value.numpy(), norm.is_centred)
            sources = [weight, norm.scale]
            first = derived(relax.const(made, dtype_of(weight)), "norm", sources)
            # What results of a half type read is of it, too: half the loads.
            kind = made.dtype if dtype in HALF else np.dtype("float32")
            sums = _vector(made.sum(axis=0, dtype="float64"), kind)
            added = None
            if norm.shift is not None and np.any(shift := norm.shift.value.numpy()):
                product = shift.astype("float64") @ weight.value.numpy().astype("float64")
                added = derived(_vector(product, kind), "matmul", [norm.shift, weight])
            self._folded[key] = _Folded(first, derived(sums, "sum(norm)", sources), added)
        return self._folded[key]


def _vector(array: np.ndarray, dtype: np.dtype) -> GenericConst:
    kind = dtype if np.abs(array).max() < MOST else np.dtype("float32")
    return relax.const(array.astype(kind), kind.name)


def _float32(const: GenericConst) -> GenericConst:
    return derived(relax.const(const.value.numpy().astype("float32")), "astype", [const])


# Matrices with the scale of a norm in front of them multiplied in; numpy alone.
def fold(scale: np.ndarray, weight: np.ndarray, is_centred: bool) -> np.ndarray:
    """Multiply a norm's scale into a matrix, and take the mean of columns off.

    Parameters
    ----------
    scale
        ``[K]``.
    weight
        ``[K, N]``, of a half type.
    is_centred
        Whether columns shall add up to zero, but for roundings: a row's mean then cancels before
        sums in float32 round it.

    Returns
    -------
    numpy.ndarray
        ``[K, N]``, of the type of ``weight``.
    """
    exact = scale.astype("float32")[:, None] * weight.astype("float32")
    if is_centred:
        exact -= exact.mean(axis=0, dtype="float64").astype("float32")
    return exact.astype(weight.dtype)
