"""The template of contractions: one sum of products, with fused prologues and epilogues.

Matrix products, convolutions (grouped, depthwise, transposed) and what else has that form.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain

from tvm import DataType, ir

from ....core.contract.template import Claim, Refusal, Template
from ....device import Device
from ....ecg.graph import Graph, Operator
from ....ecg.mapping_types.table import MappingType
from ....program.contractions import is_contraction
from ....program.group import Group
from ....program.images import convolved_rank
from ....program.program import Program
from ....program.stage import Stage, Unstructured
from ...index.estimate import too_many_parameters
from ...index.inline import inlined, inlined_size
from ...index.proposals import LIGHT, MOVES

# How much longer a sum takes that computes an operand's producers for every term, or reads an
# operand across its columns although its producer could have written it in the right order.
RECOMPUTE_FACTOR = 8
MOST_EXPANDED = 8  # operators of an operand that are followed


class Contraction(Template):
    """The base of the templates of CPUs and of GPUs."""

    name = "contraction"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one contraction whose results are maps of its sum at its own position."""
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        reductions = sum(not stage.is_map for stage in program.stages)
        if reductions > self._max_reductions or not reductions:
            return _several_reductions(program, self._max_reductions)
        refusal = too_many_parameters(program) or inlined_size(program)
        return refusal or self._claim(group, program, inlined(program), device)

    #: Reductions of a group: a norm prologue is one.
    _max_reductions = 1

    @abstractmethod
    def _claim(
        self, group: Group, program: Program, stages: tuple[Stage, ...], device: Device
    ) -> Claim | Refusal:
        """Claim a program whose internal maps are inlined."""

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name contractions with light One-to-Many producers, which the mapping table keeps apart.

        What is only repeated, such as the keys that several heads share, is an index.
        """
        for op in graph.operators:
            if op.type is not MappingType.MANY_TO_MANY:
                continue
            sides = [[*_expanded(graph, producer, op)] for producer in graph.predecessors(op)]
            for expanded in chain.from_iterable(sides):
                yield *expanded, op
            found = [side[-1] for side in sides if side]
            if len(found) == 2:  # a token's rows for its experts, and the matrices of these
                yield *found[0], *found[1], op


def _several_reductions(program: Program, most: int) -> Refusal:
    reductions = [stage for stage in program.stages if not stage.is_map]
    if not any(map(is_contraction, reductions)):
        return Refusal("not_mine", "There is no contraction.")
    names = ", ".join(dict.fromkeys(stage.title for stage in reductions))
    prologue = ", or two of which the first is a norm prologue" if most > 1 else ""
    return Refusal(
        "several_reductions",
        f"A contraction kernel computes one reduction{prologue}; "
        f"there are {len(reductions)} ({names}).",
    )


def _expanded(graph: Graph, producer: Operator, reader: Operator) -> Iterator[list[Operator]]:
    """Follow an operand back to each One-to-Many operator, through movement and maps.

    Scales and shifts of channels, such as the gates of squeeze-and-excitation or an affine map of
    its own, with an activation or a conversion behind them.
    """
    found: list[Operator] = []
    while (
        graph.successors(producer) == [reader]
        and not any(v.leaves for v in producer.results)
        and producer.type in LIGHT
        and len(found) < MOST_EXPANDED
    ):
        found.append(producer)
        if producer.type is MappingType.ONE_TO_MANY and not _is_in_epilogue(graph, producer):
            yield list(found)
        before = [p for p in graph.predecessors(producer) if not p.is_opaque]
        if producer.type not in MOVES:
            before = [p for p in before if _elements(p) == _elements(producer)]
        if len(before) != 1:
            break
        reader, producer = producer, before[0]


def _is_in_epilogue(graph: Graph, op: Operator) -> bool:
    """Whether the kernel before takes an operator: its scale or shift does not come from there.

    The gate of squeeze-and-excitation is a mean of what it scales.
    """
    before = graph.predecessors(op)
    for value in before:
        if _elements(value) != _elements(op):
            continue
        while value.type in LIGHT:
            same = [p for p in graph.predecessors(value) if _elements(p) == _elements(value)]
            if len(same) != 1 or len(graph.successors(value)) != 1:
                break
            value = same[0]
        if value.type is MappingType.MANY_TO_MANY:
            left = [p for p in before if _elements(p) != _elements(op)]
            return not _come_from(graph, left, value)
    return False


def _come_from(graph: Graph, operators: list[Operator], source: Operator) -> bool:
    seen: set[Operator] = set()
    left = list(operators)
    while left:
        op = left.pop()
        if op is source:
            return True
        if op not in seen:
            seen.add(op)
            left += graph.predecessors(op)
    return False


def _elements(op: Operator) -> int:
    """Count a result's elements; 0 of a shape that is read from a tensor."""
    value = op.results[0]
    return value.bytes and value.bytes // DataType(value.dtype).itemsize


def constants_of(group: Group) -> frozenset[ir.Var]:
    """Return the inputs of a group's program that are known at compile time."""
    known = zip(group.program.inputs, group.inputs, strict=True)
    return frozenset(buffer for buffer, value in known if value.is_constant)


def has_convolution(group: Group) -> bool:
    """Whether a group has a convolution, whose images the layout stage may want in blocks."""
    return any(map(convolved_rank, group.members))


def has_prologue(group: Group) -> bool:
    """Whether a member comes before the one that sums."""
    if len(group) == 1:
        return False
    results = {v for op in group.members for v in op.results}
    heavy = max(group.members, key=lambda op: op.flops)
    return any(v in results for v in heavy.tensors)
