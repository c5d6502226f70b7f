"""Functions that pack constants at compile time: one nest over the packed elements.

pack(source, packed):
    for axes of packed:  packed[axes] = value(axes)        an expression of loads of source

They run when the model is compiled, by numpy where they only move elements (gather.py); where the
operand is no constant, the function is called before the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ....core.loops import block
from ....program.stage import Axis
from .prim_func import nest


def packing_function(
    source: ir.Var, packed: ir.Var, axes: Sequence[Axis], value: ir.Expr
) -> tirx.PrimFunc:
    """Make the function that packs a constant.

    Parameters
    ----------
    source, packed : Var
        The buffers: the constant as it is, and as kernels read it.
    value : Expr
        Its element at these axes, from the source.

    Returns
    -------
    tirx.PrimFunc
        Of both buffers; :attr:`~tvm_fusion.core.template.Emission.packing` has such functions.
    """
    func = tirx.PrimFunc([source, packed], block("root", nest("packed", axes, [], packed, value)))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True, "global_symbol": "pack"})
