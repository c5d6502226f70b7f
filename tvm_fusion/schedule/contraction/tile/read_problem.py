"""Reading a product as a tiled GEMM for tensor cores, of any tile."""

from collections.abc import Iterator
from dataclasses import replace

from tvm import tirx

from ....core.tir.loops import constant
from ....device import Device
from ....program.stage import Axis
from ...instructions.nvidia import FLOAT8_TYPES, HALF_TYPES, SUM_TYPES
from ...instructions.table import find_of_fragments
from ..problem.gemm_view import GemmView, gemm_view
from ..problem.ragged_rows import ragged_rows
from ..problem.result_traffic import outgrows_l2
from ..problem.sum_of_products import SumOfProducts
from .config import narrow_operand, narrowed
from .operand.chunks import OperandChunks
from .problem import GemmProblem, gemm_sizes
from .ragged_tiles import RaggedTiles
from .results.adjacent_columns import LEAST_WIDTH, AdjacentColumns, adjacent_columns
from .results.vectors import result_vectors

MOST_PERIOD = 64  # columns of a column split's period that tiles have whole
LEAST_ROWS, LEAST_COLUMNS, LEAST_K = 9, 8, 16  # of a tile that is worth its instructions


def gemm_problem(
    contraction: SumOfProducts, device: Device, least_rows: int = LEAST_ROWS
) -> GemmProblem | None:
    """Read a product of types that tensor cores multiply as a tiled GEMM, of any tile.

    Parameters
    ----------
    least_rows
        With fewer there is none.
    """
    if contraction.dtype not in SUM_TYPES:
        return None
    initial = contraction.initial
    if not isinstance(initial, tirx.FloatImm | tirx.IntImm) or float(initial.value) != 0:
        return None
    contraction = adjacent_columns(contraction) or contraction
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
) -> GemmProblem | None:
    """Read a product in types of A and B; ``None`` where no instruction multiplies them."""
    mma = find_of_fragments(device, *types)
    a, b = (narrowed(x, dtype) for x, dtype in zip((view.a, view.b), types, strict=True))
    if mma is None or mma.sums != contraction.dtype or a is None or b is None:
        return None
    n_axes, parts = _without_parts(view, contraction, mma.n)
    if not n_axes or (parts > 1 and mma.kind not in HALF_TYPES):
        return None
    problem = GemmProblem(
        *(view.batch, view.m_axes, n_axes, view.k_axes, a, b, *types),
        parts=parts,
        panel=_panel(contraction, mma.n),
        is_async=device.async_copy,
        has_clusters=device.clusters,
        instruction=mma if device.kind == "rocm" else None,
        contraction=contraction,
        ragged=ragged,
    )
    batch, m, n, _ = gemm_sizes(problem)
    problem = (
        problem
        if problem.is_amd
        else replace(
            problem,
            is_streamed=outgrows_l2(
                contraction.results,
                view.m_axes,
                n_axes,
                batch * m * n // contraction.pooled,
                device,
            ),
        )
    )
    if isinstance(contraction, AdjacentColumns) and result_vectors(problem).width < LEAST_WIDTH:
        return None
    chunks = [OperandChunks(problem, is_a) for is_a in (True, False)]
    if ragged is not None and (not chunks[0].layout.is_k or result_vectors(problem).is_along_m):
        return None  # the first row of a tile is no multiple of a vector's
    if mma.kind == "tfloat32":
        if any(x.is_gathered for x in chunks):
            return None  # most convolutions: CUDA cores
        problem = replace(problem, products=1 if device.rounds_to_tf32 else 3)
    staged_a, staged_b = (not x.is_copied for x in chunks)
    if mma.kind == "float8" and (staged_a or staged_b):
        return None  # float16 has vector loads, and transposes tiles
    return replace(problem, staged_a=staged_a, staged_b=staged_b)


def _panel(contraction: SumOfProducts, columns: int) -> int:
    """Choose how many columns of a part lie side by side in a tile.

    Panels of eight columns of each part, interleaved, are copied in halves of a line: 512x2048x3072
    with heads of 64 columns rotated took 41 to 62 us with the best tiles of an H200, with whole
    heads 27 to 40.
    """
    split = contraction.column_split
    if split is None or split.width % columns or MOST_PERIOD % (split.width * split.count):
        return columns
    return split.width


def _without_parts(
    view: GemmView, contraction: SumOfProducts, columns: int
) -> tuple[tuple[Axis, ...], int]:
    """Return the axes of N without those of a column split, and how many parts it has.

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
