"""What is split over workers, in which places they exchange tensors, and why."""

import math
from collections import Counter

import numpy as np
import parallel_models
import pytest
from parallel_models import CLASSES, HEAD, IN_PLACE, INNER, WIDE, WIDTH, collectives
from relax_modules import main_module
from tvm import relax

from tvm_fusion.config import configure
from tvm_fusion.core.constants.weight_names import constants
from tvm_fusion.core.decisions import recording
from tvm_fusion.core.shards import Shard
from tvm_fusion.deploy.cuda_graph.capture import KernelCalls
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.parallel import shard as shard_module
from tvm_fusion.parallel.shard import shard
from tvm_fusion.parallel.views import reshaped

SPLIT = {"*": "split"}
H100 = parse("cuda:sm_90a").device


def sharded(mod, size=2, roles=SPLIT, in_place=(), device=H100):
    config = configure(None, {"in_place": in_place})
    return shard(import_model(mod, config), size, roles, config.writes, device)


def weights(part):
    return sorted(tuple(map(int, c.value.shape)) for c in constants(part.mod) if c.ty.ndim == 2)


def product(*shape, x=(4, 16)):
    """x @ W, of a weight of that shape."""
    param = relax.Var("x", relax.TensorType(x, "float32"))
    matrix = relax.const(parallel_models.weight(*shape))
    return main_module([param], lambda emit, x: emit(relax.op.matmul(x, matrix)))


def test_a_block_is_split_by_heads_and_columns_with_one_sum_for_each_half():
    found = sharded(parallel_models.block(), in_place=IN_PLACE)
    one, other = found.parts
    assert collectives(one.mod) == ["allreduce", "allreduce", "allgather"]
    assert collectives(other.mod) == collectives(one.mod)
    q, kv, o = (WIDTH, WIDTH // 2), (WIDTH, HEAD), (WIDTH // 2, WIDTH)
    gated, down, logits = (WIDTH, INNER), (INNER // 2, WIDTH), (WIDTH, CLASSES // 2)
    assert set(weights(one)) >= {q, kv, o, gated, down, logits}
    caches = found.shards["main"]["inputs"]
    assert caches == {n: Shard(0, (2,)).as_json() for n in ("keys", "values")}
    assert [s.shape for s in other.signatures["main"].inputs][2:] == [(1, 8, HEAD)] * 2


def test_weights_are_cut_once_for_each_worker_however_often_rewriting_begins_again(monkeypatch):
    cut, begun = Counter(), []
    part, written = Shard.part, shard_module._Writer.written

    def counted(self, array, rank, size):
        if array.ndim == 2:  # others are indices
            cut[self, rank, array.ctypes.data] += 1
        return part(self, array, rank, size)

    def noted(self):
        begun.append(self)
        return written(self)

    monkeypatch.setattr(Shard, "part", counted)
    monkeypatch.setattr(shard_module._Writer, "written", noted)
    sharded(parallel_models.block(), in_place=IN_PLACE)
    assert cut
    assert set(cut.values()) == {1}
    # Once to find the caches, which are split together, and the columns of the joined product.
    assert len(begun) <= 4 + 2


def test_workers_have_their_own_columns_of_products_joined_in_one():
    one, other = sharded(parallel_models.block(), in_place=IN_PLACE).parts
    whole = parallel_models.weight(WIDTH, 2 * INNER)
    for rank, part in enumerate((one, other)):
        arrays = [c.value.numpy() for c in constants(part.mod)]
        want = Shard(1, (INNER, INNER)).part(whole, rank, 2)
        assert any(a.shape == want.shape and np.array_equal(a, want) for a in arrays)


def test_experts_are_split_by_columns_and_rows():
    found = sharded(parallel_models.experts())
    assert collectives(found.parts[0].mod) == ["allreduce"]
    shapes = {tuple(map(int, c.value.shape)) for c in constants(found.parts[1].mod)}
    assert shapes == {(3, WIDTH, INNER // 2), (3, INNER // 2, WIDTH)}


@pytest.mark.parametrize("bits", [0, 4, 5, 8])
def test_numbers_of_few_bits_are_split_with_their_scales(bits):
    found = sharded(parallel_models.packed(bits)).parts
    assert collectives(found[0].mod) == ["allreduce"]
    used = [relax.transform.DeadCodeElimination()(part.mod) for part in found]
    whole = next(iter(constants(parallel_models.packed(bits)))).value.numpy()
    for rank, mod in enumerate(used):
        plane = next(iter(constants(mod))).value.numpy()
        assert np.array_equal(plane, Shard(0, (whole.shape[0],)).part(whole, rank, 2))
    largest = max(math.prod(map(int, c.value.shape)) for c in constants(used[0]) if c.ty.ndim)
    assert largest == 3 * WIDE * WIDE / 2 * (1 if bits in (0, 8) else 0.5)


def test_blocks_that_workers_do_not_divide_stay_whole_behind_a_gather():
    found = sharded(parallel_models.packed(4, 256), 2).parts[0]  # the second has 3 blocks a row
    assert collectives(found.mod) == ["allgather"]


def test_small_products_stay_whole_with_a_reason():
    with recording() as decisions:
        found = sharded(product(16, 32), roles={})
    assert collectives(found.parts[0].mod) == []
    (reason,) = [d.sentence for d in decisions if d.code == "shard_costs_more"]
    assert "would save 0 us, and 1 exchange over NVLink 4 takes 10 us" in reason


def test_large_products_are_split():
    found = sharded(product(256, 1 << 14, x=(1, 256)), roles={}, device=parse("cuda:sm_75").device)
    assert collectives(found.parts[0].mod) == ["allgather"]
    assert "by columns: splitting it saves 26 us, and 1 exchange over PCIe 4" in found.sentences[0]


def test_rows_and_a_vocabulary_when_asked_for():
    assert collectives(sharded(product(16, 32), roles={"*": "rows"}).parts[0].mod) == ["allreduce"]
    table = relax.const(parallel_models.weight(12, 16))
    param = relax.Var("ids", relax.TensorType((3,), "int64"))
    mod = main_module([param], lambda emit, ids: emit(relax.op.take(table, ids, axis=0)))
    assert collectives(sharded(mod, roles={"*": "rows"}).parts[0].mod) == ["allreduce"]
    assert collectives(sharded(mod, roles={"*": "columns"}).parts[0].mod) == ["allgather"]
    assert collectives(sharded(mod).parts[0].mod) == []


def tied(classes, width=16):
    """Tokens read rows of a table, and logits are products with it: stored once, transposed."""
    table = relax.const(parallel_models.weight(classes, width))
    param = relax.Var("ids", relax.TensorType((3,), "int64"))

    def body(emit, ids):
        turned = emit(relax.op.permute_dims(table))
        return emit(relax.op.matmul(emit(relax.op.take(table, ids, axis=0)), turned))

    return main_module([param], body)


@pytest.mark.parametrize(
    ("role", "kinds", "part"),
    [
        ("split", ["allgather"], (512, 16)),
        ("rows", ["allreduce", "allgather"], (512, 16)),
        ("columns", ["allreduce"], (1024, 8)),
        ("whole", [], (1024, 16)),
    ],
)
def test_logits_by_the_table_of_embeddings(role, kinds, part):
    found = sharded(tied(1024), roles={"*": role}).parts[1]
    assert collectives(found.mod) == kinds
    used = relax.transform.DeadCodeElimination()(found.mod)
    shapes = {tuple(map(int, c.value.shape)) for c in constants(used) if c.ty.ndim == 2}
    assert shapes == {part, *([(1024, 16)] if role == "split" else [])}


def test_a_vocabulary_that_workers_do_not_divide_stays_whole_with_a_reason():
    with recording() as decisions:
        found = sharded(tied(1023))
    assert collectives(found.parts[0].mod) == []
    assert [d.code for d in decisions] == ["shard_uneven"]


def test_exchanges_are_launches_that_a_cuda_graph_captures():
    part = sharded(product(16, 32), roles={"*": "rows"}).parts[0].mod
    mod = relax.transform.LegalizeOps()(part)
    calls = KernelCalls.of(mod, mod["main"])
    assert list(calls.kernels.values()) == [1, 1, 1]  # the part of x, its product, the sum
    made = [v for v in calls.values.values() if isinstance(v, relax.Call)]
    (total,) = [v for v in made if v.op.name == "relax.call_dps_packed"]
    assert str(total.args[0].global_symbol) == "runtime.disco.allreduce"


def test_a_whole_constant_of_no_name_has_none_afterwards():
    """What is a weight may get other elements; a mask's are computed where they are read."""
    positions = relax.const(np.arange(64).reshape(1, 1, 1, 64))
    matrices = [relax.const(parallel_models.weight(*shape)) for shape in ((64, 256), (256, 64))]

    def body(emit, x):
        hidden = emit(relax.op.nn.relu(emit(relax.op.matmul(x, matrices[0]))))
        y = emit(relax.op.matmul(hidden, matrices[1]))
        wide = emit(relax.op.astype(positions, "float32"))
        return emit(relax.op.add(y, wide))

    mod = main_module([relax.Var("x", relax.TensorType((1, 1, 4, 64), "float32"))], body)
    for part in sharded(mod).parts:
        names = {
            tuple(map(int, c.value.shape)): part.weight_names.get(c) for c in constants(part.mod)
        }
        assert names.pop((1, 1, 1, 64)) is None
        assert all("constant" in name for name in names.values())
        assert names


def test_whole_is_whole():
    assert collectives(sharded(product(16, 32), roles={"*": "whole"}).parts[0].mod) == []


def test_columns_that_workers_do_not_divide_stay_whole_with_a_reason():
    with recording() as decisions:
        found = sharded(product(16, 33))
    assert collectives(found.parts[0].mod) == []
    assert [d.code for d in decisions] == ["shard_uneven"]


@pytest.mark.parametrize(("heads", "groups", "said"), [(6, 6, "6 heads"), (8, 2, "2 heads")])
def test_heads_that_workers_do_not_divide(heads, groups, said):
    with pytest.raises(UserError, match=f"4 workers for .*{said} or groups of them; expected"):
        sharded(parallel_models.block(heads, groups), 4, in_place=IN_PLACE)


def test_a_pattern_that_no_weight_has():
    with pytest.raises(UserError, match=r"shards for 'fc\.\*', which no weight is named"):
        sharded(product(16, 32), roles={"fc.*": "rows"})


@pytest.mark.parametrize(
    ("before", "after", "shard_", "want"),
    [
        ((4, 64), (4, 8, 8), Shard(1, (64,)), Shard(1, (8,))),
        ((4, 8, 8), (4, 64), Shard(1, (8,)), Shard(1, (64,))),
        ((1, 8, 5, 4), (8, 5, 4), Shard(1, (8,)), Shard(0, (8,))),
        ((2, 8, 5), (16, 5), Shard(1, (8,)), Shard(0, (8, 8))),
        ((16, 5), (2, 8, 5), Shard(0, (8, 8)), Shard(1, (8,))),
        ((4, 96), (4, 3, 4, 8), Shard(1, (32, 32, 32)), Shard(2, (4,))),
        ((4, 6), (4, 3, 2), Shard(1, (6,)), None),
        ((8, 4), (4, 8), Shard(1, (4,)), Shard(1, (4, 4))),
        ((3, 4), (4, 3), Shard(1, (4,)), None),
    ],
)
def test_reshapes(before, after, shard_, want):
    assert reshaped(before, after, shard_, 2) == want
