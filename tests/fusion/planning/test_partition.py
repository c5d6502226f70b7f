"""Blocks over a graph: whether something leads from some of them out and back."""

from itertools import combinations

import numpy as np
import pytest

from tvm_fusion.ecg.mapping_types.table import MappingType
from tvm_fusion.fusion.planning.partition import Block, Partition


class Operator:
    """An operator that has a position alone."""

    type, is_opaque = MappingType.ONE_TO_ONE, False

    def __init__(self, index):
        self.index = index


class Graph:
    """A random graph, in topological order."""

    def __init__(self, count, rng):
        self.operators = [Operator(n) for n in range(count)]
        self.dependents = {op: [] for op in self.operators}
        for first, second in combinations(self.operators, 2):
            if rng.random() < 2.5 / (second.index - first.index + 1) ** 1.5:
                self.dependents[first].append(second)


def leads_back(partition, blocks):
    """Whether a path leaves some blocks and returns, by all paths."""
    frontier = [s for b in blocks for s in partition.successors(b) if s not in blocks]
    seen = set(frontier)
    while frontier:
        for after in partition.successors(frontier.pop()):
            if after in blocks:
                return True
            if after not in seen:
                seen.add(after)
                frontier.append(after)
    return False


@pytest.mark.parametrize("case", range(12))
def test_only_blocks_that_nothing_leads_back_to_are_joined(case):
    rng = np.random.default_rng(case)
    partition = Partition(Graph(40, rng))
    answers = set()
    for _ in range(120):
        chosen = rng.choice(len(blocks := partition.blocks), 2, replace=False)
        pair = [blocks[n] for n in chosen]
        found = partition.between(pair)
        assert (found is not None) == leads_back(partition, pair)
        answers.add(found is None)
        members = sorted((op for b in pair for op in b.members), key=lambda op: op.index)
        if found is None and len(members) <= 8:
            partition.replace(Block(tuple(members), MappingType.ONE_TO_ONE))
        if len(partition.blocks) < 4:
            break
    assert answers == {True, False}
