"""Constants in the form that kernels read: packing functions, run at compile time."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..device import parse
from .cpu import schedule_cpu


class Packer:
    """Runs packing functions on this machine; each is compiled once, each result made once."""

    def __init__(self) -> None:
        self._compiled: dict[int, list[tuple[tirx.PrimFunc, tvm.runtime.Module]]] = {}
        self._packed: dict[tuple[ir.GenericConst, tvm.runtime.Module], relax.Constant] = {}

    def __call__(self, packing: tirx.PrimFunc, constant: ir.GenericConst) -> ir.GenericConst:
        """Pack a constant.

        Parameters
        ----------
        packing : tirx.PrimFunc
            From the constant to the packed form, static shapes.
        constant : ir.GenericConst
            What to pack.

        Returns
        -------
        ir.GenericConst
            The same object for the same constant and equal functions.
        """
        module = self._module(packing)
        key = constant, module
        if key not in self._packed:
            buffer = packing.params[-1].ty
            shape = tuple(int(d) for d in buffer.shape)
            packed = tvm.runtime.empty(shape, str(buffer.dtype))
            module["pack"](constant.value, packed)
            self._packed[key] = relax.const(packed)
        return self._packed[key]

    def _module(self, packing: tirx.PrimFunc) -> tvm.runtime.Module:
        known = self._compiled.setdefault(tvm_ffi.structural_hash(packing), [])
        for func, module in known:
            if tvm_ffi.structural_equal(func, packing):
                return module
        target = parse("cpu").tvm_target()
        schedule = schedule_cpu(packing, target)
        func = (schedule.mod["main"] if schedule else packing).with_attr("global_symbol", "pack")
        module = tvm.tirx.build(tvm.IRModule({"pack": func}), target, pipeline="tvm_fusion")
        known.append((packing, module))
        return module
