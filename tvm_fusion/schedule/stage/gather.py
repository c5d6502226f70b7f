"""Packing functions that only move elements, evaluated by numpy: LLVM takes 20 to 300 ms for one.

    packed[i, j, ...] = source[f(i, j, ...), g(i, j, ...), ...]    or a constant, by a condition

Elements are handled as bits, so that the result is what the compiled function would write.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import ir, tirx

from ...core.constants.numpy_types import numpy_dtype
from ...core.tir.expressions import choice
from ...ecg.mapping_types.evaluate import evaluate
from ...ecg.mapping_types.loads import Unreadable
from ...program.stage import Stage, Unstructured
from ...program.stages.parse import parse


def gather(packing: tirx.PrimFunc, constant: tvm.runtime.Tensor) -> tvm.runtime.Tensor | None:
    """Evaluate a packing function.

    Parameters
    ----------
    packing
        From the constant to the packed form, static shapes, not scheduled.

    Returns
    -------
    tvm.runtime.Tensor or None
        The packed form; None where the function computes more than places of elements.
    """
    source, packed = (param.ty for param in packing.params)
    shape = tuple(int(d) for d in packed.shape)
    dtype = numpy_dtype(str(packed.dtype))
    if str(source.dtype) != str(packed.dtype) or 8 * dtype.itemsize != packed.dtype.dtype.bits:
        return None  # numpy has no elements of less than a byte
    if tuple(constant.shape) != tuple(int(d) for d in source.shape):
        return None
    try:
        stage = _only_map(packing)
        bits = constant.numpy().view(f"u{dtype.itemsize}")
        result = _Gather(stage, packing.params[0], bits, dtype).value(stage.values[0])
    except (Unstructured, Unreadable):
        return None
    result = np.ascontiguousarray(np.broadcast_to(result, [a.size or 0 for a in stage.axes]))
    return tvm.runtime.tensor(result.reshape(shape).view(dtype))


def _only_map(packing: tirx.PrimFunc) -> Stage:
    """Read the nest, which writes every element of the packed form in order."""
    parsed = parse(packing)
    target = packing.params[1]
    if len(parsed.stages) != 1 or not parsed.stages[0].is_map:
        raise Unreadable("is more than one map")
    (stage,) = parsed.stages
    places = [i for i in stage.indices[0] if not isinstance(i, tirx.IntImm)]
    in_order = len(places) == len(stage.axes) and all(
        place.same_as(axis.var) for place, axis in zip(places, stage.axes, strict=True)
    )
    extents = [int(d) for d in target.ty.shape]
    is_whole = np.prod(extents, dtype="int64") == np.prod([a.size or 0 for a in stage.axes])
    if not stage.targets[0].same_as(target) or not in_order or not is_whole:
        raise Unreadable("does not write every element in order")
    return stage


class _Gather:
    """Values over all axes of a stage, with extent 1 for axes that they do not depend on."""

    def __init__(self, stage: Stage, source: ir.Var, bits: np.ndarray, dtype: np.dtype) -> None:
        self._source, self._bits, self._dtype = source, bits, dtype
        grid = np.ix_(*(np.arange(axis.size or 0) for axis in stage.axes))
        self._env = {axis.var: at for axis, at in zip(stage.axes, grid, strict=True)}
        self._rank = len(grid)

    def value(self, expr: ir.Expr) -> np.ndarray:
        """Evaluate elements or a choice of them."""
        if isinstance(expr, ir.TensorLoad):
            if not expr.source.same_as(self._source):
                raise Unreadable("reads another tensor")
            return self._load([self._place(k, i) for k, i in enumerate(expr.indices)])
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return np.asarray(expr.value, self._dtype).view(self._bits.dtype)
        chosen = choice(expr)
        if chosen is None:
            raise Unreadable("computes elements")
        condition = np.asarray(evaluate(chosen[0], self._env))
        if condition.all():
            return self.value(chosen[1])
        return np.where(condition, self.value(chosen[1]), self.value(chosen[2]))

    def _place(self, dim: int, index: ir.Expr) -> np.ndarray:
        place = np.asarray(evaluate(index, self._env), "int64")
        # Beyond the tensor are only places where the condition around them is false.
        place = np.clip(place, 0, self._bits.shape[dim] - 1)
        return place if place.ndim else place.reshape([1] * self._rank)

    def _load(self, places: Sequence[np.ndarray]) -> np.ndarray:
        """Read the elements at places, one dimension after the other where that gives all."""
        along = [[k for k, extent in enumerate(p.shape) if extent > 1] for p in places]
        axes = [k for found in along for k in found]
        if len(set(axes)) < len(axes):  # an axis in two indices: as in the diagonal of a matrix
            return self._bits[tuple(places)]
        result = self._bits
        for dim, place in enumerate(places):
            flat = place.reshape(-1)
            if not np.array_equal(flat, np.arange(result.shape[dim])):
                result = result.take(flat, axis=dim)
        extents = [
            place.shape[k] for place, found in zip(places, along, strict=True) for k in found
        ]
        result = result.reshape(extents).transpose(np.argsort(axes))
        return result[tuple(slice(None) if k in axes else None for k in range(self._rank))]
