"""Configuration of a prefix sum: decided by the claim, consumed by its emission."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import DataType, ir

from ...core.tir.loops import ceildiv, constant, product
from ...device import Device
from ..gpu.launch import VECTOR_BYTES, VECTOR_TYPES
from .problem import PrefixSumProblem

MIN_THREADS = 128  # of a block: short rows share one
MAX_THREADS = 512  # of a row: several blocks fit, and hide each other's latency
SYMBOLIC_ROW = 2048  # what an unknown row is taken for
COLUMNS = 256  # of a CPU's task: a kilobyte of a line, for the bandwidth of memory
FEW_TASKS = 16  # below which narrower blocks balance better
NARROW = 64
# Registers of a thread as ptxas allocates them, fitted to 24 kernels for sm_90a: besides its
# elements and the totals of all warps, and for elements that are accessed one by one.
BASE_REGISTERS = 11
MASK_REGISTERS = 6


@dataclass(frozen=True)
class RowScanConfig:
    """Prefix sums along rows on a GPU."""

    # Threads of a block: rows, warps of a row, lanes of a warp.
    rows: int
    warps: int
    lanes: int
    width: int  # elements of a thread in one round
    is_vector: bool  # whether these are a vector: of every row's elements, or of none
    rounds: ir.Expr  # rounds over a row
    bytes: int  # of an element of the sums
    held: int = 0  # vectors of operands and results of maps around the sum

    @classmethod
    def of(cls, scan: PrefixSumProblem, device: Device) -> RowScanConfig:
        """Choose threads: as many as a row has vectors, short rows together."""
        lanes = device.warp_size or 32
        most = min(device.max_threads_per_block or 1024, MAX_THREADS)
        width = VECTOR_BYTES // scan.itemsize
        length = constant(scan.length)
        is_vector = scan.types <= VECTOR_TYPES and (length or 1) % width == 0
        vectors = math.ceil((length or SYMBOLIC_ROW) / width)
        warps = min(math.ceil(vectors / lanes), most // lanes)
        rows = max(1, MIN_THREADS // (warps * lanes))
        rounds = ceildiv(scan.length, warps * lanes * width)
        size = DataType(scan.dtype).itemsize
        held = 0 if scan.is_plain else len(scan.inputs) + len(scan.outputs) - 1
        return cls(rows, warps, lanes, width, is_vector, rounds, size, held)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the totals of warps."""
        return self.rows * self.warps * self.bytes if self.warps > 1 else 0

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_claims_against_ptxas."""
        totals = self.warps if self.warps > 1 else 0
        rest = 0 if self.is_vector else MASK_REGISTERS
        vectors = self.width * (1 + self.held)
        return BASE_REGISTERS + rest + (vectors + totals) * self.bytes // 4


@dataclass(frozen=True)
class ColumnScanConfig:
    """Prefix sums along an axis before the last on a CPU."""

    columns: int  # columns of a task; the remainder is halved until it is none

    @classmethod
    def of(cls, scan: PrefixSumProblem) -> ColumnScanConfig:
        """Choose wide tasks where there are many."""
        shape = scan.shape
        slices = constant(product(shape[: scan.axis]))
        columns = constant(product(shape[scan.axis + 1 :]))
        if columns is None:
            return cls(NARROW)
        is_many = slices is None or slices * columns >= FEW_TASKS * COLUMNS
        return cls(COLUMNS if is_many else NARROW)
