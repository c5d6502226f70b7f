"""Masks by position that several layers share: copied for each, shared again where that is idle."""

import numpy as np
import pytest
from group_kernels import tensor
from toy_templates import SPEC, Anchored, graph_of
from tvm import relax

from tvm_fusion.fusion.claims import ClaimBook
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.planning.partition import Block, Partition
from tvm_fusion.fusion.planning.position_masks import PositionMasks

op = relax.op
KEYS = 64


def scores_under_a_mask(readers, sees_all=False, is_result=False):
    """Softmax of the scores of some layers; of a mask that as many elements make, or one of all."""
    positions = tensor("position", 1, KEYS if sees_all else 1, dtype="int64")
    scores = [tensor(f"scores_{i}", 4, KEYS) for i in range(readers)]
    builder = relax.BlockBuilder()
    with builder.function("main", [positions, *scores]):
        with builder.dataflow():
            keys = relax.const(np.arange(KEYS)[None], "int64")
            seen = builder.emit(op.less_equal(keys, positions))
            values = relax.const(0.0, "float32"), relax.const(-np.inf, "float32")
            mask = builder.emit(op.where(seen, *values))
            found = [builder.emit(op.nn.softmax(builder.emit(op.add(s, mask)))) for s in scores]
            result = builder.emit_output(relax.Tuple([*found, mask] if is_result else found))
        builder.emit_func_output(result)
    return graph_of(builder.get())


def counts(graph):
    titles = [operator.title for operator in graph.operators]
    return titles.count("less_equal"), titles.count("where")


def test_each_reader_has_its_own():
    graph = scores_under_a_mask(3)
    assert counts(graph) == (1, 1)
    PositionMasks(graph)
    assert counts(graph) == (3, 3)
    readers = {r for m in graph.operators if m.title == "where" for r in graph.successors(m)}
    assert len(readers) == 3


@pytest.mark.parametrize(
    "given", [{"readers": 1}, {"readers": 2, "sees_all": True}, {"readers": 2, "is_result": True}]
)
def test_others_stay_as_they_are(given):
    graph = scores_under_a_mask(**given)
    PositionMasks(graph)
    assert counts(graph) == (1, 1)


def test_readers_that_leave_theirs_outside_share_one_again():
    graph = scores_under_a_mask(4)
    masks = PositionMasks(graph)
    partition = Partition(graph)
    mask = next(o for o in graph.operators if o.title == "where")
    made, (reader,) = [*graph.predecessors(mask), mask], graph.successors(mask)
    partition.replace(Block((*made, reader), reader.type))
    masks.share_again(partition, ClaimBook((Anchored(9),), SPEC.device, CostModel(SPEC.device)))
    assert counts(graph) == (2, 2)
    consumers = [len(o.results[0].consumers) for o in graph.operators if o.title == "where"]
    assert sorted(consumers) == [1, 3]
    assert set(partition.block_of) == set(graph.operators)
    (shared,) = (o for o in graph.operators if len(o.results[0].consumers) == 3)
    for reader in shared.results[0].consumers[1:]:  # their claims are of what they read now
        assert shared.results[0] in partition.block_of[reader].claim.group.inputs
