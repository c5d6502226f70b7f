"""Reading a product as a tiled GEMM for tensor cores, of any tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import NamedTuple

from tvm import DataType, tirx

from ....core.loops import constant, product
from ....device import Device
from ....ecg.work import at
from ....program.stage import Axis
from ...instructions.nvidia import FLOAT8_TYPES, HALF_TYPES, SUM_TYPES
from ...instructions.table import find
from ..problem.gemm_view import GemmView, gemm_view
from ..problem.ragged_rows import ragged_rows
from ..problem.result_traffic import outgrows_l2
from ..problem.sum_of_products import SumOfProducts, reads_windows
from .config import TileGemmConfig, narrow_operand, narrowed
from .operand import OperandTile
from .ragged_tiles import RaggedTiles
from .result_vectors import result_vectors
from .shape import TileShape

LEAST_ROWS, LEAST_COLUMNS, LEAST_K = 9, 8, 16  # of a tile that is worth its instructions
ROWS_OF_SYMBOLIC_M = 512
START_BLOCK_K_BYTES = 128  # before a tile is chosen


class Sizes(NamedTuple):
    """How large a product is: matrices, and rows, columns and terms of each."""

    batch: int
    m: int
    n: int
    k: int

    def row_tiles(self, block_m: int) -> int:
        """Count the tiles of rows, of all matrices."""
        return self.batch * -(-self.m // block_m)


class RaggedSizes(Sizes):
    """The same of a matrix for each group of ragged rows, of which ``m`` is the mean."""

    def row_tiles(self, block_m: int) -> int:
        """Guess: of a group that is longer or shorter than the mean half of a tile is empty.

        On an H100, 64 groups of 128 rows on the average, 2048x1024: 138 us with tiles of 128 rows,
        117 with those of 64.
        """
        return math.ceil(self.batch * max(1.0, self.m / block_m + 0.5))


def gemm_problem(
    contraction: SumOfProducts, device: Device, least_rows: int = LEAST_ROWS
) -> TileGemmConfig | None:
    """Read a product of types that tensor cores multiply as a tiled GEMM, of any tile.

    Parameters
    ----------
    least_rows : int
        With fewer there is none.
    """
    if contraction.dtype not in SUM_TYPES:
        return None
    if device.kind != "cuda":
        return None
    initial = contraction.initial
    if not isinstance(initial, tirx.FloatImm | tirx.IntImm) or float(initial.value) != 0:
        return None
    ragged, found = None, ragged_rows(contraction)
    if found is not None:
        contraction, ragged = found[0], RaggedTiles.of(found[1])
    view = gemm_view(contraction, allows_conditions=True)
    if view is None or not view.m_axes:
        return None
    if ragged is not None:
        if view.batch or view.m_axes != (ragged.rows,):
            return None
        view = replace(view, batch=(ragged.groups,))
    if any(constant(a.extent) is None for a in (*view.n_axes, *view.k_axes)):
        return None
    sizes = gemm_sizes(view)
    if sizes.m < least_rows or sizes.n < LEAST_COLUMNS or sizes.k < LEAST_K:
        return None
    typed = (_typed(view, contraction, types, device, ragged) for types in _types(view))
    return next((start for start in typed if start is not None), None)


def _types(view: GemmView) -> Iterator[tuple[str, str]]:
    """List types of A and B that hold their values, the narrowest first.

    float8 is exact in float16, whose tensor cores transpose a tile, and which every device has.
    """
    a, b = (str(narrow_operand(x).ty.dtype) for x in (view.a, view.b))
    yield a, b
    halves = {x for x in (a, b) if x in HALF_TYPES}
    if {a, b} <= {*FLOAT8_TYPES, *halves} and len(halves) < 2:
        half = halves.pop() if halves else "float16"
        if (half, half) != (a, b):
            yield half, half


def _typed(
    view: GemmView,
    contraction: SumOfProducts,
    types: tuple[str, str],
    device: Device,
    ragged: RaggedTiles | None,
) -> TileGemmConfig | None:
    """Read a product in types of A and B; ``None`` where no instruction multiplies them."""
    mma = find(device, "mma.sync", *types)
    a, b = (narrowed(x, dtype) for x, dtype in zip((view.a, view.b), types, strict=True))
    if mma is None or mma.sums != contraction.dtype or a is None or b is None:
        return None
    n_axes, parts = _without_parts(view, contraction, mma.n)
    if not n_axes or (parts > 1 and mma.kind not in HALF_TYPES):
        return None
    given = (view.batch, view.m_axes, n_axes, view.k_axes, a, b)
    block_k = START_BLOCK_K_BYTES // int(DataType(types[0]).itemsize)
    shape = TileShape(*types, 64, 64, block_k, 2, 2, parts=parts)
    shape = replace(shape, is_async=device.async_copy, has_clusters=device.clusters)
    start = TileGemmConfig(*given, **asdict(shape), contraction=contraction, ragged=ragged)
    batch, m, n, _ = gemm_sizes(start)
    start = replace(
        start,
        is_streamed=outgrows_l2(contraction.results, view.m_axes, n_axes, batch * m * n, device),
    )
    tiles = [OperandTile(start, is_a) for is_a in (True, False)]
    if ragged is not None and (not tiles[0].is_k_contiguous or result_vectors(start).is_along_m):
        return None  # the first row of a tile is no multiple of a vector's
    staged_a, staged_b = (not tile.is_copied for tile in tiles)
    if mma.kind == "tfloat32":
        if any(tile.is_gathered for tile in tiles):
            return None  # most convolutions: CUDA cores
        start = replace(start, staged_a=staged_a, staged_b=staged_b)
        return start if device.rounds_to_tf32 else replace(start, products=3)
    if mma.kind == "float8" and (staged_a or staged_b):
        return None  # float16 has vector loads, and transposes tiles
    return replace(start, staged_a=staged_a, staged_b=staged_b)


def _without_parts(
    view: GemmView, contraction: SumOfProducts, columns: int
) -> tuple[tuple[Axis, ...], int]:
    """Return the axes of N without that of a column split's parts, and how many parts.

    No axes where the split is not one of the last axis of N, or has panels of so many
    columns across its periods.
    """
    split = contraction.column_split
    if split is None:
        return view.n_axes, 1
    if split.position is not view.n_axes[-1] or split.part not in view.n_axes:
        return (), 1
    left = tuple(a for a in view.n_axes if a is not split.part)
    return () if len(left) > 1 and split.width % columns else left, split.count


def assumed_rows(problem: TileGemmConfig) -> int:
    """Guess M where it is symbolic: few rows of matrices, the pixels of whole images."""
    if not reads_windows(problem.contraction):
        return ROWS_OF_SYMBOLIC_M
    return math.prod(at(a.extent) for a in problem.m_axes)


def gemm_sizes(view: GemmView, rows: int = ROWS_OF_SYMBOLIC_M) -> Sizes:
    """Count; a symbolic M is guessed."""
    m = constant(product([a.extent for a in view.m_axes]))
    batch = math.prod(at(a.extent) for a in view.batch)
    n, k = (int(product([a.extent for a in axes])) for axes in (view.n_axes, view.k_axes))
    if isinstance(view, TileGemmConfig):
        n *= view.parts
        if view.ragged is not None:
            return RaggedSizes(batch, -(-(rows if m is None else m) // batch), n, k)
    return Sizes(batch, rows if m is None else m, n, k)
