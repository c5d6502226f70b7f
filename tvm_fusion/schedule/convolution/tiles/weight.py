"""The weight of a convolution in the order of tiles, packed at compile time.

for tile of channels, window around runs, step of a run, register, word, column, lane:
    packed[tile, ..., step, register, word, column, lane] = W[k, c, window]

A register is 16 words of K, each of 16 columns: a kilobyte that is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import ceildiv, constant, index, prefetch, sequence, substitute
from ....program.stage import Axis
from ...contraction.problem.packing_function import packing_function
from ...instructions.tiles import TILE_ROWS
from ..dense.weight import KernelWeight
from ..problem.groups import Band
from .problem import TileConv


class TileWeight(KernelWeight):
    """``[k tile][window][step][register][word of K][column][k of the word]``, padded with zeros.

    Parameters
    ----------
    registers
        Of a tile of output channels.
    """

    def __init__(self, conv: TileConv, registers: int) -> None:
        problem, width = conv.single, registers * TILE_ROWS
        self._conv, self._width, self._registers = conv, width, registers
        self.band = Band(problem, width)
        shape = [
            ceildiv(problem.k.extent, width),
            *(index(a.extent) for a in conv.outer),
            *map(index, (conv.steps, registers, conv.words, TILE_ROWS, conv.group)),
        ]
        dtype = str(problem.weight.ty.dtype)
        super().__init__(problem, declare(shape, dtype, f"{problem.source.name}_packed"))

    def at(self, tile: ir.Expr, window: Sequence[ir.Expr], step: ir.Expr, register: int) -> ir.Expr:
        """Read the first element of a register."""
        zero = index(0)
        return load(self.buffer, [tile, *window, step, index(register), zero, zero, zero])

    def prefetch(
        self,
        tile: ir.Expr,
        window: Sequence[ir.Expr],
        step: ir.Expr,
        number: ir.Expr,
        count: int,
    ) -> tirx.Stmt:
        """Prefetch what the next tile of channels reads in a step, a part of it in each tile.

        Parameters
        ----------
        number
            Of the tile of pixels.
        count
            Tiles of pixels that read the same weight.
        """
        conv = self._conv
        lines, line = self._registers * conv.words, TILE_ROWS * conv.group
        each = -(-lines // count)
        first = tirx.floormod(number, index(-(-lines // each))) * each
        start = self.at(tile + 1, window, step, 0)
        *outer, last = start.indices
        elements = [[*outer, last + (first + n) * line] for n in range(each)]
        return sequence([prefetch(load(self.buffer, one), level=2) for one in elements])

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs."""
        conv, problem = self._conv, self._conv.single
        names = [
            "tile",
            *(a.var.name for a in conv.outer),
            "step",
            "register",
            "word",
            "column",
            "lane",
        ]
        axes = [
            Axis(tirx.Var(name, "int64"), extent)
            for name, extent in zip(names, self.buffer.ty.shape, strict=True)
        ]
        tile, *window, step, register, word, column, lane = (a.var for a in axes)
        k = tile * self._width + register * TILE_ROWS + column
        element = (step * conv.words + word) * conv.group + lane
        place = dict(zip((a.var for a in conv.outer), window, strict=True))
        channel = element
        if conv.column is not None:
            place[conv.column.var] = tirx.floordiv(element, index(problem.block))
            channel = tirx.floormod(element, index(problem.block))
        c = self.band.begin(tile) + channel
        place |= {problem.k.var: k, conv.c.var: c}
        inside = [c < self.band.end(tile)]
        if problem.channels % self._width or constant(problem.k.extent) != problem.channels:
            inside.append(k < index(problem.channels))
        value = substitute(problem.weight, place)
        for condition in inside:
            value = tirx.if_then_else(condition, value, tirx.const(0, str(value.ty.dtype)))
        return packing_function(problem.source, self.buffer, axes, value)
