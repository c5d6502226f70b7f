"""Configuration of an elementwise kernel on a GPU: how blocks compute each iteration space.

a transposed load that tiles cover:   shared-memory transpose                (TransposeConfig)
outputs that are whole vectors:       vectors of 16 bytes                    (VectorConfig)
else:                                 a point for each thread                (PointConfig)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from ....core.contract.kernel_work import KernelWork
from ....core.tir.expressions import variables
from ....core.tir.loops import constant, index
from ....ecg.work import at
from ....program.stage import Axis, Stage
from ...gpu.launch import STATIC_SHARED_BYTES, VECTOR_BYTES, VECTOR_TYPES
from ...gpu.threads.warp import LANES
from ...index.address import offset, same, stride
from ...index.estimate import operations
from ..group_maps import iteration_spaces
from ..guarded_loads import bytes_of, guarded_loads
from ..iteration_space import TILED_STRIDE, IterationSpace
from .alignment import WORD, aligned_width, have_same_alignment, overlap_of, shift_of, step_of
from .transpose_config import ROW, TransposeConfig
from .vectors import VectorConfig, vectors

# Registers of a thread as ptxas allocates them, fitted to 170 kernels for sm_90a.
MIN_REGISTERS = 8
TILE_REGISTERS = 20
ADDRESS_REGISTERS = 2
STRAIGHT_REGISTERS = 6  # of a vector of another operand besides a tile
ALIGN_REGISTERS = 4  # of vectors that begin before their row
# 3.8 ps at a third of the float32 rate: on one H200, an image doubled to 512 x 512 pixels of 256
# channels, read channels first and written channels last, took 289 us, and 40 by its bytes; one of
# 256 x 256 pixels of 512 channels 148 us and 20 (benchmarks/gpu_models).
OPERATIONS_A_STRIDED_LOAD = 64
MIN_LANES = 16  # of the last axis: fewer lanes read neighbours along another one
# Loads of more registers are moved behind first uses: 256 threads of 8 blocks fill the file.
MAX_REGISTERS = 32


@dataclass(frozen=True)
class PointConfig:
    """A thread for each point of an iteration space."""

    space: IterationSpace  # what is computed


@dataclass(frozen=True, eq=False)
class ElementwiseGpuConfig:
    """Configuration of an elementwise kernel: decided by the claim, consumed by its emission."""

    # For each iteration space, how its own range of blocks computes it.
    ranges: tuple[TransposeConfig | VectorConfig | PointConfig, ...]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, which has the tiles of all ranges."""
        return sum(c.shared_bytes for c in self.ranges if isinstance(c, TransposeConfig))

    @property
    def registers(self) -> int:
        """Registers of a thread, mostly within 25 % of ptxas."""
        return max(map(registers_of, self.ranges), default=MIN_REGISTERS)

    @property
    def strided_operations(self) -> int:
        """Operations in the time of loads of which each lane has a cache line of its own."""
        return OPERATIONS_A_STRIDED_LOAD * sum(map(_strided_loads, self.ranges))

    @property
    def work(self) -> KernelWork:
        """Elements that threads load and store one by one."""
        loads = sum(_single_loads(c) * _points(c.space) for c in self.ranges)
        points = [c for c in self.ranges if isinstance(c, PointConfig)]
        stores = sum(len(c.space.outputs) * _points(c.space) for c in points)
        return KernelWork(element_loads=float(loads), element_stores=float(stores))


def elementwise_gpu_config(
    stages: Sequence[Stage], kept: frozenset[ir.Var]
) -> ElementwiseGpuConfig:
    """Choose how to compute each iteration space.

    Parameters
    ----------
    stages
        Maps, those that are internal inlined but for ``kept``.
    kept
        Internal maps that live in registers.
    """
    ranges: list[TransposeConfig | VectorConfig | PointConfig] = []
    left = STATIC_SHARED_BYTES
    for space in iteration_spaces(stages, kept):
        tiles = transpose_config(space, left)
        if tiles is not None:
            left -= tiles.shared_bytes
        ranges.append(tiles or vectors(space) or PointConfig(space))
    return ElementwiseGpuConfig(tuple(ranges))


def registers_of(config: TransposeConfig | VectorConfig | PointConfig) -> int:
    """Estimate the registers of a thread of a range of blocks."""
    space = config.space
    work = operations(*(store.value for store in space.stores))
    if isinstance(config, TransposeConfig):
        aligned = bool(config.shift) + any(config.overlaps)
        rest = STRAIGHT_REGISTERS * len(config.straight) + ALIGN_REGISTERS * aligned
        return TILE_REGISTERS + rest + work // 4
    elements = _distinct(space.loads)
    count = MIN_REGISTERS + ADDRESS_REGISTERS * (len(elements) + len(space.outputs) - 1)
    if isinstance(config, PointConfig):
        return count + work // 8
    each, last = config.width * config.per_thread, space.variables[-1]
    whole = [load.element for load in config.loads]
    single = [
        x
        for x in elements
        if not any(same(x, other) for other in whole)
        and any(last in variables(i) for i in x.indices)
    ]
    held = sum(map(bytes_of, whole)) * each // 4 + sum(map(bytes_of, single)) * each // 8
    return min(count + held + config.per_thread - 1 + 7 * work // 16, MAX_REGISTERS)


def _strided_loads(config: TransposeConfig | VectorConfig | PointConfig) -> int:
    """Count the loads with a long stride along the last axis that no tile transposes."""
    space = config.space
    if not space.axes or at(space.axes[-1].extent) < MIN_LANES:
        return 0
    tiles = config.transposed if isinstance(config, TransposeConfig) else ()
    count = 0
    for load in _distinct(space.loads):
        if any(same(load, tile.element) for tile in tiles):
            continue
        place = offset(load.source, load.indices)
        found = stride(place, space.variables[-1], space.variables)
        step = constant(index(0) if found is None else found)
        count += step is not None and abs(step) >= TILED_STRIDE
    return count * _points(space)


def _points(space: IterationSpace) -> int:
    return math.prod(at(axis.extent) for axis in space.axes)


def _single_loads(config: TransposeConfig | VectorConfig | PointConfig) -> int:
    """Count the loads of a point that are no part of a vector or tile, nor the same for a row."""
    space = config.space
    if not space.axes:
        return 0
    whole: Sequence[ir.TensorLoad] = ()
    if isinstance(config, VectorConfig):
        whole = [load.element for load in config.loads]
    elif isinstance(config, TransposeConfig):
        whole = [*(tile.element for tile in config.transposed), *config.straight]
    last = space.variables[-1]
    return sum(
        any(last in variables(i) for i in load.indices)
        for load in _distinct(space.loads)
        if not any(same(load, other) for other in whole)
    )


def _distinct(loads: Sequence[ir.TensorLoad]) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []
    for load in loads:
        if not any(same(load, other) for other in found):
            found.append(load)
    return found


# Choose the tiles of a shared-memory transpose.
MIN_COLUMNS = 16  # of the last axis: of fewer, most of a tile would be empty


def transpose_config(
    space: IterationSpace, shared_bytes: int = STATIC_SHARED_BYTES
) -> TransposeConfig | None:
    """Choose tiles; ``None`` where nothing is transposed, or tiles do not cover it.

    Parameters
    ----------
    shared_bytes
        Shared memory that is left.
    """
    across = space.transposed_axis()
    if across is None:
        return None
    row, last = space.axes[across], space.axes[-1]
    if (constant(last.extent) or MIN_COLUMNS) < MIN_COLUMNS:
        return None
    sides = [(s.buffer, offset(s.buffer, s.indices)) for s in space.outputs]
    if any(str(s.buffer.ty.dtype) not in VECTOR_TYPES for s in space.stores) or any(
        step_of(space, place, last) != 1 for _, place in sides
    ):
        return None
    found = guarded_loads(space)
    transposed = tuple(r for r in found if _is_transposed(space, r.element, row, last))
    if not transposed:
        return None
    shift = shift_of(space)
    if shift:
        width = VECTOR_BYTES // max(bytes_of(buffer) for buffer, _ in sides)
    else:
        width = min(aligned_width(space, place, last, bytes_of(buffer)) for buffer, place in sides)

    def is_straight(found: ir.TensorLoad) -> bool:
        place = offset(found.source, found.indices)
        if step_of(space, place, last) != 1:
            return False
        if shift:
            return have_same_alignment(place, sides[0][1], width)
        return aligned_width(space, place, last, bytes_of(found)) >= width

    straight = tuple(r.element for r in found if r.condition is None and is_straight(r.element))
    per_word = max(WORD // bytes_of(r.element) for r in transposed)
    words = _words(constant(row.extent), constant(last.extent), per_word)
    overlaps = tuple(overlap_of(space, r, row) for r in transposed)
    config = TransposeConfig(
        space, across, transposed, straight, width, per_word, words, shift, overlaps
    )
    return config if config.shared_bytes <= shared_bytes else None


def _words(across: int | None, last: int | None, per_word: int) -> int:
    """Choose the length of a tile's rows; their number follows."""
    if last is not None and last <= LANES:
        return 2 * ROW
    short = (
        words for words in (ROW // 4, ROW // 2) if across is not None and across <= words * per_word
    )
    return next(short, ROW)


def _is_transposed(space: IterationSpace, found: ir.TensorLoad, row: Axis, last: Axis) -> bool:
    place = offset(found.source, found.indices)
    away = stride(place, last.var, space.variables)
    size = None if away is None else constant(away)
    return (
        str(found.ty.dtype) in VECTOR_TYPES
        and away is not None
        and (size is None or abs(size) >= TILED_STRIDE)
        and step_of(space, place, row) == 1
    )
