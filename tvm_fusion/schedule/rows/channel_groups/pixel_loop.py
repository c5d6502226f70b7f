"""Loop of a thread over pixels of a block: vectors of channels, several loads in flight.

thread (line, vector) of lines x vectors, vectors innermost: channels vector * width + lane
  invariant[..][width] = what is the same for all pixels                          registers
  for pixels line, line + lines, .. of the block, UNROLL of them at a time:
    load the vectors of all of them                                               16 bytes a load
    body of each pixel
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from ...._tvm.ir.structural import structural_map
from ....core.tir.expressions import load, loads
from ....core.tir.loops import (
    coordinates,
    index,
    local,
    loop,
    sequence,
    substitute,
    unrolled,
    vectorized,
    when,
)
from ...index.address import same
from .channel_groups import ChannelGroups

_Linear = tuple[ir.Expr, ir.Expr | None, ir.Expr | None]


class Invariants:
    """Takes values that do not change in a loop out of its expressions.

    Parameters
    ----------
    changes
        Whether a load reads another element in every step of the loop.
    is_linear
        Whether ``(x * a - b) * c + d`` may become ``x * (a * c) + (d - b * c)``: that is off by a
        rounding of a product in float32, which results of half types do not show.

    Attributes
    ----------
    values, names : list
        What was taken out, and the variables in its place.
    """

    def __init__(self, changes: Callable[[ir.TensorLoad], bool], is_linear: bool) -> None:
        self._changes, self._is_linear = changes, is_linear
        self.values: list[ir.Expr] = []
        self.names: list[ir.Var] = []

    def take_out(self, expr: ir.Expr) -> ir.Expr:
        """Write an expression with variables in the place of its invariants."""

        def change(node: ir.Expr) -> ir.Expr:
            is_value = isinstance(node.ty, ir.PrimType)
            if not is_value or not str(node.ty.dtype).startswith(("float", "bfloat")):
                return node  # buffers and positions
            if not self._varies(node):
                return self._named(node)
            if self._is_linear and isinstance(node, tirx.Add | tirx.Sub | tirx.Mul):
                varying, scale, shift = self._linear(node)
                value = varying if scale is None else varying * self._named(scale)
                return value if shift is None else value + self._named(shift)
            return node

        return structural_map(expr, (ir.Expr, change), order="pre")

    def _varies(self, expr: ir.Expr) -> bool:
        return any(map(self._changes, loads(expr)))

    def _named(self, expr: ir.Expr) -> ir.Expr:
        """Return an invariant's variable; constants and variables that stand for one as is."""
        if isinstance(expr, tirx.FloatImm) or expr in self.names:
            return expr
        for value, name in zip(self.values, self.names, strict=True):
            if tvm_ffi.structural_equal(value, expr):
                return name
        self.values.append(expr)
        self.names.append(tirx.Var(f"invariant{len(self.names)}", str(expr.ty.dtype)))
        return self.names[-1]

    def _linear(self, expr: ir.Expr) -> _Linear:
        """Write an expression as ``varying * scale + shift``."""
        if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
            return expr, None, None
        is_first = self._varies(expr.a)
        if is_first and self._varies(expr.b):
            return expr, None, None
        varying, fixed = (expr.a, expr.b) if is_first else (expr.b, expr.a)
        inner, scale, shift = self._linear(varying)
        if isinstance(expr, tirx.Mul):
            scale = fixed if scale is None else scale * fixed
            return inner, scale, None if shift is None else shift * fixed
        if isinstance(expr, tirx.Add):
            return inner, scale, fixed if shift is None else shift + fixed
        if is_first:
            return inner, scale, (tirx.const(0, fixed.ty.dtype) if shift is None else shift) - fixed
        scale = tirx.const(-1, fixed.ty.dtype) if scale is None else -scale
        return inner, scale, fixed if shift is None else fixed - shift


UNROLL = 8  # vectors of a thread in flight: with 512 threads, 64 KB of a multiprocessor

Value = Callable[[ir.Expr, ir.Expr], ir.Expr]  # of an expression, in a lane


@dataclass(frozen=True)
class PixelTile:
    """Pixels of a block and the threads that run through them."""

    pixels: int  # of a block
    lines: int  # pixels at a time
    vectors: int  # threads of a pixel, each with a vector of channels

    @property
    def threads(self) -> int:
        """Count the threads of a block."""
        return self.lines * self.vectors


class PixelLoop:
    """Writes the loop of a thread.

    Parameters
    ----------
    values
        What is computed for each pixel, over the view's axes.
    thread
        The number of the thread.
    first
        Number of the block's first pixel.
    """

    def __init__(
        self,
        view: ChannelGroups,
        tile: PixelTile,
        values: Sequence[ir.Expr],
        thread: ir.Expr,
        rows: Sequence[ir.Expr],
        first: ir.Expr,
    ) -> None:
        self._view, self._tile, self._rows, self._first = view, tile, rows, first
        self.line, vector = coordinates(thread, [tile.lines, tile.vectors])
        self.channel = vector * view.width
        is_half = all(str(store.target.dtype) != "float32" for store in view.stores)
        self._invariants = Invariants(view.is_streamed, is_half)
        self.values = [self._invariants.take_out(value) for value in values]
        self._loads: list[ir.TensorLoad] = []
        for found in (x for value in self.values for x in loads(value)):
            if not any(same(found, other) for other in self._loads):
                self._loads.append(found)
        steps = -(-tile.pixels // tile.lines)
        self._batch = min(max(1, UNROLL // len(self._loads)), steps)
        self._held = [
            local(f"{x.source.name}_vector", [self._batch * view.width], str(x.ty.dtype))
            for x in self._loads
        ]
        self._fixed = [
            local(name.name, [view.width], str(name.ty.dtype)) for name in self._invariants.names
        ]

    @property
    def buffers(self) -> list[ir.Var]:
        """List the registers."""
        return [*self._held, *self._fixed]

    def fix(self, known: Mapping[ir.Var, Callable[[ir.Expr], ir.Expr]] = {}) -> tirx.Stmt:
        """Compute the invariants.

        Parameters
        ----------
        known
            Gives what stands for a variable in a lane.
        """

        def one(lane: ir.Expr) -> tirx.Stmt:
            place = self.place(index(0), lane) | {v: value(lane) for v, value in known.items()}
            pairs = zip(self._fixed, self._invariants.values, strict=True)
            stmts = [tirx.BufferStore(r, substitute(v, place), [lane]) for r, v in pairs]
            return sequence(stmts)

        return unrolled("lane", self._view.width, one)

    def place(self, pixel: ir.Expr, lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the view's axes at a pixel of the block and a lane of the thread."""
        return self._view.place(self._rows, self._first + pixel, self.channel + lane)

    def at_first(self, body: Callable[[Value], tirx.Stmt]) -> tirx.Stmt:
        """Do something with the block's first pixel."""
        return sequence([self._read(index(0), index(0)), body(self._value(index(0)))])

    def each(self, body: Callable[[ir.Expr, Value], tirx.Stmt], backwards: bool = False):
        """Do something with every pixel, ``body(pixel, value)``; the last first if backwards."""
        tile, batch = self._tile, self._batch
        steps = -(-tile.pixels // tile.lines)
        is_whole = steps * tile.lines == tile.pixels

        def some(start: ir.Expr, count: int) -> tirx.Stmt:
            def number(item: ir.Expr) -> ir.Expr:
                return (start + item) * tile.lines + self.line

            def pixel(item: ir.Expr) -> ir.Expr:
                return tile.pixels - 1 - number(item) if backwards else number(item)

            def read(item: ir.Expr) -> tirx.Stmt:
                at = pixel(item)
                if not is_whole:
                    at = (
                        tirx.max(at, index(0))
                        if backwards
                        else tirx.min(at, index(tile.pixels - 1))
                    )
                return self._read(at, item)

            def use(item: ir.Expr) -> tirx.Stmt:
                stmt = body(pixel(item), self._value(item))
                return stmt if is_whole else when(number(item) < tile.pixels, stmt)

            return sequence([unrolled("item", count, read), unrolled("item", count, use)])

        stmts = [loop("step", steps // batch, lambda n: some(n * batch, batch))]
        if steps % batch:
            stmts.append(some(index(steps // batch * batch), steps % batch))
        return sequence(stmts)

    def _read(self, pixel: ir.Expr, item: ir.Expr) -> tirx.Stmt:
        width = self._view.width
        stmts = []
        for found, register in zip(self._loads, self._held, strict=True):

            def one(lane: ir.Expr, found=found, register=register) -> tirx.Stmt:
                place = self.place(pixel, lane)
                value = load(found.source, [substitute(i, place) for i in found.indices])
                return tirx.BufferStore(register, value, [item * width + lane])

            stmts.append(vectorized(width, one))
        return sequence(stmts)

    def _value(self, item: ir.Expr) -> Value:
        width = self._view.width

        def value(expr: ir.Expr, lane: ir.Expr) -> ir.Expr:
            def swap(found: ir.TensorLoad) -> ir.Expr:
                pairs = zip(self._loads, self._held, strict=True)
                register = next((r for x, r in pairs if same(x, found)), None)
                return found if register is None else load(register, [item * width + lane])

            names = zip(self._invariants.names, self._fixed, strict=True)
            known = {name: load(register, [lane]) for name, register in names}
            return substitute(substitute(expr, {}, swap), known)

        return value


def tile_of(pixels: int, vectors: int, threads: int) -> PixelTile:
    """Choose the lines of a block so that threads have as many pixels each, if they can.

    Parameters
    ----------
    threads
        At most; a pixel has as many at least as it has vectors.
    """
    most = max(1, min(pixels, threads // vectors))
    whole = max(d for d in range(1, most + 1) if pixels % d == 0)
    return PixelTile(pixels, whole if 2 * whole > most else most, vectors)


def divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to a limit."""
    found = [
        d for k in range(1, math.isqrt(number) + 1) if number % k == 0 for d in (k, number // k)
    ]
    return max(d for d in found if d <= max(most, 1))
