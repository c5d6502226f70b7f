"""Two GEMMs of one A with weights of their own, read as one with the columns of both.

    C1 = A * B1;  C2 = A * B2;  D = epilogue(C1, C2)
    C[m, n] = sum over k of A[m, k] * (B1[k, n] if n < N else B2[k, n - N])
    D = epilogue(C[m, n], C[m, N + n])

A column split of C then has B1 as its first part and B2 as its second: gate and up of a gated
layer whose weights are arguments. Constant weights are concatenated before (join_matmuls).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load, variables
from ....core.tir.loops import constant, index, substitute
from ....device import Device
from ....ecg.graph import Graph, Operator
from ....program.contractions import is_contraction, operands_of
from ....program.program import Program
from ....program.stage import Axis, Stage
from ...index.proposals import LIGHT, in_order, reached, reductions
from ..mma.default import best_tile
from ..mma.model import estimated_clocks
from ..problem.functions.prim_func import replace_operand
from ..problem.sum_of_products import SumOfProducts, analyse
from ..tile.config import narrow_operand
from ..tile.problem import gemm_sizes
from ..tile.read_problem import gemm_problem
from .config import WgmmaConfig
from .model import wgmma_clocks
from .space import best_wgmma_tile, has_wgmma

MAX_BEHIND = 24  # operators that are followed from a GEMM


def has_two_products(program: Program) -> bool:
    """Whether both reductions of a program are contractions."""
    found = [s for s in program.stages if not s.is_map]
    return len(found) == 2 and all(map(is_contraction, found))


def dual_gemm(program: Program, stages: Sequence[Stage]) -> SumOfProducts | None:
    """Read two products of one operand as one, whose columns are those of both.

    Parameters
    ----------
    stages
        The program's, without internal maps.

    Returns
    -------
    SumOfProducts or None
        With a column split; ``None`` where the products have not one A and matrices of one shape,
        something but the epilogue reads one of them, or the epilogue does not read both.
    """
    joined = _joined(program, stages)
    contraction = None if joined is None else analyse(joined, joined.stages)
    if not isinstance(contraction, SumOfProducts) or contraction.column_split is None:
        return None
    return contraction


def dual_gemm_tile(contraction: SumOfProducts, device: Device) -> WgmmaConfig | None:
    """Configure a dual GEMM; ``None`` without wgmma, or where two of ``mma.sync`` are faster."""
    problem = gemm_problem(contraction, device)
    if problem is None or constant(problem.m) is None:
        return None
    problem = replace(problem, staged_b=False)  # TMA chooses the weight
    tile = best_wgmma_tile(problem, device)
    if tile is None:
        return None
    one = best_tile(replace(problem, parts=1), device)
    if one is not None:
        clocks = problem.parts * estimated_clocks(one.tile, gemm_sizes(one.problem), device)
        if clocks < wgmma_clocks(tile, device):
            return None
    return tile


def _joined(program: Program, stages: Sequence[Stage]) -> Program | None:
    """Write the program with one product of twice as many columns."""
    first, second = (s for s in stages if not s.is_map)
    other = _with_axes(second, first)
    sides = None if other is None else _sides(first, other)
    targets = first.targets[0], second.targets[0]
    if sides is None or targets[0] in second.reads or set(targets) & set(program.outputs):
        return None
    shared, (b, other_b) = sides
    column = first.axes[-1]
    size = constant(column.extent)
    dims = [d for d, i in enumerate(first.indices[0]) if column.var in variables(i)]
    is_own = column.var in variables(b) and column.var not in variables(shared)
    if size is None or len(dims) != 1 or not is_own:
        return None
    (dim,) = dims
    if not isinstance(first.indices[0][dim], ir.Var):
        return None
    shape = [index(d) for d in targets[0].ty.shape]
    shape[dim] = index(2 * size)
    total = declare(shape, str(targets[0].ty.dtype), f"{targets[0].name}_joined")
    behind = substitute(other_b, {column.var: column.var - size})
    choice = tirx.if_then_else(column.var < size, narrow_operand(b), narrow_operand(behind))
    chosen = choice if narrow_operand(b) is b else tirx.Cast(str(b.ty.dtype), choice)

    def read(node: ir.TensorLoad) -> ir.Expr:
        if node.source not in targets:
            return node
        place = list(node.indices)
        place[dim] = place[dim] + (size if node.source.same_as(targets[1]) else 0)
        return load(total, place)

    wide = replace(
        first,
        axes=(*first.axes[:-1], Axis(column.var, index(2 * size))),
        targets=(total,),
        values=(substitute(replace_operand(first.values[0], b, chosen), {}, read),),
    )
    maps = [
        replace(s, values=tuple(substitute(v, {}, read) for v in s.values))
        for s in stages
        if s.is_map
    ]
    return replace(program, stages=(wide, *maps))


def _with_axes(stage: Stage, like: Stage) -> Stage | None:
    """Rename the axes of a product to those of another of the same extents."""
    pairs = list(zip((*stage.axes, *stage.reduce), (*like.axes, *like.reduce), strict=False))
    counts = [(len(s.axes), len(s.reduce)) for s in (stage, like)]
    if counts[0] != counts[1] or any(
        not tvm_ffi.structural_equal(index(a.extent), index(b.extent)) for a, b in pairs
    ):
        return None
    names = {a.var: b.var for a, b in pairs}
    values = tuple(substitute(v, names) for v in stage.values)
    indices = tuple(tuple(substitute(i, names) for i in where) for where in stage.indices)
    if not tvm_ffi.structural_equal(list(indices[0]), list(like.indices[0])):
        return None
    return replace(stage, axes=like.axes, reduce=like.reduce, indices=indices, values=values)


def _sides(first: Stage, second: Stage) -> tuple[ir.Expr, tuple[ir.Expr, ir.Expr]] | None:
    """Return the operand that two GEMMs share, and those that they do not."""
    if any(s.targets[0].ty.dtype != first.targets[0].ty.dtype for s in (first, second)):
        return None
    own, others = operands_of(first), operands_of(second)
    if own is None or others is None:
        return None
    for i in range(2):
        if not tvm_ffi.structural_equal(own[i], others[i]):
            continue
        pair = own[1 - i], others[1 - i]
        types = {(str(x.ty.dtype), str(narrow_operand(x).ty.dtype)) for x in pair}
        return (own[i], pair) if len(types) == 1 else None
    return None


def dual_gemm_proposals(graph: Graph, device: Device) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators: two products of one value, and the path to the first that reads both.

    Parameters
    ----------
    device
        Without wgmma there are none.
    """
    if not has_wgmma(device):
        return
    products = [op for op in graph.operators if is_product(op)]
    for number, first in enumerate(products):
        for second in products[number + 1 :]:
            if not {id(v) for v in first.tensors} & {id(v) for v in second.tensors}:
                continue
            behind = [_behind(graph, op) for op in (first, second)]
            meeting = in_order(behind[0] & behind[1])
            if meeting:
                among = behind[0] | behind[1]
                path = reached([meeting[0]], graph.predecessors, among)
                yield in_order({first, second, *path})


def is_product(op: Operator) -> bool:
    """Whether an operator is a product of half types."""
    found = reductions(op)
    operands = operands_of(found[0]) if len(found) == 1 else None
    halves = {"float16", "bfloat16"}
    return operands is not None and all(str(narrow_operand(x).ty.dtype) in halves for x in operands)


def _behind(graph: Graph, product: Operator) -> set[Operator]:
    """Find the operators that an epilogue of a product may have."""
    found: dict[Operator, None] = {}
    frontier = [product]
    while frontier and len(found) < MAX_BEHIND:
        for op in graph.successors(frontier.pop(0)):
            if op not in found and op.type in LIGHT:
                found[op] = None
                frontier.append(op)
    return set(found)
