"""Layouts of image tensors, and the operators that read or write them by index maps.

A tensor of the graph is (n, c, spatial...). In memory its channels may be the last axis, whole or
in blocks:

    NHWC     x[n, h, w, c]
    NCHW16c  x[n, c // 16, h, w, c % 16]     channels behind the last one are zeros

A group reads and writes such a tensor through an ordinary operator, which moves elements and is
inlined like any other: templates see a program whose loads and stores have these indices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tvm import ir, tirx

from .._tvm.ir.buffer import declare
from ..core.tir.expressions import load
from ..core.tir.loops import index
from ..device import Device
from .stage import Axis, Stage
from .to_tir import prim_func_of

LAYOUT = "tvm_fusion.layout"  # PrimFunc attribute of an index map: name of the layout in memory
_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
_CHANNEL = 1
_UNITS = ("mma.sync", "mfma", "wmma")  # matrix instructions of GPUs
_LANES = 8  # of a CPU whose vectors are not known; elements of 16 bits in a copy of a GPU


@dataclass(frozen=True)
class Layout:
    """Where the channels of an image tensor are in memory."""

    block: int  # channels of a block, which are the last axis; 0 where all of them are

    def name(self, rank: int) -> str:
        """Name the layout of tensors of some rank, such as ``NHWC`` or ``NCHW16c``."""
        spatial = _SPATIAL[rank - 2]
        return f"NC{spatial}{self.block}c" if self.block else f"N{spatial}C"

    def shape(self, shape: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Return the extents in memory of a tensor of a shape."""
        n, c, *spatial = shape
        if not self.block:
            return [n, *spatial, c]
        blocks = -(-int(c) // self.block)
        return [n, index(blocks), *spatial, index(self.block)]

    def is_padded(self, shape: Sequence[ir.Expr]) -> bool:
        """Whether the last block of channels is not full."""
        return bool(self.block) and int(shape[_CHANNEL]) % self.block != 0

    def place(self, indices: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Return the place in memory of an element."""
        n, c, *spatial = indices
        if not self.block:
            return [n, *spatial, c]
        size = index(self.block)
        return [n, tirx.floordiv(c, size), *spatial, tirx.floormod(c, size)]

    def element(self, place: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Return the element at a place in memory."""
        if not self.block:
            n, *spatial, c = place
            return [n, c, *spatial]
        n, block, *spatial, lane = place
        return [n, block * index(self.block) + lane, *spatial]


def name_of(layout: Layout | None, rank: int) -> str:
    """Name what a tensor of some rank has for a layout, for a reader."""
    return "the layout of the graph" if layout is None else layout.name(rank)


def is_image(shape: Sequence[ir.Expr]) -> bool:
    """Whether a shape has channels, whose number is known, and more than one pixel."""
    if len(shape) - 2 not in _SPATIAL or not isinstance(shape[_CHANNEL], tirx.IntImm):
        return False
    return any(not isinstance(d, tirx.IntImm) or int(d) != 1 for d in shape[2:])


def layout_for(shape: Sequence[ir.Expr], device: Device, dtype: str = "float32") -> Layout | None:
    """Name the layout of an image that may do better than the graph's on a device.

    Blocks of a CPU are one vector register of float32. Where the last one would not be full, the
    channels are the last axis as a whole: no lane is wasted, and channels may be shuffled.
    So are those of tensor cores, to which copies of 16 bytes bring channels of one pixel, and of a
    CPU's tile registers, whose rows are 64 bytes of them.
    """
    channels = int(shape[_CHANNEL])
    if device.kind != "llvm":
        has_units = any(device.has_matrix(name, "float16") for name in _UNITS)
        return Layout(0) if has_units and channels % _LANES == 0 else None
    lanes = (device.vector_bits or 32 * _LANES) // 32
    if channels <= lanes // 2:
        return None
    has_tiles = device.has_matrix("amx", "int8" if dtype == "uint8" else dtype)
    return Layout(0 if channels % lanes or has_tiles else lanes)


def read_map(shape: Sequence[ir.Expr], dtype: str, layout: Layout) -> tirx.PrimFunc:
    """Make the operator from a tensor in a layout to the tensor of the graph.

    Parameters
    ----------
    shape
        Of the tensor of the graph; the number of channels is known.

    Returns
    -------
    tirx.PrimFunc
        The same object for equal arguments, whatever the symbols of the shape.
    """
    return _map(_sizes(shape), dtype, layout, False)


def write_map(shape: Sequence[ir.Expr], dtype: str, layout: Layout) -> tirx.PrimFunc:
    """Make the operator from a tensor of the graph to the tensor in a layout, zeros as padding.

    Parameters and result are those of :func:`read_map`.
    """
    return _map(_sizes(shape), dtype, layout, True)


def is_layout_map(func: tirx.PrimFunc | None) -> bool:
    """Whether an operator is one that reads or writes a layout."""
    return func is not None and bool(func.attrs) and LAYOUT in func.attrs


def _sizes(shape: Sequence[ir.Expr]) -> tuple[int | None, ...]:
    return tuple(int(d) if isinstance(d, tirx.IntImm) else None for d in shape)


@lru_cache(maxsize=4096)
def _map(sizes: tuple[int | None, ...], dtype: str, layout: Layout, writes: bool) -> tirx.PrimFunc:
    shape = [tirx.Var(f"d{k}", "int64") if s is None else index(s) for k, s in enumerate(sizes)]
    graph = declare(shape, dtype, "x")
    memory = declare(layout.shape(shape), dtype, "laid_out")
    source, target = (graph, memory) if writes else (memory, graph)
    axes = tuple(
        Axis(ir.Var(f"i{k}", ir.PrimType("int64")), extent)
        for k, extent in enumerate(target.ty.shape)
    )
    at = [axis.var for axis in axes]
    where = layout.element(at) if writes else layout.place(at)
    value: ir.Expr = load(source, where)
    if writes and layout.is_padded(shape):
        inside = where[_CHANNEL] < shape[_CHANNEL]
        value = tirx.if_then_else(inside, value, tirx.const(0, dtype))
    name = ("to_" if writes else "from_") + layout.name(len(sizes))
    stage = Stage(name, axes, (), (target,), (tuple(at),), (value,), None)
    func = prim_func_of([stage], [source, target], [], name)
    return func.without_attr("global_symbol").with_attr(LAYOUT, layout.name(len(sizes)))
