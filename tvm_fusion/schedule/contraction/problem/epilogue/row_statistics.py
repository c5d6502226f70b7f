"""GEMMs with sums besides their own: of a few elements of each row, or of groups of columns.

before the results: row sums       (row_values)
behind the results: group sums     (group_sums)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .....core.contract.template import Refusal
from .....ecg.graph import Graph, Operator
from .....program.contractions import dependents, is_contraction
from .....program.program import Program
from .....program.stage import Stage
from ....index.proposals import LIGHT, in_order, own_producers, reached, reductions
from ..sum_of_products import SumOfProducts, analyse
from .group_sums import group_width, with_group_sums
from .row_values import MOST_TERMS, is_row_sum, with_row_values

MAX_BEHIND = 24  # operators that are followed from a GEMM


def with_statistics(program: Program, stages: Sequence[Stage]) -> SumOfProducts | Refusal:
    """Read a program of several reductions as one GEMM and statistics of rows.

    Parameters
    ----------
    stages
        The program's, without internal maps.

    Returns
    -------
    SumOfProducts or Refusal
        With ``row_values``, ``group_sums`` or both; the refusal tells the difference.
    """
    products = [s for s in stages if is_contraction(s)]
    if len(products) != 1:
        return Refusal("not_mine", f"There are {len(products)} contractions, not one.")
    (product,) = products
    behind = dependents(stages, product)
    sums = [s for s in behind if not s.is_map]
    ends = [s for s in behind if s.is_map and s.reads & {s.targets[0] for s in sums}]
    rows = [s for s in stages if not s.is_map and s is not product and s not in behind]
    other = next((s for s in rows if not is_row_sum(s) or s.targets[0] in program.outputs), None)
    about = f"A GEMM sums at most {MOST_TERMS} elements of each row for its epilogue"
    if other is not None:
        is_sum = is_row_sum(other)
        why = "is an output, too" if is_sum else "is not such a float32 sum"
        return Refusal("no_row_sum", f"{about}: {other.title} {why}.")
    if product.reads & {s.targets[0] for s in rows}:
        sentence = f"{about}, not for its operands: {product.title} reads such sums."
        return Refusal("no_row_sum", sentence)
    own = tuple(s for s in stages if s is product or (s.is_map and s not in ends))
    contraction = analyse(replace(program, stages=own), own)
    if sums and not isinstance(contraction, Refusal):
        contraction = with_group_sums(contraction, sums, ends, program.outputs)
    if rows and not isinstance(contraction, Refusal):
        contraction = with_row_values(contraction, rows)
    return contraction


def statistics_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators: a GEMM, sums that its epilogue reads, and sums of what it stores.

    Yields
    ------
    tuple of Operator
        With both kinds of sums first.
    """
    for op in graph.operators:
        found = reductions(op)
        if len(found) != 1 or not is_contraction(found[0]):
            continue
        path = _epilogue(graph, op)
        among = {op, *path, *own_producers(graph, path, LIGHT, MAX_BEHIND)}

        def of_rows(end: Operator, among: set[Operator] = among) -> set[Operator]:
            own = reached({end}, graph.predecessors, among)
            return own | {x for p in own for x in graph.predecessors(p) if _is_of_rows(x)}

        behind = (x for p in (op, *path) for x in graph.successors(p) if _is_of_groups(x))
        nearest = next(behind, None)
        if nearest is not None:
            yield in_order(of_rows(nearest))
            yield in_order(reached({nearest}, graph.predecessors, among))
        readers = (x for p in path if any(map(_is_of_rows, x := of_rows(p))))
        if (found_rows := next(readers, None)) is not None:
            yield in_order(found_rows)


def _epilogue(graph: Graph, product: Operator) -> dict[Operator, None]:
    """Find the light operators behind a product."""
    found: dict[Operator, None] = {}
    frontier = [product]
    while frontier and len(found) < MAX_BEHIND:
        for op in graph.successors(frontier.pop(0)):
            if op not in found and op.type in LIGHT:
                found[op] = None
                frontier.append(op)
    return found


def _is_of_rows(op: Operator) -> bool:
    sums = reductions(op)
    return bool(sums) and all(map(is_row_sum, sums)) and not any(map(is_contraction, sums))


def _is_of_groups(op: Operator) -> bool:
    sums = reductions(op)
    return bool(sums) and all(group_width(s) is not None and not is_contraction(s) for s in sums)
