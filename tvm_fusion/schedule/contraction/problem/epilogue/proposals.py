"""Products of few rows with everything that is computed from them alone.

    Q, K, V = heads of x W;  Q, K = normalized and rotated;  each a result of its own

Growth follows a product by one operator at a time. Behind a rotation no single operator is claimed:
an element needs two of the product's, and half of a head is no result of a kernel that has both.
"""

import math
from collections.abc import Iterator

from .....core.tir.loops import constant
from .....ecg.graph import Graph, Operator
from .....ecg.mapping_types.table import MappingType
from .....program.contractions import is_contraction
from ....index.proposals import LIGHT, in_order, leaves, reductions
from ..norm_prologue import nearest_reductions
from .head_sum import is_head_sum

MAX_ROWS = 16
MAX_BEHIND = 64  # operators that are followed from a product


def epilogue_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators: a product of few rows, and all light ones that need nothing else.

    Yields
    ------
    tuple of Operator
        Without and with the norm in front. A product whose results are a chain has none: growth
        finds it.
    """
    stages = {op: reductions(op) for op in graph.operators}
    for op, found in stages.items():
        if len(found) != 1 or not is_contraction(found[0]) or not _has_few_rows(op):
            continue
        inside = {op} | _behind(graph, op)
        while views := {o for o in _ends(graph, inside) if o.type is MappingType.REORGANIZE}:
            inside -= views  # need no kernel
        if len(_ends(graph, inside)) > 1:
            yield in_order(inside)
            norms = nearest_reductions(graph, {op}, stages)
            if norms:
                yield in_order(inside | norms)


def _ends(graph: Graph, inside: set[Operator]) -> list[Operator]:
    """List operators whose results are read outside."""
    return [o for o in inside if leaves(o) or not inside.issuperset(graph.successors(o))]


def _has_few_rows(op: Operator) -> bool:
    rows = [constant(d) for d in op.results[0].shape[:-1]]
    return None not in rows and math.prod(r or 1 for r in rows) <= MAX_ROWS


def _behind(graph: Graph, product: Operator) -> set[Operator]:
    """Find light operators and sums over heads that need the product.

    Of what needs it they need no other than these.
    """
    found: dict[Operator, None] = {}
    frontier = list(graph.successors(product))
    while frontier and len(found) < MAX_BEHIND:
        op = frontier.pop(0)
        if op in found or not (op.type in LIGHT or is_head_sum(op)):
            continue
        others = [o for o in graph.predecessors(op) if o is not product and o not in found]
        if not any(_needs(graph, other, product) for other in others):
            found[op] = None
            frontier += graph.successors(op)
    return set(found)


def _needs(graph: Graph, op: Operator, product: Operator) -> bool:
    """Whether an operator needs a product; looks no further back than the product's place."""
    seen, frontier = {op}, [op]
    while frontier:
        for before in graph.predecessors(frontier.pop()):
            if before is product:
                return True
            if before.index >= product.index and before not in seen:
                seen.add(before)
                frontier.append(before)
    return False
