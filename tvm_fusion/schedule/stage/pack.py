"""Packed constants: packing functions, evaluated at compile time.

Weights that the model names may be replaced when an artifact is loaded; so their packing functions
go into the library as well. Here numpy evaluates them (:mod:`.gather`); those that compute anything
are compiled for this machine.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...core.constants.weight_names import Packing, tracked
from ...core.untouched import SCHEDULED
from ...device import parse
from ..cpu.schedule import schedule_cpu
from .gather import gather


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
                names.pack(self._packed[key], Packing(function.name, shape), constant)
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
        schedule = schedule_cpu(self.packing, parse("cpu").tvm_target(), vectors=1)
        func = schedule.mod["main"] if schedule else self.packing
        target = tvm.target.Target.current()
        is_gpu = target is not None and "gpu" in target.keys  # weights are packed before its copy
        on_host = {"tirx.is_host_func": True} if is_gpu else {}
        return func.with_attrs({"global_symbol": self.name, SCHEDULED: True, **on_host})

    @cached_property
    def _module(self) -> tvm.runtime.Module:
        mod = tvm.IRModule({self.name: self.scheduled})
        return tvm.tirx.build(mod, parse("cpu").tvm_target(), pipeline="tvm_fusion")
