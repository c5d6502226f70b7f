"""Sizes of a recurrent layer's kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.tir.loops import constant
from ...device import Device
from ..cpu.register_tile import VectorUnit
from .problem import RecurrentProblem

VECTORS = 4  # of accumulators of a row
ROWS = 16  # of a task: each task reads all weights in every step
FEW_ROWS = 4  # for which another task is not worth reading the weights twice
PARALLEL_STEP = 1 << 18  # products of a step that are worth waking other threads for
MOST_THREADS = 512


@dataclass(frozen=True)
class CpuRecurrenceConfig:
    """A recurrent layer on a CPU."""

    lanes: int  # units of a block: whole vectors for each gate
    tile: int  # rows of a register tile
    rows: int  # rows of a task: whole tiles
    # Whether threads share the units of each step, as there is one task only.
    shares_steps: bool = False

    @classmethod
    def of(cls, problem: RecurrentProblem, device: Device) -> CpuRecurrenceConfig:
        """Fill the registers, and share rows out evenly."""
        buffers = problem.buffers
        unit = VectorUnit.of(device)
        if buffers.dtype == "float64":
            unit = unit.of_bits(64)
        gates = max(len(gates) for gates, _ in problem.layer.phases)
        vectors = max(1, VECTORS // gates)
        lanes = min(vectors, math.ceil(buffers.hidden / unit.lanes)) * unit.lanes
        most = max(1, unit.rows(gates * lanes // unit.lanes))
        batch = constant(buffers.batch)
        if batch is None:
            return cls(lanes, most, max(1, ROWS // most) * most)
        tiles = [n for n in range(most, 0, -1) if batch % n == 0 and 2 * n > most]
        tile = min(batch, most) if batch <= most or not tiles else tiles[0]
        share = math.ceil(batch / (device.cores or 4))
        rows = math.ceil(min(max(share, FEW_ROWS), ROWS) / tile) * tile
        work = gates * buffers.hidden**2 * batch
        is_one_task = problem.layer.directions == 1 and batch <= rows
        shares_steps = is_one_task and device.cores != 1 and work >= PARALLEL_STEP
        return cls(lanes, tile, rows, shares_steps)
