"""Of equal layers, the first one is rewritten, planned, scheduled and lowered, and no other."""

import math
from collections import Counter
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_fusion
from benchmarks.compile_time import layers
from tvm_fusion.compiler import _scheduled
from tvm_fusion.config import FusionConfig
from tvm_fusion.core import decisions
from tvm_fusion.deploy.build import codegen
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion import estimate
from tvm_fusion.fusion.claims import ClaimBook, remembering
from tvm_fusion.fusion.estimate import Estimator, RegionCost
from tvm_fusion.fusion.planning import plan as planning
from tvm_fusion.program import group
from tvm_fusion.rewrite.search.search import Searcher
from tvm_fusion.schedule.stage import emit

CPU, HOPPER = "cpu:x86-64-v3", "cuda:sm_90a"
ENCODER = partial(layers.encoder, width=32, heads=2, tokens=16)
STEP = partial(layers.decode_step, width=128, heads=4, key_heads=2, inner=256, context=64)
BLOCKS = partial(layers.residual, channels=16, size=9)

COUNTED = (
    (Searcher, "_search"),
    (Estimator, "claims"),
    (ClaimBook, "_ask"),
    (group, "compose"),
    (emit, "_emit_tuned"),
)


@pytest.fixture
def counts(monkeypatch):
    """How often the work is done that is to be done once for equal regions."""
    found = Counter[str]()

    def counting(name, function):
        @wraps(function)
        def counted(*args, **kwargs):
            found[name] += 1
            return function(*args, **kwargs)

        return counted

    for owner, name in COUNTED:
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    return found


def stages(mod: tvm.IRModule, target: str, **options: Any) -> tuple[tvm.IRModule, list[Any]]:
    """Run all stages on a module; returns the scheduled one and the decisions."""
    config = FusionConfig(**options)
    with remembering(), parse(target).tvm_target(), decisions.recording() as taken:
        return _scheduled(import_model(mod, config), config), taken


def kernels(mod: tvm.IRModule) -> int:
    return sum(isinstance(func, tvm.tirx.PrimFunc) for func in mod.functions.values())


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("make", "target"),
    [(partial(ENCODER, is_masked=False), CPU), (BLOCKS, CPU), (BLOCKS, HOPPER)],
    ids=["encoder", "residual blocks", "residual blocks on a GPU"],
)
def test_many_layers_take_no_more_searches_claims_and_kernels_than_few(make, target, counts):
    few, _ = stages(make(8), target)
    of_few = dict(counts)
    counts.clear()
    many, _ = stages(make(32), target)
    assert of_few["_ask"] > 0
    assert of_few["_emit_tuned"] > 0
    if make is BLOCKS:  # one region, cut every 32 operators: a cut is at one of a block's seven
        assert of_few.pop("_search") <= counts.pop("_search") <= 7
    assert dict(counts) == of_few
    assert kernels(many) == kernels(few)


@pytest.mark.parametrize(
    ("make", "target"), [(ENCODER, CPU), (STEP, HOPPER)], ids=["encoder", "step"]
)
def test_what_all_layers_read_is_asked_about_once_for_each_layer_at_most(make, target, counts):
    """All readers of a mask or of angles may be one group, which is of another structure."""
    few, _ = stages(make(4), target)
    of_few = Counter(counts)
    counts.clear()
    many, _ = stages(make(10), target)
    for name in ("_search", "claims", "_emit_tuned"):
        assert counts[name] == of_few[name], name
    for name in ("_ask", "compose"):
        assert 0 < counts[name] <= of_few[name] + 2 * (10 - 4), name
    assert kernels(many) == kernels(few)


def test_no_kernel_is_lowered_twice(monkeypatch):
    lowered: list[int] = []
    compile_part = codegen._compile

    def counted(mod, *args):
        lowered.append(kernels(mod))
        return compile_part(mod, *args)

    monkeypatch.setattr(codegen, "_compile", counted)
    total = []
    for count in (2, 5):
        lowered.clear()
        tvm_fusion.compile(ENCODER(count), CPU)
        total.append(sum(lowered))
    assert 0 < total[0] == total[1]


@pytest.mark.parametrize(
    ("make", "target"),
    [(ENCODER, CPU), (BLOCKS, CPU), (STEP, HOPPER)],
    ids=["encoder", "residual blocks", "step"],
)
def test_plans_are_the_same_where_nothing_is_shared(make, target, monkeypatch):
    shared, decided = stages(make(3), target)
    monkeypatch.setattr(planning, "remembering_answers", lambda answers: nullcontext())
    alone, decided_alone = stages(make(3), target)
    tvm.ir.assert_structural_equal(shared, alone)
    assert decided == decided_alone


def priced(mod: tvm.IRModule, target: str) -> RegionCost:
    with remembering(), parse(target).tvm_target() as chosen:
        tidied = tvm_fusion.transform.Rewrite("none")(import_model(mod).mod)
        return Estimator(chosen).module(tidied)


@pytest.fixture
def planned(monkeypatch):
    """How many operators there are in each graph that is planned for its price."""
    found: list[int] = []
    plan_all = estimate.plan

    def counted(graph, *args, **kwargs):
        found.append(len(graph.operators))
        return plan_all(graph, *args, **kwargs)

    monkeypatch.setattr(estimate, "plan", counted)
    return found


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("make", "target"),
    [(BLOCKS, CPU), (STEP, HOPPER), (ENCODER, CPU)],
    ids=["residual blocks", "step", "encoder"],
)
def test_many_layers_are_priced_by_a_plan_of_a_few(make, target, planned, monkeypatch):
    """Every layer of a step gets the same kernels, however many read what all of them read."""
    few, many = (priced(make(count), target) for count in (8, 10))
    assert len(planned) == 2
    assert planned[0] == planned[1]
    monkeypatch.setattr(estimate, "layers_of", lambda graph, kept: None)
    whole = priced(make(10), target)
    assert planned[-1] > planned[0]
    assert (many.kernels, many.flops, many.bytes) == (whole.kernels, whole.flops, whole.bytes)
    assert many.operators == whole.operators
    assert many.us == pytest.approx(whole.us, rel=1e-9)
    numbers = [Counter(number for number, _ in cost.groups.values()) for cost in (many, whole)]
    assert numbers[0] == numbers[1]
    assert few.us < many.us


def test_layers_that_share_kernels_are_planned_all(planned):
    def chain(count):
        builder = relax.BlockBuilder()
        x = start = relax.Var("x", relax.TensorType((7, 9), "float32"))
        with builder.function("main", [start]):
            with builder.dataflow():
                for _ in range(count):
                    x = builder.emit(relax.op.exp(builder.emit(relax.op.sin(x))))
                result = builder.emit_output(x)
            builder.emit_func_output(result)
        return builder.get()

    assert priced(chain(20), CPU).kernels == 1
    assert planned[-1] == 40


def test_decisions_name_every_layer():
    taken = [stages(BLOCKS(count), CPU)[1] for count in (3, 5)]
    fused = [sum(d.code == "fused" for d in found) for found in taken]
    assert fused[0] * 5 == fused[1] * 3 > 0
    assert len({(d.producer, d.consumer) for d in taken[1] if d.code == "fused"}) == fused[1]


def test_each_layer_computes_with_its_own_weights(tmp_path):
    width, heads, tokens, count = 32, 2, 16, 3
    mod = layers.encoder(count, width, heads, tokens, as_inputs=True)
    rng = np.random.default_rng()
    given = {
        p.name: (rng.standard_normal([int(e) for e in p.ty.shape.values]) / 4).astype("float32")
        for p in mod["main"].params
    }
    executable = tvm_fusion.load(tvm_fusion.compile(mod, "cpu").export(tmp_path / "layers"))
    (found,) = executable(**given).values()
    weights = iter([v.astype("float64") for name, v in given.items() if name.startswith("w")])
    hidden, mask = (given[name].astype("float64") for name in ("hidden", "mask"))
    expected = hidden
    for _ in range(count):
        expected = _layer(expected, mask, weights, heads)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def _layer(x, mask, weights, heads):
    """One layer in float64, its weights in the order in which the model has them."""

    def linear(x):
        return x @ next(weights) + next(weights)

    def norm(x):
        centred = x - x.mean(-1, keepdims=True)
        root = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / root * next(weights) + next(weights)

    def split(x):
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    query, key, value = (split(linear(x)) for _ in range(3))
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]) + mask
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = scores / scores.sum(-1, keepdims=True) @ value
    x = norm(linear(mixed.transpose(0, 2, 1, 3).reshape(x.shape)) + x)
    inner = linear(x)
    inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
    return norm(linear(inner) + x)


def test_weights_are_laid_aside_for_common_subexpressions_and_come_back():
    """Equal expressions of one weight, or of equal ones, become one; others do not."""
    rng = np.random.default_rng()
    one, other = (rng.standard_normal((160, 160)).astype("float32") for _ in range(2))
    consts = [relax.const(a) for a in (one, one.copy(), other)]
    x = relax.Var("x", relax.TensorType((7, 160), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            products = [builder.emit(relax.op.matmul(x, c)) for c in (*consts, consts[2])]
            total = builder.emit(relax.op.concat(products, 1))
            result = builder.emit_output(total)
        builder.emit_func_output(result)
    after = tvm_fusion.transform.Rewrite("none")(builder.get())["main"]
    assert [p.name for p in after.params] == ["x"]
    found = [
        b.value.args[1]
        for b in after.body.blocks[0].bindings
        if isinstance(b.value, relax.Call) and b.value.op.name == "relax.matmul"
    ]
    assert len(found) == 2
    assert found[0].same_as(consts[0])
    assert found[1].same_as(consts[2])
