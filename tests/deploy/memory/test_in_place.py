"""Inputs that a function writes one slice of: results, memory, and what is refused."""

import cache_models
import numpy as np
import pytest
import tvm
from cache_models import copied
from tvm import relax

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.memory.in_place import update_in_place
from tvm_fusion.deploy.runtime.tensors import aligned_empty
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

PLACES, NAMES = 9, {"keys": "output_1", "values": "output_2"}
op = relax.op


def written(builder, cache, position, new, axis=2):
    """``cache.index_copy(axis, position, new)`` of one position, as PyTorch's is imported."""
    extent = int(cache.ty.shape[axis])
    count = op.add(position, relax.const(extent, "int64"))
    start = op.where(op.less(position, relax.const(0, "int64")), count, position)
    numbers = relax.const(np.arange(extent)[:, None], "int64")
    hit = op.equal(numbers, op.expand_dims(builder.emit(start), 0))
    behind = [1] * (len(cache.ty.shape) - axis - 1)
    return builder.emit(op.where(op.reshape(hit, [extent, *behind]), new, cache))


def module(dtype="float32", axis=2, spoil=None):
    """A step that writes what it computes into two caches, and sums them up."""
    shape = [1, 2, 6, 16]
    shape[axis] = PLACES
    one = [1 if i == axis else n for i, n in enumerate(shape)]
    builder = relax.BlockBuilder()
    x, keys, values = (
        relax.Var(n, relax.TensorType(s, dtype))
        for n, s in (("x", one), ("keys", shape), ("values", shape))
    )
    position = relax.Var("position", relax.TensorType((1,), "int64"))
    with builder.function("main", [x, position, keys, values]):
        with builder.dataflow():
            new = builder.emit(op.multiply(x, x))
            one_cache = written(builder, keys, position, new, axis)
            other = written(builder, values, position, x, axis)
            result = builder.emit(op.sum(op.multiply(one_cache, other), axis=[axis]))
            if spoil == "read":
                result = builder.emit(op.add(result, op.sum(keys, axis=[axis])))
            if spoil == "value":
                one_cache = builder.emit(op.add(one_cache, one_cache))
            if spoil == "old":
                other = values
            whole = builder.emit_output(relax.Tuple([result, one_cache, other]))
        builder.emit_func_output(whole)
    return builder.get()


def reference(x, position, keys, values, axis=2):
    keys, values = keys.copy(), values.copy()
    place = (slice(None),) * axis + ([position],)
    keys[place], values[place] = x * x, x
    return (keys.astype("float64") * values).sum(axis), keys, values


def draw(shape, seed, aligned=True):
    array = aligned_empty(shape, np.dtype("float32"))
    array[...] = np.random.default_rng(seed).standard_normal(shape)
    if aligned:
        return array
    room = aligned_empty((array.size + 1,), array.dtype)[1:].reshape(shape)
    room[...] = array
    return room


@pytest.fixture(scope="module", params=[1, 2, 3])
def step(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("step") / "artifact"
    tvm_fusion.compile(module(axis=request.param), in_place=NAMES).export(folder)
    return request.param, tvm_fusion.load(folder)


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_every_call_writes_one_slice_where_it_lies(step, aligned, is_bound):
    axis, executable = step
    shape = tuple(executable.signatures["main"].inputs[2].shape)
    keys, values = (draw(shape, seed, aligned) for seed in range(2))
    one = tuple(1 if i == axis else n for i, n in enumerate(shape))
    function = executable.bind({"keys": keys, "values": values}) if is_bound else executable
    given = {} if is_bound else {"keys": keys, "values": values}
    for seed, position in enumerate((0, 5, PLACES - 1, -1, 5)):
        x = draw(one, seed)
        want, want_keys, want_values = reference(x, position, keys, values, axis)
        result = function.run({"x": x, "position": np.array([position]), **given})
        np.testing.assert_allclose(result["output_0"], want, rtol=1e-5, atol=1e-5)
        assert result["output_1"] is keys
        assert result["output_2"] is values
        np.testing.assert_allclose(keys, want_keys, rtol=1e-6)
        np.testing.assert_array_equal(values, want_values)


@pytest.mark.parametrize("spoil", ["read", "value"])
def test_other_states_are_written_when_all_is_read(spoil):
    executable = tvm_fusion.load(tvm_fusion.compile(module(spoil=spoil), in_place=NAMES))
    keys, values = (draw((1, 2, PLACES, 16), seed) for seed in range(2))
    x, old = draw((1, 2, 1, 16), 2), keys.sum(2)
    want, want_keys, want_values = reference(x, 4, keys, values)
    result = executable(x=x, position=np.array([4]), keys=keys, values=values)
    if spoil == "read":
        want = want + old
    else:
        want_keys = 2 * want_keys
    assert result["output_1"] is keys
    np.testing.assert_allclose(result["output_0"], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(keys, want_keys, rtol=1e-6)
    np.testing.assert_array_equal(values, want_values)


def several(shape, axis, count):
    """``cache.index_copy(axis, positions, new)`` of several positions, and the cache's sum."""
    builder = relax.BlockBuilder()
    count = tvm.tirx.Var(count, "int64") if isinstance(count, str) else count
    new_shape = [count if i == axis else n for i, n in enumerate(shape)]
    types = {"new": (new_shape, "float16"), "positions": ((count,), "int64")}
    types["cache"] = (shape, "float16")
    new, positions, cache = (relax.Var(n, relax.TensorType(*ty)) for n, ty in types.items())
    with builder.function("main", [new, positions, cache]):
        with builder.dataflow():
            written = copied(builder.emit, cache, positions, new, axis)
            total = builder.emit(op.sum(op.astype(written, "float32"), axis=[axis]))
            whole = builder.emit_output(relax.Tuple([total, written]))
        builder.emit_func_output(whole)
    return builder.get()


@pytest.mark.parametrize("target", ["llvm", {"kind": "cuda", "arch": "sm_90"}])
@pytest.mark.parametrize(("axis", "count"), [(1, 3), (1, "n"), (2, "n")])
def test_several_slices_cost_what_they_write(axis, count, target):
    dims = {} if count == 3 else {"n": DimRange(1, 5)}
    imported = import_model(several((2, PLACES, 16), axis, count), FusionConfig(dims=dims))
    names = {"cache": "output_1"}
    with tvm.target.Target(target, host="llvm"):
        mod = update_in_place(imported.mod, imported.signatures, names)
    calls = [b.value for b in mod["main"].body.blocks[0].bindings]
    (call,) = [v for v in calls if isinstance(v, tvm.ir.Call) and v.op.name.endswith("inplace")]
    assert [a.name for a in call.args[1].fields] == ["cache", "positions", "new"]
    assert ("T.vectorized(T.int64(8))" in mod[call.args[0]].script()) == (axis == 1)


def test_a_half_cache_is_written_where_arithmetic_is_wide():
    """Passes for half precision widen what a state is chosen from, and round what comes out."""
    builder = relax.BlockBuilder()
    new, position, cache = (
        relax.Var(n, relax.TensorType(shape, dtype))
        for n, shape, dtype in (
            ("new", (1, 16), "float32"),
            ("position", (1,), "int64"),
            ("cache", (PLACES, 16), "float16"),
        )
    )
    with builder.function("main", [new, position, cache]):
        with builder.dataflow():
            wide = builder.emit(op.astype(cache, "float32"))
            written = copied(builder.emit, wide, position, new)
            total = builder.emit(op.sum(written, axis=[0]))
            state = builder.emit(op.astype(written, "float16"))
            whole = builder.emit_output(relax.Tuple([total, state]))
        builder.emit_func_output(whole)
    artifact = tvm_fusion.compile(builder.get(), in_place={"cache": "output_1"}, rewrite="none")
    names = [launch["kernel"] for launch in artifact.manifest["functions"]["main"]["launches"]]
    assert sum("write" in name for name in names) == 1
    assert not any("write_states" in name for name in names)
    state = np.random.default_rng(1).standard_normal((PLACES, 16)).astype("float16")
    x, want = draw((1, 16), 2), state.copy()
    want[3] = x
    result = tvm_fusion.load(artifact)(new=x, position=np.array([3]), cache=state)
    np.testing.assert_array_equal(state, want)
    np.testing.assert_allclose(
        result["output_0"], want.astype("float64").sum(0), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_whole_states_are_part_of_a_cuda_graph():
    artifact = tvm_fusion.compile(
        cache_models.step(1), "cuda:sm_90", in_place=cache_models.IN_PLACE, rewrite="none"
    )
    assert artifact.manifest["functions"]["main"]["host_launches"] <= 3


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_several_slices_are_written_where_they_lie(axis):
    shape = [3, 5, 16]
    mod = several(shape, axis, "n")
    options = {"in_place": {"cache": "output_1"}, "dims": {"n": DimRange(1, 5)}}
    executable = tvm_fusion.load(tvm_fusion.compile(mod, rewrite="none", **options))
    cache = np.random.default_rng(1).standard_normal(shape).astype("float16")
    want = cache.copy()
    for positions in ([1], [2, 0], [shape[axis], 0, -1, -shape[axis] - 1]):
        extents = [len(positions) if i == axis else n for i, n in enumerate(shape)]
        new = np.random.default_rng(2).standard_normal(extents).astype("float16")
        for i, p in enumerate(positions):
            if -shape[axis] <= p < shape[axis]:
                np.moveaxis(want, axis, 0)[p] = np.moveaxis(new, axis, 0)[i]
        result = executable(new=new, positions=np.array(positions), cache=cache)
        assert result["output_1"] is cache
        np.testing.assert_array_equal(cache, want)
        total = want.astype("float64").sum(axis)
        np.testing.assert_allclose(result["output_0"], total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", [PLACES, -PLACES - 1, 10**12])
def test_a_place_that_there_is_not_is_not_written(step, position):
    axis, executable = step
    shape = tuple(executable.signatures["main"].inputs[2].shape)
    keys, values = (draw(shape, seed) for seed in range(2))
    before = keys.copy(), values.copy()
    x = draw(tuple(1 if i == axis else n for i, n in enumerate(shape)), 0)
    executable.run({"x": x, "position": np.array([position]), "keys": keys, "values": values})
    np.testing.assert_array_equal(keys, before[0])
    np.testing.assert_array_equal(values, before[1])


def test_memory_that_cannot_be_written_to_is_refused(step):
    axis, executable = step
    shape = tuple(executable.signatures["main"].inputs[2].shape)
    keys, values = (draw(shape, seed) for seed in range(2))
    values.flags.writeable = False
    x = draw(tuple(1 if i == axis else n for i, n in enumerate(shape)), 0)
    before = keys.copy()
    with pytest.raises(UserError, match="input 'values', which is written to, is read-only"):
        executable.run({"x": x, "position": np.array([0]), "keys": keys, "values": values})
    with pytest.raises(UserError, match="input 'values', which is written to, is read-only"):
        executable.bind({"keys": keys, "values": values})
    np.testing.assert_array_equal(keys, before)


@pytest.mark.parametrize(
    ("target", "launches"),
    [("llvm", 0), ({"kind": "cuda", "arch": "sm_90"}, 1), ({"kind": "rocm", "mcpu": "gfx942"}, 1)],
)
def test_both_slices_are_one_kernel_over_the_inputs(target, launches):
    imported = import_model(module("float16"))
    with tvm.target.Target(target, host="llvm"):
        mod = update_in_place(imported.mod, imported.signatures, NAMES)
    values = [b.value for b in mod["main"].body.blocks[0].bindings]
    (call,) = [v for v in values if isinstance(v, tvm.ir.Call) and v.op.name.endswith("inplace")]
    assert [a.name for a in call.args[1].fields[:2]] == ["keys", "values"]
    assert [int(i) for i in call.attrs.inplace_indices] == [0, 1]
    text = mod[call.args[0]].script()
    assert text.count('thread="blockIdx.x"') == launches
    assert "T.vectorized(T.int64(8))" in text


@pytest.mark.slow
def test_inputs_that_are_written_to_are_static_on_a_gpu():
    artifact = tvm_fusion.compile(module(), "cuda:sm_90", in_place=NAMES)
    main = artifact.manifest["functions"]["main"]
    assert main["in_place"] == NAMES
    assert main["host_launches"] <= 3


@pytest.mark.parametrize(
    ("spoil", "names", "message"),
    [
        (None, {"x": "output_0"}, "output 'output_0' has shape .1, 2, 16. and dtype float32, and"),
        ("old", {**NAMES, "values": "output_1"}, "'output_2' is input 'values' as it was before"),
        (None, {"cache": "output_1"}, "there is no input 'cache'; expected some of x, position"),
        (None, {"keys": "new"}, "there is no output 'new'; expected one of output_0, output_1"),
        (None, "keys", "in_place is 'keys'; expected several names"),
        (None, ("keys",), "there is no output 'keys'"),
    ],
)
def test_what_is_refused(spoil, names, message):
    with pytest.raises(UserError, match=message):
        tvm_fusion.compile(module(spoil=spoil), in_place=names)
