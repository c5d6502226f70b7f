"""Packed constants: packing functions, evaluated at compile time.

Weights that the model names may be replaced when an artifact is loaded; so their packing functions
go into the library as well. Here numpy evaluates them; those that compute anything
are compiled for this machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...core.constants.numpy_types import numpy_dtype
from ...core.constants.weight_names import Packing, tracked
from ...core.tir.expressions import choice
from ...core.untouched import SCHEDULED
from ...device import parse as parse_target
from ...ecg.mapping_types.evaluate import evaluate
from ...ecg.mapping_types.loads import Unreadable
from ...program.stage import Stage, Unstructured
from ...program.stages.parse import parse
from ..cpu.schedule import schedule_cpu

# Packing functions that only move elements, evaluated by numpy: LLVM takes 20 to 300 ms for one.
#
#     packed[i, j, ...] = source[f(i, j, ...), g(i, j, ...), ...]    or a constant, by a condition
#
# Elements are handled as bits, so that the result is what the compiled function would write.


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


class Packer:
    """Evaluates packing functions on this machine, each result once.

    Parameters
    ----------
    mod
        Whose constants are packed; it tells which names are taken.

    Attributes
    ----------
    functions : dict of str to PrimFunc
        Scheduled packing functions of weights that the model names, public, by name.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._taken = {gvar.name_hint for gvar in mod.functions}
        self._known: dict[int, list[_Function]] = {}
        self._packed: dict[tuple[ir.GenericConst, str], ir.GenericConst] = {}
        self.functions: dict[str, tirx.PrimFunc] = {}

    def __call__(self, packing: tirx.PrimFunc, constant: ir.GenericConst) -> ir.GenericConst:
        """Pack a constant.

        Parameters
        ----------
        packing
            From the constant to the packed form, static shapes.

        Returns
        -------
        ir.GenericConst
            The same object for the same constant and equal functions.
        """
        function = self._function(packing)
        key = constant, function.name
        if key not in self._packed:
            self._packed[key] = relax.const(function(constant.value))
            names = tracked()
            if names is not None and names.knows(constant):
                shape = tuple(int(d) for d in packing.params[0].ty.shape)

                def again(sources: Sequence[ir.GenericConst]) -> ir.GenericConst:
                    return relax.const(function(sources[0].value))

                packing_ = Packing(function.name, shape)
                names.pack(self._packed[key], packing_, constant, again)
                self.functions[function.name] = function.scheduled
        return self._packed[key]

    def _function(self, packing: tirx.PrimFunc) -> _Function:
        known = self._known.setdefault(tvm_ffi.structural_hash(packing), [])
        for function in known:
            if tvm_ffi.structural_equal(function.packing, packing):
                return function
        name = next(n for n in map("pack{}".format, itertools.count()) if n not in self._taken)
        self._taken.add(name)
        known.append(_Function(packing, name))
        return known[-1]


@dataclass(frozen=True, eq=False)
class _Function:
    """A packing function; scheduled and compiled once, where that is needed."""

    packing: tirx.PrimFunc
    name: str

    def __call__(self, constant: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        packed = gather(self.packing, constant)
        if packed is None:
            buffer = self.packing.params[-1].ty
            packed = tvm.runtime.empty(tuple(int(d) for d in buffer.shape), str(buffer.dtype))
            self._module[self.name](constant, packed)
        return packed

    @cached_property
    def scheduled(self) -> tirx.PrimFunc:
        schedule = schedule_cpu(self.packing, parse_target("cpu").tvm_target(), vectors=1)
        func = schedule.mod["main"] if schedule else self.packing
        target = tvm.target.Target.current()
        is_gpu = target is not None and "gpu" in target.keys  # weights are packed before its copy
        on_host = {"tirx.is_host_func": True} if is_gpu else {}
        return func.with_attrs({"global_symbol": self.name, SCHEDULED: True, **on_host})

    @cached_property
    def _module(self) -> tvm.runtime.Module:
        mod = tvm.IRModule({self.name: self.scheduled})
        return tvm.tirx.build(mod, parse_target("cpu").tvm_target(), pipeline="tvm_fusion")
