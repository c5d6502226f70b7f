"""What rows claims on a GPU it emits: rows of tables with computed places, windows over maps."""

import numpy as np
import pytest
from group_kernels import CUDA, arrays, group, run, tensor
from relax_modules import main_module
from tvm import relax
from tvm.ir.transform import Sequential

from benchmarks.broken_claims import broken_claims
from tvm_fusion import pipeline, transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.fusion.fuse import plan_module
from tvm_fusion.schedule.rows.template import Rows

op = relax.op
GPUS = ("cuda:sm_90", "rocm:gfx942")


def embedding(emit, ids, table, scale, shift):
    """Negative places count from the end; then a row of the table is normalised."""
    is_negative = emit(op.less(ids, relax.const(0, "int64")))
    wrapped = emit(op.where(is_negative, emit(ids + relax.const(100, "int64")), ids))
    return op.nn.layer_norm(emit(op.take(table, wrapped, axis=0)), scale, shift, axes=[-1])


def shared_embedding(emit, ids, table, scale):
    """The place and the row that it names are results as well."""
    is_negative = emit(op.less(ids, relax.const(0, "int64")))
    place = emit(op.where(is_negative, emit(ids + relax.const(100, "int64")), ids))
    row = emit(op.take(table, place, axis=0))
    return relax.Tuple([emit(op.nn.rms_norm(row, scale, axes=[-1])), row, place])


def centred_pool(emit, x):
    mean = emit(op.mean(x, [2, 3], keepdims=True))
    return op.nn.max_pool2d(emit(x - mean), (3, 3), (2, 2), (1, 1))


def mean_and_pool(emit, x):
    mean = emit(op.mean(x, [2, 3], keepdims=True))
    return relax.Tuple([mean, emit(op.nn.max_pool2d(x, (2, 2), (2, 2)))])


IMAGE = tensor("x", 2, 16, 12, 12)
TABLE = tensor("ids", 4, 16, dtype="int64"), tensor("table", 100, 64)
MODELS = {
    "embedding": (embedding, (*TABLE, tensor("scale", 64), tensor("shift", 64))),
    "shared embedding": (shared_embedding, (*TABLE, tensor("scale", 64))),
    "centred pool": (centred_pool, (IMAGE,)),
    "mean and pool": (mean_and_pool, (IMAGE,)),
}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", MODELS)
def test_claims_are_kept(name, gpu):
    compute, params = MODELS[name]
    with recording() as decisions, parse(gpu).tvm_target():
        Sequential([transform.NormalizeImport(), *pipeline.stages()])(
            main_module(list(params), compute)
        )
    assert not broken_claims(decisions)


def planned(name, *params):
    """Operators of the kernels that a GPU gets for a model."""
    target = parse("cuda:sm_90a").tvm_target()
    with target:
        passes = [transform.NormalizeImport(), transform.Rewrite(), transform.Legalize()]
        mod = Sequential(passes)(main_module(params, name))
        (plan,) = plan_module(mod, target).values()
    return [group.title for group in plan.groups]


def test_a_lookup_that_others_read_is_one_kernel_with_its_norm():
    params = (tensor("ids", 4, 16, dtype="int64"), tensor("table", 100, 64), tensor("scale", 64))
    assert len(planned(shared_embedding, *params)) == 1


def test_norms_of_a_sequence_are_not_one_blocks():
    """One thread would reduce each token, term after term: 193 us for 197 tokens on an H200."""

    def one_token(emit, x, scale, shift, number):
        norm = emit(op.nn.layer_norm(x, scale, shift, axes=[-1]))
        return op.take(norm, number, axis=1)

    number = relax.Var("number", relax.TensorType((), "int64"))
    params = (tensor("x", 1, 197, 768), tensor("scale", 768), tensor("shift", 768), number)
    assert len(planned(one_token, *params)) == 2


def pooled_norm(emit, x, scale, shift):
    mean = emit(op.mean(x, [1, 2]))
    return op.nn.layer_norm(mean, scale, shift, axes=[-1])


def test_columns_inside_of_one_row_have_a_thread_each():
    """Of one warp, 49 pixels of 768 channels and their norm took 20.6 us on an H200."""
    params = [tensor("x", 1, 7, 7, 72), tensor("scale", 72), tensor("shift", 72)]
    members = group(params, pooled_norm, CUDA)
    claim = Rows().claim(members, CUDA.device)
    assert claim.details.config.threads == 96
    many = [tensor("x", 200, 7, 7, 72), *params[1:]]
    assert Rows().claim(group(many, pooled_norm, CUDA), CUDA.device).details.config.threads < 96
    func = Rows().emit(claim, CUDA.tvm_target()).kernels[0].func
    given = arrays(params)
    x, scale, shift = (a.astype("float64") for a in given.values())
    mean = x.mean((1, 2))
    centred = mean - mean.mean(-1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
    # Sums of 49 and of 72 terms, at most as large as the largest pixel, over the deviation.
    error = (49 + 72) * 2.0**-23 * np.abs(x).max() / np.sqrt((centred**2).mean())
    found = run(func, members, given, CUDA)[0]
    np.testing.assert_allclose(found, exact, rtol=2.0**-20, atol=error * np.abs(scale).max())


def test_a_mean_of_many_pixels_is_no_part_of_one_row():
    """196 loads of each thread in front of both products took 24 us on an H200."""

    def excited(emit, x, narrow, wide):
        mean = emit(op.mean(x, [1, 2]))
        squeezed = emit(op.nn.silu(emit(op.matmul(mean, narrow))))
        return op.sigmoid(emit(op.matmul(squeezed, wide)))

    params = (tensor("x", 1, 14, 14, 240), tensor("narrow", 240, 10), tensor("wide", 10, 240))
    titles = planned(excited, *params)
    assert len(titles) > 1
    assert "mean" in titles[0]
    assert "matmul" not in titles[0]


def test_a_clamp_by_a_flag_of_the_whole_tensor():
    """T5's, before its norm: flags of rows; then rows, each of which reduces them by itself."""

    def clamped(emit, x, scale):
        flags = emit(op.astype(emit(op.isinf(x)), "int8"))
        flag = emit(op.astype(emit(op.max(flags)), "bool"))
        high = emit(op.where(flag, relax.const(64512.0), relax.const(65504.0)))
        kept = emit(op.minimum(emit(op.maximum(x, emit(op.negative(high)))), high))
        return relax.Tuple([emit(op.nn.rms_norm(kept, scale, axes=[-1])), kept])

    titles = planned(clamped, tensor("x", 1, 128, 512), tensor("scale", 512))
    assert len(titles) == 2, titles
    assert [title.count("rms_norm") for title in titles] == [0, 1]


@pytest.mark.parametrize("largest", [np.inf, -np.inf, 65504])
def test_rows_reduce_the_flag_of_a_clamp_by_themselves(largest):
    """Where one element of all is infinite, rows without one are clamped as well."""
    low, high, eps = 64512, 65504, 1e-6

    def body(emit, flags, x, scale):
        flag = emit(op.astype(emit(op.max(flags)), "bool"))
        limits = [[relax.const(s * v, "float16") for v in (low, high)] for s in (-1, 1)]
        least, most = (emit(op.where(flag, *pair)) for pair in limits)
        kept = emit(op.minimum(emit(op.maximum(x, least)), most))
        return [kept, emit(op.nn.rms_norm(kept, scale, axes=[-1], epsilon=eps))]

    params = [
        tensor("flags", 1, 37, 1, dtype="int8"),
        tensor("x", 1, 37, 72, dtype="float16"),
        tensor("scale", 72, dtype="float16"),
    ]
    members = group(params, body, CUDA)
    claim = Rows().claim(members, CUDA.device)
    assert claim.parallelism == 37
    given = arrays(params)
    x = given["x"]
    x[0, 5, 7], x[0, 36, 0] = 65504, largest
    given["flags"] = np.isinf(x).any(-1, keepdims=True).astype("int8")
    func = Rows().emit(claim, CUDA.tvm_target()).kernels[0].func
    kept, normed = run(func, members, given, CUDA, 1)
    limit = low if np.isinf(x).any() else high
    wanted = np.clip(x.astype("float64"), -limit, limit)
    np.testing.assert_array_equal(kept, wanted)
    exact = wanted / np.sqrt((wanted**2).mean(-1, keepdims=True) + eps) * given["scale"]
    np.testing.assert_allclose(normed, exact, rtol=2.0**-10, atol=2.0**-24)


def test_a_shared_lookup_is_right():
    def body(emit, ids, table, scale):
        return list(shared_embedding(emit, ids, table, scale).fields)

    def reference(ids, table, scale):
        rows = table[ids]
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5) * scale, rows, ids

    params = [tensor("ids", 3, 7, dtype="int64"), tensor("table", 100, 72), tensor("scale", 72)]
    members = group(params, body, CUDA)
    claim = Rows().claim(members, CUDA.device)
    (made,) = Rows().emit(claim, CUDA.tvm_target()).kernels
    inputs = {**arrays(params), "ids": np.arange(21).reshape(3, 7) * 4 % 97 - 2}
    expected = reference(*(inputs[name] for name in ("ids", "table", "scale")))
    by_shape = {
        (3, 7, 72): [*expected[:2]],
        (3, 7): [np.where(expected[2] < 0, expected[2] + 100, expected[2])],
    }
    results = run(made.func, members, inputs, CUDA)
    for result in results:
        errors = [np.abs(result - want).max() for want in by_shape[result.shape]]
        assert min(errors) < 1e-4
    assert len(results) == 3
