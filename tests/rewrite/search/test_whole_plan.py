"""Passes rewrite where it pays by the planner: around a place, and in the whole module."""

import numpy as np
import pytest
import tvm
from relax_modules import typed_module as module
from tvm import relax
from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.fusion.estimate import Estimator, RegionCost
from tvm_fusion.rewrite.products.join_matmuls import JoinMatmuls
from tvm_fusion.rewrite.search.judge import Judge, always, surroundings
from tvm_fusion.rewrite.search.whole import Whole

op = relax.op
TARGET = parse("cuda:sm_90a").tvm_target()
RNG = np.random.default_rng(0)


def weight(*shape):
    return relax.const(RNG.standard_normal(shape).astype("float16"))


def tensor(*shape):
    return relax.TensorType(shape, "float16")


def gated(emit, x):
    """One kernel either way, that reads x once where the products are joined."""
    a, b = (emit(op.matmul(x, weight(256, 256))) for _ in range(2))
    return [op.multiply(emit(op.nn.silu(a)), b)]


def apart(emit, x):
    """Grouped products, whose results are separate: joined, their tiles would be fewer."""
    return [op.exp(emit(op.matmul(x, weight(256, 256)))) for _ in range(3)]


def products(mod, name="main"):
    (block,) = mod[name].body.blocks
    return sum(
        getattr(getattr(b.value, "op", 0), "name", "") == "relax.matmul" for b in block.bindings
    )


@pytest.mark.parametrize(("write", "joined"), [(apart, False), (gated, True)])
def test_products_are_joined_where_it_pays(write, joined):
    mod = module(write, tensor(64, 256))
    before = products(mod)
    with TARGET, recording() as log:
        after = transform.Rewrite()(mod)
        cost = Estimator(TARGET).module
        assert cost(after).us <= cost(mod).us
    assert products(JoinMatmuls()(mod)) == 1  # alone, a pass rewrites everywhere
    assert (products(after) < before) == joined
    assert ("not_cheaper" in [d.code for d in log]) != joined


@pytest.mark.parametrize("returns_all", [False, True])
def test_places_with_equal_surroundings_are_priced_once(returns_all):
    def layers(emit, x):
        results = []
        for _ in range(4):
            q, k, v = (emit(op.matmul(x, weight(512, 512))) for _ in range(3))
            x = emit(op.add(emit(op.multiply(q, k)), v))
            results.append(v)
        last = emit(op.exp(x))
        return [relax.Tuple([last, *results])] if returns_all else [last]

    mod = module(layers, tensor(64, 512))
    asked = []
    judge = Judge(TARGET)
    price = judge._estimator.module
    judge._estimator.module = lambda mod: asked.append(mod) or price(mod)
    (first, *_) = judge.ways(JoinMatmuls)
    with TARGET:
        first(mod)
    assert len(asked) == 3 * 3  # the first layer, those between, the last: before, alone, all


def test_a_place_without_others_around_is_rewritten_once():
    mod = module(gated, tensor(64, 256))
    asked, read = [], []
    judge = Judge(TARGET)
    price, of = judge._estimator.module, judge._blocks.of
    judge._estimator.module = lambda mod: asked.append(mod) or price(mod)
    judge._blocks.of = lambda func: read.extend(of(func)) or of(func)
    (change,) = judge.ways(JoinMatmuls)
    with TARGET:
        change(mod)
        change(mod)
    assert len(asked) == 2  # before and after
    first, second = read
    assert first is second  # a block is read for the first of its places


def test_surroundings_end_at_the_next_products():
    def chain(emit, x):
        for _ in range(5):
            x = emit(op.exp(emit(op.matmul(x, weight(512, 512)))))
        return [x]

    func = module(chain, tensor(64, 512))["main"]
    site = func.body.blocks[0].bindings[4].var  # the third product
    around = surroundings(func, [site])
    names = [b.value.op.name for b in around.mod["main"].body.blocks[0].bindings]
    assert names == ["relax.matmul", "relax.exp"] * 2 + ["relax.matmul"]
    other = surroundings(func, [func.body.blocks[0].bindings[2].var])
    assert other.key == around.key
    assert surroundings(func, [func.body.blocks[0].bindings[3].var]).key != around.key


def test_surroundings_hold_all_that_is_computed_of_constants():
    def body(emit, x):
        w = relax.const(np.zeros((256, 256), "uint8"))
        for _ in range(40):  # more than operators that are cut out
            w = emit(op.add(w, w))
        w = emit(op.astype(w, "float16"))
        return [emit(op.matmul(x, w)), op.exp(w)]

    func = module(body, tensor(64, 256))["main"]
    around = surroundings(func, [func.body.blocks[0].bindings[41].var])
    (block,) = around.mod["main"].body.blocks
    assert len(block.bindings) == 42
    assert len(around.mod["main"].params) == 1
    assert len(around.mod["main"].ret_ty.fields) == 1  # the weight is no result


def test_a_step_that_makes_the_whole_slower_is_left_out():
    mod = module(apart, tensor(64, 256))
    whole = Whole(mod, TARGET)
    with TARGET, recording() as log:
        assert whole.step("join_matmuls", [JoinMatmuls(always)])
        assert whole.mod.same_as(mod)
        assert not whole.step("nothing", [Sequential([])])
    assert [d.code for d in log] == ["whole_plan_slower"]
    assert "join_matmuls is left out" in log[0].sentence


def test_each_function_of_a_module_is_judged_alone():
    slower, faster = (module(write, tensor(64, 256))["main"] for write in (apart, gated))
    functions = {"slower": slower, "faster": faster}
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
    whole = Whole(mod, TARGET)
    with TARGET, recording() as log:
        assert whole.step("join_matmuls", [JoinMatmuls(always)])
        assert not whole.step("join_matmuls", [Sequential([])])
    assert whole.mod["slower"].same_as(mod["slower"])
    assert products(whole.mod, "faster") == 1
    assert ["join_matmuls of slower" in d.sentence for d in log].count(True) == 1


def test_a_module_is_planned_where_it_is_compared(monkeypatch):
    planned = []
    price = Estimator.module
    monkeypatch.setattr(
        Estimator, "module", lambda own, mod: planned.append(mod) or price(own, mod)
    )
    mod = module(gated, tensor(64, 256))
    whole = Whole(mod, TARGET)
    with TARGET:
        whole.step("nothing", [Sequential([]), Sequential([])])
        assert whole.mod.same_as(mod)
        assert not planned
        whole.step("join_matmuls", [JoinMatmuls(always)])
        whole.step("nothing", [Sequential([])])
    assert [each.same_as(mod) for each in planned] == [True, False]
    assert whole.mod.same_as(planned[1])


def test_a_cost_saves_beyond_the_margin_of_what_changes():
    before = RegionCost(100.0, 50, 3, 10, 4, {1: (2, 45.0), 2: (1, 10.0)})
    same = {1: (2, 45.0)}
    assert RegionCost(99.0, 50, 3, 10, 4, {**same, 3: (1, 9.0)}).saves(before)
    assert not RegionCost(99.9, 60, 3, 10, 4, {**same, 3: (1, 9.9)}).saves(before)
    assert RegionCost(99.9, 40, 3, 10, 4, {**same, 3: (1, 9.9)}).saves(before)
    assert not RegionCost(100.0, 50, 3, 10, 4, before.groups).saves(before)
