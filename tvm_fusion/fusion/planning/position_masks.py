"""Masks by position that several readers share: each gets its own, where its kernel takes it in.

A language model makes one causal mask from the position of a step, and adds it to the scores of
every layer. In the kernel of one of them it is a comparison of indices, by which attention leaves
out keys; in memory it is elements that say nothing about each other. So the operators that make it
are copied for all readers before templates propose, and readers whose kernel did not take in its
copy share the original again.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from ...core.contract.template import Claim
from ...ecg.graph import Graph, Operator, Value
from ...ecg.mapping_types.table import MappingType
from ...ecg.work import at, is_cheap
from ...program.group import Group
from ..claims import ClaimBook
from .partition import Partition

MAX_COPIED = 24  # operators
MAX_READ = 32  # elements of a tensor that they read: positions of some sequences
LEAST_GROWTH = 8  # elements of a mask to those that it is made of


class PositionMasks:
    """One copy of what makes a mask for each reader."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._masks: list[list[tuple[Operator, Value, list[Operator]]]] = []
        for value, makers in list(_shared_masks(graph)):
            readers = list(dict.fromkeys(value.consumers))
            copies = [graph.duplicate(makers, {reader}) for reader in readers]
            both = zip(readers, copies, strict=True)
            self._masks.append([(reader, ops[-1].results[0], ops) for reader, ops in both])
            for op in reversed(makers):
                if not any(result.consumers or result.leaves for result in op.results):
                    graph.remove(op)

    def share_again(self, partition: Partition, book: ClaimBook) -> None:
        """Leave one mask for all readers whose kernel has not taken in its copy.

        Their blocks are claimed anew, since a claim knows the values that its group reads.
        """
        block_of = partition.block_of
        for mask in self._masks:
            left = [
                (reader, value, ops)
                for reader, value, ops in mask
                if all(len(block_of[op].members) == 1 for op in ops)
            ]
            for reader, value, ops in left[1:]:
                shared, own = left[0][1], reader.operands
                reader.operands = tuple(shared if o is value else o for o in own)
                block = block_of[reader]
                claim = book.claim(Group(block.members))
                if not isinstance(claim, Claim):
                    reader.operands = own
                    continue
                partition.replace(replace(block, _claim=claim))
                value.consumers.remove(reader)
                shared.consumers.append(reader)
                for op in reversed(ops):
                    self._graph.remove(op)
                partition.drop(ops)
            for op in left[0][2] if left else ():  # it has more readers now
                partition.replace(block_of[op])


def _shared_masks(graph: Graph) -> Iterator[tuple[Value, tuple[Operator, ...]]]:
    """Find what several operators read that is made of few elements, and what makes it."""
    makes: dict[Operator, tuple[Operator, ...]] = {}
    for op in graph.operators:
        if op.type is MappingType.MANY_TO_MANY or op.is_opaque or not is_cheap(op.func):
            continue
        before = [v.producer for v in op.tensors if v.producer is not None]
        given = [v for v in op.tensors if v.producer is None and not v.is_parameter]
        if all(b in makes for b in before) and all(_elements(v) <= MAX_READ for v in given):
            made_by = {x for b in before for x in makes[b]}
            makes[op] = (*sorted(made_by, key=lambda x: x.index), op)
    for op, cone in makes.items():
        if len(op.results) != 1 or len(cone) > MAX_COPIED:
            continue
        (value,) = op.results
        readers = dict.fromkeys(value.consumers)
        read = {v for o in cone for v in o.tensors if v.producer is None and not v.is_parameter}
        elements = sum(map(_elements, read))
        if (
            len(readers) > 1
            and not (value.leaves or value.is_parameter)
            # An opaque operator reads what its call names, not its operands.
            and not any(reader in makes or reader.is_opaque for reader in readers)
            and _elements(value) >= LEAST_GROWTH * max(elements, 1)
        ):
            yield value, cone


def _elements(value: Value) -> int:
    return math.prod(map(at, value.shape))
