"""Sorts by ranks, on a CPU.

tasks in parallel: (row, some of its tiles of elements)
  keys = the row's, side by side, its last one again behind it
  for tile of elements:
    rank[elements] = 0                                          a vector register
    for key before the tile:  rank += key <= own
    for key of the tile:      rank += key < own or (key == own and its number is less)
    for key behind the tile:  rank += key < own
    for element:  y[rank] = own, places[rank] = its number      of topk where the rank is below k
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ...core.tir.loops import (
    block,
    coordinates,
    index,
    local,
    loop,
    sequence,
    tasks,
    vectorized,
    when,
)
from ...device import Device
from ..cpu.schedule import CORES, PARALLEL_WORK, VectorRegisters
from .problem import SortProblem


@dataclass(frozen=True)
class CpuRankSortConfig:
    """Tiles of a row, and its tasks."""

    elements: int  # of a tile: the keys of a vector register
    tiles: int  # of a row
    parts: int  # tasks of a row
    is_parallel: bool  # whether threads share the tasks

    @classmethod
    def of(cls, problem: SortProblem, device: Device) -> CpuRankSortConfig:
        """Share rows out to threads, and tiles where there are few rows."""
        elements = VectorRegisters.of(device).lanes * 4 // problem.bytes
        tiles = -(-problem.keys // elements)
        is_parallel = problem.rows * tiles * problem.keys >= PARALLEL_WORK
        parts = -(-2 * (device.cores or CORES) // problem.rows) if is_parallel else 1
        return cls(elements, tiles, min(parts, tiles), is_parallel)


def sort_cpu(problem: SortProblem, config: CpuRankSortConfig) -> tirx.Stmt:
    """Write the loop over tasks."""
    return _RankSort(problem, config).tasks()


class _RankSort:
    def __init__(self, problem: SortProblem, config: CpuRankSortConfig) -> None:
        self.problem, self.config = problem, config
        dtype = str(problem.source.dtype)
        # Counts are as wide as keys: what a comparison gives is added as it is.
        self.count_type = "int64" if problem.bytes == 8 else "int32"
        self.keys = local("keys", [config.tiles * config.elements], dtype)
        self.rank = local("rank", [config.elements], self.count_type)

    def tasks(self) -> tirx.Stmt:
        """Write all tasks."""
        problem, config = self.problem, self.config
        each = -(-config.tiles // config.parts)

        def task(number: ir.Expr) -> tirx.Stmt:
            row, part = coordinates(number, [problem.rows, config.parts])
            at = coordinates(row, problem.others)
            count = tirx.min(index(each), config.tiles - part * each)
            tiles = loop(
                "tile",
                each if config.parts == 1 else count,
                lambda n: self._tile(at, part * each + n),
            )
            return block("ranks", sequence([self._copy(at), tiles]), [self.keys])

        return tasks(problem.rows * config.parts, task, config.is_parallel)

    def _copy(self, row: list[ir.Expr]) -> tirx.Stmt:
        last = index(self.problem.keys - 1)

        def one(n: ir.Expr) -> tirx.Stmt:
            place = self.problem.place(row, tirx.min(n, last))
            return tirx.BufferStore(self.keys, tirx.BufferLoad(self.problem.source, place), [n])

        return loop("n", self.config.tiles * self.config.elements, one)

    def _tile(self, row: list[ir.Expr], tile: ir.Expr) -> tirx.Stmt:
        problem, elements = self.problem, self.config.elements
        first = tile * elements
        existing = tirx.min(index(elements), problem.keys - first)
        zero = tirx.const(0, self.count_type)
        clear = vectorized(elements, lambda e: tirx.BufferStore(self.rank, zero, [e]))

        def strictly(key: ir.Expr, own: ir.Expr) -> ir.Expr:
            return key > own if problem.falls else key < own

        def weakly(key: ir.Expr, own: ir.Expr) -> ir.Expr:
            return key >= own if problem.falls else key <= own

        def by_number(j: ir.Expr) -> tirx.Stmt:
            def before(key: ir.Expr, own: ir.Expr, e: ir.Expr) -> ir.Expr:
                return tirx.any(strictly(key, own), tirx.all(tirx.EQ(key, own), j < e))

            return self._add(first, first + j, before)

        def before_tile(j: ir.Expr) -> tirx.Stmt:
            return self._add(first, j, lambda key, own, e: weakly(key, own))

        def behind_tile(j: ir.Expr) -> tirx.Stmt:
            return self._add(first, first + elements + j, lambda key, own, e: strictly(key, own))

        behind = tirx.max(problem.keys - first - elements, index(0))
        return block(
            "tile",
            sequence(
                [
                    clear,
                    loop("j", first, before_tile),
                    loop("j", existing, by_number),
                    loop("j", behind, behind_tile),
                    loop("e", existing, lambda e: self._place(row, first + e, e)),
                ]
            ),
            [self.rank],
        )

    def _add(
        self, first: ir.Expr, j: ir.Expr, before: Callable[[ir.Expr, ir.Expr, ir.Expr], ir.Expr]
    ) -> tirx.Stmt:
        """Compare one key with a tile's."""

        def lane(e: ir.Expr) -> tirx.Stmt:
            key, own = tirx.BufferLoad(self.keys, [j]), tirx.BufferLoad(self.keys, [first + e])
            hit = tirx.Cast(self.count_type, before(key, own, e))
            return tirx.BufferStore(self.rank, tirx.BufferLoad(self.rank, [e]) + hit, [e])

        return vectorized(self.config.elements, lane)

    def _place(self, row: list[ir.Expr], number: ir.Expr, e: ir.Expr) -> tirx.Stmt:
        """Write the key, or its number, where its rank is."""
        problem, place = self.problem, tirx.Var("place", "int64")
        key = tirx.BufferLoad(self.keys, [number])
        stores = []
        for target, is_value in problem.targets:
            value = tirx.Cast(str(target.dtype), key if is_value else number)
            stores.append(tirx.BufferStore(target, value, problem.place(row, place)))
        if problem.kept < problem.keys:
            stores = [when(place < problem.kept, sequence(stores))]
        rank = tirx.Cast("int64", tirx.BufferLoad(self.rank, [e]))
        return sequence([tirx.Bind(place, rank), *stores])
