"""Tile registers of x86's AMX, as statements (Intel's software developer manual, its AMX chapter).

A core has eight tile registers, numbered 0 to 7, of up to 16 rows of 64 bytes. Their shapes are a
state of the thread: nothing else may be done before :func:`configure`, which clears all tiles, and
after the last of them :func:`release` returns the thread to a state that costs nothing to save.
A process asks Linux for permission once, before its first tile (``arch_prctl``).

Each statement is one ``call_llvm_intrin`` of type void. Numbers of tiles are constants of type
uint8, strides are bytes of type int64; addresses are ``address_of`` an element of any buffer
(see :func:`keep_extents` for those that a kernel allocates):

    llvm.x86.ldtilecfg      (address)                      of 64 bytes: see :func:`configure`
    llvm.x86.tilezero       (tile)
    llvm.x86.tileloadd64    (tile, address, stride)        row r from ``address + r * stride``
    llvm.x86.tileloaddt164  (tile, address, stride)        the same, of what is not soon read again
    llvm.x86.tilestored64   (tile, address, stride)
    llvm.x86.tdpbf16ps      (c, a, b)                      and tdpfp16ps, tdpbssd, tdpbsud, tdpbusd,
                                                           tdpbuud: the rows of :data:`.cpu.CPU`
    llvm.x86.tilerelease    ()

Of m, n, k within the shape of an instruction's row, C is m rows of ``4 * n`` bytes, A is m rows of
the bytes of k, and B is a row of ``4 * n`` bytes for each word of 4 bytes of k ("VNNI order").
"""

from collections.abc import Sequence
from typing import NamedTuple

from tvm import ir, tirx

from ..._tvm.ir.buffer import declare
from ...core.tir.expressions import load
from ...core.tir.loops import index, loop, sequence
from .instruction import Instruction

TILES = 8
TILE_ROWS = 16
TILE_ROW_BYTES = 64
CONFIG_BYTES = 64
_PALETTE = 1  # the only one
_ROW_BYTES_AT, _ROWS_AT = 16, 48  # where tile 0 is in a configuration: two bytes, one byte


class TileShape(NamedTuple):
    """The shape of a tile register."""

    rows: ir.Expr | int  # at most 16, at least 1
    row_bytes: ir.Expr | int  # of a row: at most 64, a multiple of 4


class TileAddress(NamedTuple):
    """Where a tile lies in memory."""

    element: ir.Expr  # a load of its first element
    stride: ir.Expr | int  # bytes from one row to the next


def tile_config() -> ir.Var:
    """Declare the memory of a configuration, which whoever configures allocates."""
    return declare([index(CONFIG_BYTES)], "uint8", "tile_config", "local")


def configure(config: ir.Var, shapes: Sequence[TileShape]) -> tirx.Stmt:
    """Give the first tiles their shapes; others must not be used. All tiles become zero.

    Parameters
    ----------
    config
        Of :func:`tile_config`.
    """

    def byte(at: int, value: ir.Expr | int) -> tirx.Stmt:
        one = tirx.const(value, "uint8") if isinstance(value, int) else tirx.Cast("uint8", value)
        return tirx.BufferStore(config, one, [index(at)])

    every = tirx.Ramp(index(0), index(1), CONFIG_BYTES)
    zeros = tirx.Broadcast(tirx.const(0, "uint8"), CONFIG_BYTES)
    stmts = [tirx.BufferStore(config, zeros, [every]), byte(0, _PALETTE)]
    for tile, shape in enumerate(shapes):
        stmts.append(byte(_ROW_BYTES_AT + 2 * tile, shape.row_bytes))
        stmts.append(byte(_ROWS_AT + tile, shape.rows))
    return sequence([*stmts, _call("llvm.x86.ldtilecfg", tirx.address_of(load(config, [0])))])


def keep_extents(buffer: ir.Var) -> tirx.Stmt:
    """Keep the extents of a buffer that tiles are stored to or loaded from.

    TVM 0.27's CompactBufferAllocation gives a buffer that a kernel allocates the extents of what it
    thinks is accessed: fewer elements where only the first one of a tile is named, more where loops
    by themselves go beyond the last one. Rows would be elsewhere than the strides say. It takes the
    declared extents where it cannot bound an index, as here. Whoever allocates the buffer writes
    this; nothing is left of it in the kernel.
    """

    def element(i: ir.Expr) -> tirx.Stmt:
        somewhere = [tirx.bitwise_and(i, index(extent) - 1) for extent in buffer.ty.shape]
        return tirx.Evaluate(tirx.address_of(load(buffer, somewhere)))

    return loop("kept", 2, element)


def zero(tile: int) -> tirx.Stmt:
    """Clear a tile."""
    return _call("llvm.x86.tilezero", _number(tile))


def load_tile(tile: int, source: TileAddress, streams: bool = False) -> tirx.Stmt:
    """Load a tile from memory.

    Parameters
    ----------
    streams
        Whether it is not read again soon: the level-1 cache keeps other lines.
    """
    name = "llvm.x86.tileloaddt164" if streams else "llvm.x86.tileloadd64"
    return _call(name, _number(tile), *_operands(source))


def store_tile(tile: int, target: TileAddress) -> tirx.Stmt:
    """Store a tile to memory."""
    return _call("llvm.x86.tilestored64", _number(tile), *_operands(target))


def multiply_tiles(row: Instruction, a: int, b: int, c: int) -> tirx.Stmt:
    """Multiply tiles, ``c += a * b``, by an instruction of the family ``amx``."""
    return _call(row.name, *map(_number, (c, a, b)))


def release() -> tirx.Stmt:
    """Give up the tile registers until they are configured again."""
    return _call("llvm.x86.tilerelease")


def _call(name: str, *args: ir.Expr) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_llvm_intrin("void", name, *args))


def _number(tile: int) -> ir.Expr:
    return tirx.const(tile, "uint8")


def _operands(address: TileAddress) -> tuple[ir.Expr, ir.Expr]:
    return tirx.address_of(address.element), index(address.stride)
