"""The widest vectors that all results of a tiled GEMM can be stored in.

elements along N, or along M of a transposed result, that are contiguous and aligned in every output
of outputs under a condition (parts of a split): which holds for a whole vector or for none of it

Rows of any length could be stored in vectors from their first aligned element on, shifted in shared
memory. On an H100 that did not pay: 3241x24x2273 11.2 us against 11.0, with GELU 15.4 against 12.2,
5546x24x3108 22.1 against 17.9; aligned rows of 2272 columns take 9.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tvm_ffi
from tvm import DataType, ir, sym, tirx

from .....core.tir.expressions import loads, variables
from .....core.tir.loops import constant, index, substitute
from .....program.stage import Axis
from ....gpu.launch import VECTOR_BYTES, VECTOR_TYPES
from ....index.address import conditional_loads, is_aligned, offset
from ....instructions.nvidia import BYTE_TYPES, FLOAT8_TYPES
from ...problem.results import Result
from ...problem.sum_of_products import SumOfProducts
from ..problem import GemmProblem
from .adjacent_columns import AdjacentColumns

WIDTHS = (8, 4, 2)  # elements of a vector of results
WORD = 4  # bytes


@dataclass(frozen=True)
class ResultVectors:
    """How results are stored: ``width`` elements at a time, along M or N."""

    # Elements; 1 where loads are under conditions, results are not contiguous or unaligned, or a
    # vector has elements of several results, or of what is gathered by columns.
    width: int
    is_along_m: bool  # whether vectors lie along the last axis of M
    # Whether what results read may be loaded ahead, and results are contiguous along that axis.
    is_plain: bool = True


def result_vectors(problem: GemmProblem) -> ResultVectors:
    """Choose the widest vectors that all results can be stored in."""
    return _vectors(problem.contraction, problem.m_axes[-1], problem.n_axes[-1])


@lru_cache(maxsize=256)  # models ask for each candidate of a product
def _vectors(contraction: SumOfProducts, m_axis: Axis, n_axis: Axis) -> ResultVectors:
    results = contraction.results
    values = [r.value for r in results]
    reads = [x for v in values for x in loads(v)]
    if any(map(conditional_loads, values)):
        return ResultVectors(1, False, False)
    # What is gathered by rows is as contiguous along a row as what it is gathered from.
    gathered = [inner for x in reads for i in x.indices for inner in loads(i)]
    if any(n_axis.var in variables(inner) for inner in gathered):
        return ResultVectors(1, False, False)
    needs_columns = bool(gathered) or isinstance(contraction, AdjacentColumns)
    needs_columns |= contraction.pool is not None
    for width in WIDTHS:
        for is_along_m in (False,) if needs_columns else (False, True):
            axis = m_axis if is_along_m else n_axis
            extent = constant(axis.extent)
            if extent is None or extent % width:
                continue
            if all(_is_contiguous(contraction, r, axis, width) for r in results):
                return ResultVectors(width, is_along_m)
    if gathered:
        return ResultVectors(1, False, False)
    is_contiguous = all(_is_contiguous(contraction, r, n_axis, 1) for r in results)
    return ResultVectors(1, False, is_contiguous)


def lie_across(problem: GemmProblem) -> bool:
    """Whether some results lie along N and others along M: no vector is of all of them.

    1,024 rows of Q, K and V, 640 columns each, K transposed: 73 us on an H200, without that 7.
    """
    if result_vectors(problem).width > 1:
        return False
    contraction, axes = problem.contraction, (problem.n_axes[-1], problem.m_axes[-1])
    across = [
        [_is_contiguous(contraction, r, axis, WIDTHS[-1]) for r in contraction.results]
        for axis in axes
    ]
    return all(map(any, across)) and all(map(any, zip(*across, strict=True)))


def _is_contiguous(contraction: SumOfProducts, result: Result, axis: Axis, width: int) -> bool:
    """Whether elements along an axis are aligned vectors of an output, which has all or none."""
    size = store_size(str(result.buffer.ty.dtype), width)
    if size is None:
        return False
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    analyzer = result_analyzer(contraction, axis, vector, width)
    ends = [{axis.var: vector * width + i} for i in (0, width - 1)]
    if result.condition is not None and not _is_uniform(result.condition, ends, analyzer):
        return False
    analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(width)))
    where = [substitute(i, {axis.var: vector * width + lane}) for i in result.indices]
    first = analyzer.simplify(offset(result.buffer, where) - lane)
    if lane in tirx.analysis.undefined_vars(first):
        return False
    return is_aligned(first, size, analyzer)


def store_size(dtype: str, width: int) -> int | None:
    """Count the elements of a type that one instruction stores; ``None`` where it has no vectors.

    Bytes are stored as words. TVM 0.27 has no vectors of more than four float8.
    """
    if dtype in VECTOR_TYPES:
        return min(width, VECTOR_BYTES // DataType(dtype).itemsize)
    if dtype not in (*BYTE_TYPES, *FLOAT8_TYPES) or width < WORD:
        return None
    return WORD if dtype in FLOAT8_TYPES else width


def _is_uniform(
    condition: ir.Expr, ends: Sequence[Mapping[ir.Var, ir.Expr]], analyzer: sym.Analyzer
) -> bool:
    """Whether a condition holds for a whole vector or for nothing of it."""
    if isinstance(condition, tirx.And):
        return all(_is_uniform(c, ends, analyzer) for c in (condition.a, condition.b))
    first, last = (analyzer.simplify(substitute(condition, end)) for end in ends)
    # Comparisons are monotone: equal at both ends, equal between.
    is_monotone = isinstance(condition, (tirx.LE, tirx.LT))
    return (is_monotone or not variables(condition) & ends[0].keys()) and bool(
        tvm_ffi.structural_equal(first, last)
    )


def result_analyzer(
    contraction: SumOfProducts, axis: Axis, vector: ir.Var, width: int
) -> sym.Analyzer:
    """Bind the axes of results, one of them in vectors."""
    analyzer = sym.Analyzer()
    for one in contraction.stage.axes:
        extent = constant(one.extent)
        if extent is not None and one is not axis:
            analyzer.bind(one.var, ir.Range.from_min_extent(index(0), index(extent)))
    extent = constant(axis.extent)
    if extent is not None:
        analyzer.bind(vector, ir.Range.from_min_extent(index(0), index(extent // width)))
    return analyzer
