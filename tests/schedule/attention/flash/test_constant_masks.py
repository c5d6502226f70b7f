"""Constant masks from the graph to the kernels: none is read, hidden tiles are skipped."""

import numpy as np
import pytest
import tvm
from emulator.launch import is_for_gpu, launch
from group_kernels import CPU, CUDA, arrays, close, extents, group, needs_caches, tensor
from relax_modules import main_module
from tvm import relax, tirx

from tests.schedule.attention.attention_graphs import attention, op, reference, tensors
from tvm_fusion import transform
from tvm_fusion.core.constants.weight_names import WeightNames, constants, tracking
from tvm_fusion.core.tir.loops import find
from tvm_fusion.fusion.fuse import plan_module
from tvm_fusion.schedule.attention.flash.block import KeyTiles
from tvm_fusion.schedule.attention.flash.model import configs
from tvm_fusion.schedule.attention.flash.problem import flash_problem
from tvm_fusion.schedule.attention.problem.constants import read_group
from tvm_fusion.schedule.stage.emit import emit_groups, group_of

pytestmark = pytest.mark.slow_beyond(3)

HALF, INF = "float16", np.inf
LOWEST = float(np.finfo("float32").min)


def distances(queries, keys):
    return np.arange(keys) - np.arange(queries)[:, None]


def causal(queries, keys, offset=0):
    return distances(queries, keys) <= offset


def window(queries, keys, width):
    return causal(queries, keys) & (distances(queries, keys) > -width)


def flipped(mask, place):
    changed = mask.copy()
    changed[place] = ~changed[place]
    return changed


def masked(mask, fill=-INF, is_added=False, factor=0.25):
    """Body and reference of attention under a constant mask."""

    def score(emit, s):
        dtype = str(s.ty.dtype)
        s = emit(op.multiply(s, relax.const(factor, dtype)))
        if is_added:
            array = np.where(mask, 0, fill).astype(dtype)
            return emit(op.add(s, relax.const(array, dtype)))
        return emit(op.where(relax.const(mask), s, relax.const(fill, dtype)))

    def expected(s):
        return (
            s * factor + np.where(mask, 0, fill) if is_added else np.where(mask, s * factor, fill)
        )

    return attention(score), reference(expected)


def stages_of(params, body, spec):
    """The module after planning, and its emissions by group."""
    target = spec.tvm_target()
    with target:
        mod = transform.Legalize()(main_module(params, body))
        mod = transform.FuseOperators()(mod)
        emitted, broken = emit_groups(mod, target)
    assert not broken
    return mod, emitted


def check(params, body, expected, spec, tolerance, reads_mask=False):
    """Emit the only group as the stages do, run it and compare; returns its kernels."""
    mod, emitted = stages_of(params, body, spec)
    ((gvar, emission),) = emitted.items()
    (made,) = emission.kernels
    group = group_of(mod, mod[gvar])
    read = [group.inputs[slot.index] for slot in made.reads]
    tensors_read = [v.name for v in read if v.is_constant and v.shape]
    assert bool(tensors_read) == reads_mask
    inputs = arrays(params)
    passed = [inputs[v.name] if v.name in inputs else masks_of(mod, gvar, group, v) for v in read]
    results = [np.full(extents(v.type), 7).astype(v.dtype) for v in group.outputs]
    if is_for_gpu(made.func):
        launch(made.func, [*passed, *results], CUDA.tvm_target())
    else:
        func = made.func.with_attr("global_symbol", "main")
        target = spec.tvm_target()
        built = tvm.compile(tvm.IRModule({"main": func}), target, tir_pipeline="tvm_fusion")
        results = [tvm.runtime.tensor(r) for r in results]
        built["main"](*map(tvm.runtime.tensor, passed), *results)
        results = [r.numpy() for r in results]
    with np.errstate(invalid="ignore"):
        close(results, expected(*(x.astype("float64") for x in inputs.values())), tolerance)
    return made.func


def masks_of(mod, gvar, group, value):
    """The constant that the call passes where a group has a parameter."""
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    (call,) = [c for c in calls if isinstance(c, relax.Call) and c.op == gvar]
    return call.args[group.inputs.index(value)].value.numpy()


MASKS = {
    "causal": (causal(77, 77), {}),
    "causal, added": (causal(70, 70), {"is_added": True}),
    "causal, large": (causal(70, 70), {"fill": LOWEST, "is_added": True}),
    "decoding": (causal(21, 150, 129), {}),
    "fewer keys": (causal(150, 70, -3)[3:], {}),
    "window": (window(150, 150, 40), {}),
    "window, added": (window(150, 150, 19), {"is_added": True}),
    "later keys": (~causal(70, 140, 3), {}),
    "heads in rows": (np.tile(causal(32, 70, 38), (3, 1)), {}),
    "heads in uneven rows": (np.tile(causal(35, 50), (3, 1)), {}),
    "heads in rows, window": (np.tile(window(64, 64, 20), (2, 1)), {"is_added": True}),
    "by heads": (np.broadcast_to(causal(70, 70), (1, 2, 70, 70)).copy(), {}),
    "padding": (np.arange(70)[None] < 51, {}),
    "nothing": (np.ones((1, 1, 70, 70), bool), {}),
    "nothing, added": (np.ones((70, 70), bool), {"is_added": True}),
    "but for a corner": (flipped(causal(70, 70), (69, 0)), {}),
}
ON_CPUS = ("causal", "causal, large", "decoding", "window", "heads in uneven rows")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "spec"), [*((c, CUDA) for c in MASKS), *((c, CPU) for c in ON_CPUS)]
)
def test_masks_are_not_read(case, spec):
    mask, options = MASKS[case]
    dtype = "float32" if spec is CPU or options.get("fill") == LOWEST else HALF
    queries, keys = mask.shape[-2:]
    heads = 2 if mask.ndim > 2 else 1
    params = tensors(1, heads, queries if queries > 1 else 33, keys, 32, dtype=dtype)
    check(params, *masked(mask, **options), spec, 2e-5 if dtype == "float32" else 4e-3)


@pytest.mark.parametrize(
    ("place", "spec"), [((1, 69), CUDA), ((30, 31), CUDA), ((69, 1), CUDA), ((69, 69), CPU)]
)
def test_almost_causal_masks_are_read(place, spec):
    mask = flipped(causal(70, 70), place)
    dtype = "float32" if spec is CPU else HALF
    tolerance = 2e-5 if spec is CPU else 4e-3
    check(tensors(1, 2, 70, 70, 32, dtype=dtype), *masked(mask), spec, tolerance, reads_mask=True)


def by_positions(heads, rows):
    """Causal attention of heads that lie one behind the other, by the position of each row."""
    row = np.tile(np.arange(rows, dtype="int32"), heads).reshape(1, heads * rows, 1)

    def score(emit, s):
        dtype = str(s.ty.dtype)
        key = relax.const(np.arange(rows, dtype="int32").reshape(1, 1, rows))
        seen = emit(op.less_equal(key, relax.const(row)))
        return emit(op.where(seen, s, relax.const(-INF, dtype)))

    return attention(score), reference(lambda s: np.where(np.arange(rows) <= row, s, -INF))


def folded(heads, rows):
    """Queries of heads that share one of keys and values."""
    lengths = zip("qkv", (heads * rows, rows, rows), strict=True)
    return [tensor(name, 1, 2, length, 32, dtype=HALF) for name, length in lengths]


@pytest.mark.parametrize("rows", [64, 35])
def test_positions_of_folded_heads_are_not_read(rows):
    check(folded(3, rows), *by_positions(3, rows), CUDA, 4e-3)


@pytest.mark.parametrize("rows", [96, 70])
def test_blocks_of_folded_heads_visit_the_tiles_that_a_row_sees(rows):
    members = group(folded(3, rows), by_positions(3, rows)[0], CUDA)
    problem = flash_problem(read_group(members))
    config = next(c for c in configs(problem, CUDA.device) if (c.block_m, c.block_n) == (32, 16))
    where = {axis.var: tirx.IntImm("int64", 0) for axis in problem.pattern.batch}
    for first in range(0, 3 * rows, 32):
        found = KeyTiles(problem, config, where, tirx.IntImm("int64", first)).count
        last = max(row % rows for row in range(first, min(first + 32, 3 * rows)))
        assert int(tvm.sym.Analyzer().simplify(found)) == last // 16 + 1


@pytest.mark.parametrize("is_added", [False, True])
def test_weights_are_read(is_added):
    """The mask is a weight of the model: other elements may take its place."""
    body, _ = masked(causal(40, 40), is_added=is_added)
    found = main_module(tensors(1, 2, 40, 40, 32), body)
    names = [(f"w{i}", c) for i, c in enumerate(constants(found)) if c.value.shape]
    with tracking(WeightNames(names)):
        target = CPU.tvm_target()
        with target:
            mod = transform.FuseOperators()(transform.Legalize()(found))
            emitted, _ = emit_groups(mod, target)
    ((gvar, emission),) = emitted.items()
    group = group_of(mod, mod[gvar])
    read = [group.inputs[slot.index] for slot in emission.kernels[0].reads]
    assert sum(v.is_constant and bool(v.shape) for v in read) == 1


@pytest.mark.slow
def test_groups_that_differ_in_their_mask_alone_are_two():
    one, two = causal(70, 70), window(70, 70, 9)

    def body(emit, q, k, v):
        first = masked(one)[0](emit, q, k, v)
        return masked(two)[0](emit, emit(first), k, v)

    def expected(q, k, v):
        (first,) = masked(one)[1](q, k, v)
        return masked(two)[1](first, k, v)

    params = tensors(1, 2, 70, 70, 32)
    _, emitted = stages_of(params, body, CPU)
    assert len(emitted) == 2
    target = CPU.tvm_target()
    with target:
        whole = relax.get_pipeline("tvm_fusion", target=target)(main_module(params, body))
    built = tvm.compile(whole, target, relax_pipeline=None, tir_pipeline="tvm_fusion")
    inputs = arrays(params)
    machine = relax.VirtualMachine(built, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, inputs.values())).numpy()
    close([result], expected(*(x.astype("float64") for x in inputs.values())), 2e-5)


def test_the_plan_is_the_same_with_and_without_a_closed_form():
    plans = []
    for mask in (causal(70, 70), flipped(causal(70, 70), (3, 60))):
        with CUDA.tvm_target() as target:
            mod = main_module(tensors(1, 2, 70, 70, 32, dtype=HALF), masked(mask)[0])
            (plan,) = plan_module(transform.Legalize()(mod), target).values()
        plans.append([(c.template.name, c.launches) for c in plan.claims])
    assert plans[0] == plans[1] == [("attention", 1)]


@pytest.mark.parametrize("spec", [pytest.param(CPU, marks=needs_caches), CUDA], ids=["cpu", "cuda"])
def test_work_follows_the_mask(spec):
    """Loops over tiles of keys, or over their panels, end where the mask does."""
    params = tensors(1, 1, 300, 300, 64, dtype="float32" if spec is CPU else HALF)
    computed = []
    for mask in (causal(300, 300), np.ones((300, 300), bool)):
        _, emitted = stages_of(params, masked(mask)[0], spec)
        (emission,) = emitted.values()
        loops = find(emission.kernels[0].func.body, tirx.For)
        computed.append([x for x in loops if not isinstance(x.extent, tirx.IntImm)])
    assert len(computed[0]) > len(computed[1])
