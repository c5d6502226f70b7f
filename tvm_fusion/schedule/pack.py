"""Packed constants: packing functions, run at compile time.

Weights that the model names may be replaced when an artifact is loaded; so their packing functions
go into the library as well.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..core.untouched import SCHEDULED
from ..core.weight_names import Packing, tracked
from ..device import parse
from .cpu import schedule_cpu


class Packer:
    """Runs packing functions on this machine; each is compiled once, each result made once.

    Parameters
    ----------
    mod : tvm.IRModule
        Whose constants are packed; it tells which names are taken.

    Attributes
    ----------
    functions : dict of str to PrimFunc
        Scheduled packing functions of weights that the model names, public, by name.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._taken = {gvar.name_hint for gvar in mod.functions}
        self._compiled: dict[int, list[_Compiled]] = {}
        self._packed: dict[tuple[ir.GenericConst, str], ir.GenericConst] = {}
        self.functions: dict[str, tirx.PrimFunc] = {}

    def __call__(self, packing: tirx.PrimFunc, constant: ir.GenericConst) -> ir.GenericConst:
        """Pack a constant.

        Parameters
        ----------
        packing : tirx.PrimFunc
            From the constant to the packed form, static shapes.
        constant : ir.GenericConst
            The constant.

        Returns
        -------
        ir.GenericConst
            The same object for the same constant and equal functions.
        """
        compiled = self._compile(packing)
        key = constant, compiled.name
        if key not in self._packed:
            buffer = packing.params[-1].ty
            shape = tuple(int(d) for d in buffer.shape)
            packed = tvm.runtime.empty(shape, str(buffer.dtype))
            compiled.module[compiled.name](constant.value, packed)
            self._packed[key] = relax.const(packed)
            names = tracked()
            if names is not None:
                shape = tuple(int(d) for d in packing.params[0].ty.shape)
                names.pack(self._packed[key], Packing(compiled.name, shape), constant)
                self.functions[compiled.name] = compiled.func
        return self._packed[key]

    def _compile(self, packing: tirx.PrimFunc) -> _Compiled:
        known = self._compiled.setdefault(tvm_ffi.structural_hash(packing), [])
        for compiled in known:
            if tvm_ffi.structural_equal(compiled.packing, packing):
                return compiled
        name = next(n for n in map("pack{}".format, itertools.count()) if n not in self._taken)
        self._taken.add(name)
        target = parse("cpu").tvm_target()
        schedule = schedule_cpu(packing, target)
        func = schedule.mod["main"] if schedule else packing
        func = func.with_attrs({"global_symbol": name, SCHEDULED: True})
        module = tvm.tirx.build(tvm.IRModule({name: func}), target, pipeline="tvm_fusion")
        known.append(_Compiled(packing, name, func, module))
        return known[-1]


@dataclass(frozen=True)
class _Compiled:
    packing: tirx.PrimFunc
    name: str
    func: tirx.PrimFunc
    module: tvm.runtime.Module
