import numpy as np
import pytest

from tvm_fusion.core.shards import Shard


@pytest.mark.parametrize("segments", [(12,), (8, 4), (4, 4, 4)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_make_the_whole(segments, size):
    shard = Shard(1, segments)
    array = np.random.default_rng().standard_normal((3, 12, 2))
    parts = [shard.part(array, rank, size) for rank in range(size)]
    assert {part.shape for part in parts} == {(3, 12 // size, 2)}
    np.testing.assert_array_equal(shard.whole(parts), array)


def test_each_worker_has_columns_of_all_segments():
    assert Shard(0, (8, 4)).indices(1, 2).tolist() == [4, 5, 6, 7, 10, 11]


def test_json():
    shard = Shard(2, (8, 4))
    assert Shard.of_json(shard.as_json()) == shard
