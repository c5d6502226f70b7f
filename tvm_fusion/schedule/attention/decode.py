"""How attention of few rows is cut for a GPU: keys and values are read once, in vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import DataType, ir, sym, tirx
from tvm.target import Target

from ...device import Device, parse
from ...ecg.work import at
from ...fusion.expressions import loads, variables
from ...fusion.program import Axis
from ..address import conditions_of, is_aligned, offset, same, stride
from ..gpu.launch import VECTOR_BYTES, has_tensor_cores
from ..loops import constant, index, product, substitute, threads
from .pattern import Pattern
from .sharing import Sharing
from .tensor_cut import (
    SHARED_BYTES,
    TENSOR_KEYS,
    TENSOR_ROWS,
    is_tensor_work,
    staged,
    staged_bytes,
)

MOST_ROWS = 16  # that share keys and values; more of them fill tiles
LEAST_KEYS = 256  # below which a second launch costs more than it gives
LANES = 16  # threads that share a key at most: each sum over them is a chain of exchanges
REGISTERS = 128  # elements of queries and results of a thread
THREADS = 256
RESIDENT = 512  # threads that a multiprocessor holds, each with its rows in registers
AHEAD = 4  # keys that a thread asks for at once
MOST_SPLITS = 128
FILLED = 0.9  # of the places of the last wave of blocks, from which on a number of splits will do


@dataclass(frozen=True)
class Decode:
    """How the keys of attention of few rows are given to blocks and threads.

    Attributes
    ----------
    pattern : Pattern
        The attention.
    sharing : Sharing
        Its rows.
    keys, values : tuple of TensorLoad
        Reads of keys and values in vectors.
    width : int
        Elements of a vector.
    lanes : int
        Threads that share a key; vectors of it take turns among them.
    groups : int
        Keys side by side in a block.
    ahead : int
        Keys that a thread asks for at once.
    rows : int
        Rows of a block.
    splits : int
        Blocks that share the keys of some rows.
    warp : int
        Threads of a warp.
    resident : int
        Blocks that a multiprocessor holds at once.
    combining : int
        Threads that share a column when splits are combined.
    stages : int
        Steps whose keys and values are asked for before they are needed, on tensor cores: a group
        is a warp then, which has ``ahead`` keys. 0: threads multiply.
    """

    pattern: Pattern
    sharing: Sharing
    keys: tuple[ir.TensorLoad, ...]
    values: tuple[ir.TensorLoad, ...]
    width: int
    lanes: int
    groups: int
    ahead: int
    rows: int
    splits: int
    warp: int
    resident: int
    combining: int
    stages: int

    @property
    def is_tensor(self) -> bool:
        """Whether warps multiply on tensor cores."""
        return self.stages > 0

    @property
    def depth(self) -> int:
        """Elements of a key."""
        return int(self.pattern.depth.extent)

    @property
    def columns(self) -> int:
        """Elements of a value."""
        return int(self.pattern.column.extent)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

    @property
    def pairs(self) -> ir.Expr:
        """Number of different keys and values."""
        return product(self.sharing.extents)

    @property
    def parts(self) -> int:
        """Blocks that share all rows of some keys."""
        return -(-self.sharing.count // self.rows)

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of the first launch."""
        return product([self.pairs, self.parts, self.splits])

    @property
    def step(self) -> int:
        """Keys that a block takes in at once."""
        return self.groups * self.ahead

    @property
    def round(self) -> int:
        """Keys that all blocks which share them take in at once, side by side."""
        return self.step * self.splits

    @property
    def is_even(self) -> bool:
        """Whether all blocks have the same number of keys."""
        count = constant(self.pattern.key.extent)
        return count is not None and count % self.round == 0

    @property
    def together(self) -> int:
        """Rows that a block adds up in shared memory at once."""
        return min(self.rows, max(1, SHARED_BYTES // (4 * self.groups * self.pitch)))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block of the first launch."""
        found = 4 * self.groups * (self.together * self.pitch + 2 * self.rows)
        return found + self.stages * self.groups * staged_bytes(self.pattern)

    @property
    def pitch(self) -> int:
        """Elements from one row of results to the next in shared memory."""
        return self.columns // 8 * 9 + 1 if self.is_tensor else self.columns

    def place(self, row: ir.Expr, column: ir.Expr) -> ir.Expr:
        """Say where in shared memory a result is.

        The threads of a warp that multiplied store columns that lie eight apart at once, of several
        rows: with gaps behind every eight, and behind a row, they are in different banks.
        """
        gaps = tirx.floordiv(column, index(8)) if self.is_tensor else index(0)
        return row * self.pitch + column + gaps

    def every(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(group, lane)`` in every thread."""

        def group(g: ir.Expr) -> tirx.Stmt:
            return threads("threadIdx.x", self.lanes, lambda t: body(g, t))

        return threads("threadIdx.y", self.groups, group)


def decode(pattern: Pattern, target: Target | Device) -> Decode | None:
    """Cut attention of few rows; ``None`` where many share keys, or these are not read in vectors.

    Parameters
    ----------
    pattern : Pattern
        The attention.
    target : Target or Device
        A GPU.
    """
    device = target if isinstance(target, Device) else parse(target).device
    sharing = Sharing.of(pattern)
    if sharing is None or sharing.count > MOST_ROWS:
        return None
    if (constant(pattern.key.extent) or LEAST_KEYS) < LEAST_KEYS:
        return None
    keys = streamed(pattern, pattern.k, pattern.depth)
    values = streamed(pattern, pattern.v, pattern.column)
    if not keys or not values:
        return None
    pairs_of = [(x, pattern.k, pattern.depth) for x in keys]
    pairs_of += [(x, pattern.v, pattern.column) for x in values]
    if not all(_is_whole(*pair) for pair in pairs_of):
        return None
    width = width_of([(x, pattern.depth) for x in keys] + [(x, pattern.column) for x in values])
    if width is None:
        return None
    vectors = [int(a.extent) // width for a in (pattern.depth, pattern.column)]
    lanes = LANES
    while any(v % lanes for v in vectors):
        lanes //= 2
    held = sum(v // lanes for v in vectors) * width  # of a row
    ahead, rows = AHEAD, min(sharing.count, REGISTERS // held)
    most = device.max_threads_per_block or 1024
    groups, stages, resident = min(THREADS, most) // lanes, 0, RESIDENT // THREADS
    is_tensor = has_tensor_cores(device) and is_tensor_work(pattern, keys, values, width)
    if is_tensor:
        lanes, ahead, rows = device.warp_size or 32, TENSOR_KEYS, min(sharing.count, TENSOR_ROWS)
        resident = 1
    if rows == 0 or groups == 0:
        return None
    rows = -(-sharing.count // -(-sharing.count // rows))
    pairs = at(product(sharing.extents)) * -(-sharing.count // rows)
    splits = _splits(pairs, (device.sm_count or 1) * resident)
    count = constant(pattern.key.extent)
    if is_tensor:
        of_block = None if count is None else count // splits
        groups, stages = staged(pattern, rows, of_block, device)
    if count is not None:
        splits = min(splits, -(-count // (groups * ahead)))  # each has keys
    combining = max(1, min(THREADS, most) // int(pattern.column.extent))
    return Decode(
        *(pattern, sharing, keys, values, width, lanes, groups, ahead, rows, splits),
        *(device.warp_size or 32, resident, combining, stages),
    )


def _is_whole(load: ir.TensorLoad, operand: ir.Expr, along: Axis) -> bool:
    """Whether all elements of a vector are read, or none is."""
    try:
        conditions = conditions_of(load, operand)
    except ValueError:
        return False
    return not any(along.var in variables(c) or loads(c) for c in conditions)


def _splits(pairs: int, slots: int) -> int:
    """Choose the fewest parts of the keys that keep the device's places for blocks filled."""
    first = max(1, min(slots // pairs, MOST_SPLITS))
    for splits in range(first, first + 8):
        blocks = pairs * splits
        if blocks >= FILLED * slots * -(-blocks // slots):
            return splits
    return first


def streamed(pattern: Pattern, operand: ir.Expr, along: Axis) -> tuple[ir.TensorLoad, ...]:
    """List the different reads that lie along an axis; none if one lies in another way."""
    axes = [a.var for a in (*pattern.batch, pattern.key, along)]
    found: list[ir.TensorLoad] = []
    for x in loads(operand):
        if along.var not in variables(x) or any(same(x, y) for y in found):
            continue
        step = stride(offset(x.source, x.indices), along.var, axes)
        if step is None or constant(step) != 1:
            return ()
        found.append(x)
    return tuple(found)


def width_of(streamed: Sequence[tuple[ir.TensorLoad, Axis]]) -> int | None:
    """Choose the elements of a vector: of the widest that begins where it may, always."""
    size = max(DataType(str(x.ty.dtype)).itemsize for x, _ in streamed)
    vector, analyzer = tirx.Var("vector", "int64"), sym.Analyzer()

    def fits(width: int) -> bool:
        return all(
            int(axis.extent) % width == 0
            and is_aligned(
                substitute(offset(x.source, x.indices), {axis.var: vector * width}), width, analyzer
            )
            for x, axis in streamed
        )

    return next((n for n in (8, 4, 2) if n * size <= VECTOR_BYTES and fits(n)), None)
