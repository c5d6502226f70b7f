"""Configuration of a column reduction on a GPU: threads of a column, vectors of a block."""

import math
from dataclasses import dataclass, replace

from ...core.tir.loops import constant
from ...device import Device
from ...ecg.work import at
from .reduction import ColumnReduction

LEAST_LANES = 2
MOST_THREADS = 1024
LEAST_THREADS = 64
ASSUMED_SM_COUNT = 80  # of a GPU whose number of multiprocessors is not known


@dataclass(frozen=True)
class ColumnConfig:
    """Configuration of a column reduction."""

    threads: int  # of a column, a power of two
    vectors: int  # neighbouring vectors of a block


def narrowed(view: ColumnReduction, device: Device) -> ColumnReduction:
    """Take narrower vectors where there would be fewer blocks than multiprocessors.

    Threads of one multiprocessor compute terms no faster than it does: the means of 32 channels
    want 16 blocks, though each of them loads a part of a line.
    """
    lanes = view.lanes
    batch = math.prod(at(a.extent) for a in view.batch)
    while lanes > LEAST_LANES and batch * (constant(view.k.extent) or 1) // lanes < (
        device.sm_count or ASSUMED_SM_COUNT
    ):
        lanes //= 2
    return replace(view, lanes=lanes)


def column_config(view: ColumnReduction, device: Device) -> ColumnConfig:
    """Choose threads and vectors: whole lines of memory where there are blocks enough."""
    terms = math.prod(constant(a.extent) or 1 for a in view.stage.reduce)
    count = (constant(view.k.extent) or 1) // view.lanes
    batch = math.prod(at(a.extent) for a in view.batch)
    vectors = 1
    for wider in (2, 4, 8):
        if count % wider == 0 and batch * count // wider >= (device.sm_count or ASSUMED_SM_COUNT):
            vectors = wider
    most = MOST_THREADS // vectors
    threads_ = 1 << max(0, (-(-terms // 2) - 1).bit_length())
    return ColumnConfig(max(min(threads_, most), LEAST_THREADS // vectors, 1), vectors)


def column_blocks(view: ColumnReduction, config: ColumnConfig) -> int:
    """Count the blocks of the grid."""
    count = (constant(view.k.extent) or 1) // (view.lanes * config.vectors)
    return count * math.prod(at(a.extent) for a in view.batch)


def shared_bytes(view: ColumnReduction, config: ColumnConfig) -> int:
    """Count the bytes of partial results."""
    return 4 * view.lanes * config.vectors * config.threads
