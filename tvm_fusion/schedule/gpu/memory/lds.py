"""Vectors of AMD GPUs between global memory, registers and the local data share (LDS).

The LDS of a kernel is one buffer of :data:`SCOPE`, whose barriers the kernel places itself: TVM
0.27's ThreadSync knows the scopes ``shared`` and ``shared.dyn`` alone, and would add a barrier for
each step of a loop that reads one stage and writes another. LLVM's scheduler moves the loads of a
next stage down to their use, and the stores up to the loads: :func:`scheduling_barrier` between
them and the products keeps the order.
"""

from __future__ import annotations

import ml_dtypes  # noqa: F401 (numpy's bfloat16)
import numpy as np
from tvm import DataType, ir, tirx

from ....core.tir.expressions import choice
from ....core.tir.loops import index, sequence
from ..launch import storage_sync

SCOPE = "shared.own"
# TVM 0.27 computes bfloat16 in float32 and keeps registers in it, whose bits would be others.
_BITS = {"bfloat16": "uint16"}


def held_as(dtype: str) -> str:
    """Return the type of registers that hold elements of a type as they are."""
    return _BITS.get(dtype, dtype)


def held(value: ir.Expr) -> ir.Expr:
    """Return an element as registers of :func:`held_as` its type hold it."""
    dtype = str(value.ty.dtype)
    bits = held_as(dtype)
    if bits == dtype:
        return value
    if isinstance(value, ir.TensorLoad):
        return tirx.reinterpret(bits, value)
    if isinstance(value, tirx.FloatImm):
        return tirx.const(int(np.array(value.value, dtype).view(bits)), bits)
    chosen = choice(value)
    if chosen is not None:
        condition, *sides = chosen
        return tirx.if_then_else(condition, *map(held, sides))
    return _rounded(tirx.Cast("float32", value))


def _rounded(value: ir.Expr) -> ir.Expr:
    """Round a float32 to the bits of the nearest even bfloat16; all NaN become one."""
    word = tirx.reinterpret("uint32", value)

    def number(n: int) -> ir.Expr:
        return tirx.const(n, "uint32")

    odd = tirx.bitwise_and(tirx.shift_right(word, number(16)), number(1))
    bits = tirx.shift_right(word + odd + number(0x7FFF), number(16))
    bits = tirx.Select(tirx.isnan(value), number(0x7FC0), bits)
    return tirx.Cast("uint16", bits)


def copy_vector(to: ir.TensorLoad, source: ir.TensorLoad, size: int) -> tirx.Stmt:
    """Copy some aligned bytes between registers, LDS and global memory, whatever their types.

    Parameters
    ----------
    to, source
        The first element of either.
    size
        Bytes: 4, 8 or 16.
    """
    return _store(to, _load(source, size), size)


def copy_or_zero(
    to: ir.TensorLoad, source: ir.TensorLoad, size: int, is_loaded: ir.Expr
) -> tirx.Stmt:
    """Load aligned bytes of global memory into registers, or zeros.

    Parameters
    ----------
    is_loaded
        Nothing is read where it does not hold.
    """
    if isinstance(is_loaded, tirx.IntImm) and int(is_loaded.value):
        return copy_vector(to, source, size)
    dtype = str(to.ty.dtype)
    lanes = size // DataType(dtype).itemsize
    zero = tirx.const(0, dtype)
    zeros = _store(to, zero if lanes == 1 else tirx.Broadcast(zero, lanes), size)
    return sequence([zeros, tirx.IfThenElse(is_loaded, copy_vector(to, source, size), None)])


def barrier() -> tirx.Stmt:
    """Wait for all threads of the block, and for what they wrote to LDS."""
    return storage_sync()


def scheduling_barrier() -> tirx.Stmt:
    """Let LLVM's scheduler move no instruction across."""
    zero = tirx.const(0, "int32")
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.amdgcn.sched.barrier", zero))


def _load(source: ir.TensorLoad, size: int) -> ir.Expr:
    lanes = size // DataType(str(source.ty.dtype)).itemsize
    return source if lanes == 1 else tirx.BufferLoad(source.source, _lanes(source, lanes))


def _store(to: ir.TensorLoad, value: ir.Expr, size: int) -> tirx.Stmt:
    dtype = str(to.ty.dtype)
    lanes = size // DataType(dtype).itemsize
    wanted = dtype if lanes == 1 else f"{dtype}x{lanes}"
    if str(value.ty.dtype) != wanted:
        value = tirx.reinterpret(wanted, value)
    return tirx.BufferStore(to.source, value, _lanes(to, lanes))


def _lanes(first: ir.TensorLoad, lanes: int) -> list[ir.Expr]:
    *outer, last = first.indices
    return [*outer, last if lanes == 1 else tirx.Ramp(last, index(1), lanes)]
