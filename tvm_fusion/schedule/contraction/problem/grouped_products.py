"""Several products of one program, and which results are of which of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import ir

from ....core.contract.template import Refusal
from ....core.tir.expressions import loads
from ....ecg.graph import Graph, Operator
from ....ecg.mapping_types.table import MappingType
from ....program.contractions import is_contraction
from ....program.group import Group
from ....program.images import convolved_rank
from ....program.program import Program
from ....program.stage import Stage, Unstructured
from ...index.estimate import too_many_parameters
from ...index.inline import inlined, inlined_size
from ...index.proposals import in_order, leaves, reductions
from .epilogue.concat import is_whole, parts_of, sums_of
from .results import elsewhere
from .sum_of_products import SumOfProducts, analyse

MOST_BETWEEN = 3  # operators between a product and a concatenation


@dataclass(frozen=True, eq=False)
class GroupedProducts:
    """Products that need nothing of each other."""

    contractions: list[SumOfProducts]  # each with its own results
    stages: list[tuple[Stage, ...]]  # the sum and the maps of each
    others: tuple[Stage, ...]  # maps that read none of the sums

    @property
    def everything(self) -> tuple[Stage, ...]:
        """All stages."""
        return (*(s for part in self.stages for s in part), *self.others)


def products_of(group: Group) -> GroupedProducts | Refusal:
    """Divide a group into products with their results; say why it is no such group."""
    try:
        program = group.program
    except Unstructured as reason:
        return Refusal("unstructured", str(reason))
    sums = [s for s in program.stages if not s.is_map]
    if len(sums) < 2 or not all(map(is_contraction, sums)):
        return Refusal("not_mine", "There are fewer than two products, or other reductions.")
    if any(map(convolved_rank, group.members)):
        return Refusal("not_mine", "Convolutions have templates and layouts of their own.")
    refusal = too_many_parameters(program) or inlined_size(program)
    return refusal or grouped_products(program, inlined(program))


def grouped_products(program: Program, stages: Sequence[Stage]) -> GroupedProducts | Refusal:
    """Divide a program into products with their results; concatenations of results are cut.

    Parameters
    ----------
    stages
        Its own, without internal maps.
    """
    sums = [s for s in stages if not s.is_map]
    totals = [s.targets[0] for s in sums]
    for stage in sums:
        if any(sums_of(loads(v), totals) - {stage.targets[0]} for v in stage.values):
            return Refusal("products_in_a_row", f"{stage.title} reads another product's result.")
    own: dict[ir.Var, list[Stage]] = {s.targets[0]: [s] for s in sums}
    others: list[Stage] = []
    for stage in stages:
        if not stage.is_map:
            continue
        parts = [stage] if is_whole(stage, totals) else parts_of(stage, totals)
        if parts is None:
            return elsewhere(stage, sums[0])
        for part in parts:
            found = sums_of(loads(part.values[0]), totals)
            (own[found.pop()] if found else others).append(part)
    contractions = []
    for stages in own.values():
        contraction = analyse(replace(program, stages=tuple(stages)), stages)
        if isinstance(contraction, Refusal):
            return contraction
        if contraction.column_split is not None:
            return elsewhere(stages[-1], stages[0])
        contractions.append(contraction)
    return GroupedProducts(contractions, [tuple(part) for part in own.values()], tuple(others))


def concat_proposals(graph: Graph, most: int) -> Iterator[tuple[Operator, ...]]:
    """Name concatenations with the products, and the maps of these, that they alone read."""
    for op in graph.operators:
        if "concat" not in op.title:
            continue
        found: set[Operator] = {op}
        products = 0
        for operand in dict.fromkeys(graph.predecessors(op)):
            chain = _product_before(graph, operand, op, most)
            found.update(chain)
            products += bool(chain)
        if products > 1:
            yield in_order(found)


def _product_before(graph: Graph, op: Operator, reader: Operator, most: int) -> list[Operator]:
    """Follow maps that one operator alone reads back to a small product; none: an empty list."""
    found: list[Operator] = []
    while not leaves(op) and graph.successors(op) == [reader] and len(found) <= MOST_BETWEEN:
        found.append(op)
        if op.type is MappingType.MANY_TO_MANY:
            stages = reductions(op)
            is_product = len(stages) == 1 and is_contraction(stages[0]) and op.flops <= most
            return found if is_product and not convolved_rank(op) else []
        before = list(dict.fromkeys(graph.predecessors(op)))
        if op.type is not MappingType.ONE_TO_ONE or len(before) != 1:
            break
        reader, (op,) = op, before
    return []
