"""Operators that read and write blocked images: right, and in vectors of channels."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from tests.layout.laid_out import Layout, compiled, laid_out_module, pack
from tests.relax_modules import main_module
from tvm_fusion import transform
from tvm_fusion.device import parse

op = relax.op


def weight(seed, *shape):
    return relax.const(np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype("float32"))


def norm(x, channels, groups):
    return op.nn.group_norm(x, weight(1, channels), weight(2, channels), groups, 1, [2, 3])


def squeeze_excite(x, e, channels):
    s = e(op.mean(x, [2, 3], keepdims=True))
    s = e(op.nn.relu(e(op.nn.conv2d(s, weight(3, 4, channels, 1, 1)))))
    s = e(op.sigmoid(e(op.nn.conv2d(s, weight(4, channels, 4, 1, 1)))))
    return op.multiply(x, s)


def shuffle(x, e, channels):
    n, _, h, w = (int(d) for d in x.ty.shape.values)
    parts = e(op.reshape(e(op.tanh(x)), (n, 2, channels // 2, h, w)))
    parts = e(op.permute_dims(parts, [0, 2, 1, 3, 4]))
    return op.nn.relu(e(op.reshape(parts, (n, channels, h, w))))


def layer_norm(x, e, channels):
    last = e(op.permute_dims(x, [0, 2, 3, 1]))
    last = e(op.nn.layer_norm(last, weight(1, channels), weight(2, channels), [-1]))
    return op.permute_dims(last, [0, 3, 1, 2])


def pooled_product(x, e, channels):
    pooled = e(op.nn.max_pool2d(x, (3, 3), strides=(2, 2)))
    return op.nn.conv2d(pooled, weight(5, 16, channels, 1, 1))


ONE = {
    "affine": lambda x, e, c: op.nn.silu(e(op.multiply(x, weight(0, 1, c, 1, 1)))),
    "max_pool": lambda x, e, c: op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1)),
    "avg_pool": lambda x, e, c: op.nn.avg_pool2d(x, (2, 2), strides=(2, 2)),
    "adaptive_pool": lambda x, e, c: op.nn.adaptive_avg_pool2d(x, (2, 3)),
    "global_pool": lambda x, e, c: op.mean(x, [2, 3]),
    "resize": lambda x, e, c: op.image.resize2d(x, (14, 10), method="nearest_neighbor"),
    "bilinear": lambda x, e, c: op.image.resize2d(x, (11, 13), method="linear"),
    "softmax": lambda x, e, c: op.nn.softmax(x, 1),
    "group_norm": lambda x, e, c: norm(x, c, 2),
    "pair_norm": lambda x, e, c: op.nn.silu(e(norm(x, c, c // 2))),
    "instance_norm": lambda x, e, c: norm(x, c, c),
    "layer_norm": layer_norm,
    "squeeze_excite": squeeze_excite,
    "shuffle": shuffle,
    "pooled_product": pooled_product,
}
# Channels and lanes: whole blocks; a block that is not full; one of which two lanes are left.
BLOCKS = {name: [(24, 16)] for name in ONE}
BLOCKS["pair_norm"] = [(32, 16), (24, 16), (12, 4)]
BLOCKS |= {name: [(16, 8), (24, 16), (22, 8)] for name in ("max_pool", "group_norm", "affine")}
for _name in ("max_pool", "global_pool", "group_norm", "affine", "shuffle"):
    BLOCKS[_name] = [*BLOCKS[_name], (24, 0)]  # channels last


def check(params, body, layout, arrays):
    mod = main_module(params, body)
    expected = compiled(mod)(*map(tvm.runtime.tensor, arrays)).numpy()
    found, claim = laid_out_module(mod, layout)
    by_name = {p.name: a for p, a in zip(params, arrays, strict=True)}
    names = [p.name.removesuffix(f"_{layout.name(4)}") for p in found["main"].params]
    inputs = [tvm.runtime.tensor(pack(by_name[n], layout)) for n in names]
    result = compiled(found)(*inputs).numpy()
    np.testing.assert_allclose(result, pack(expected, layout), rtol=2e-5, atol=2e-5)
    return found, claim


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "channels", "lanes"), [(name, *block) for name in ONE for block in BLOCKS[name]]
)
def test_right(name, channels, lanes):
    shape = (2, channels, 7, 5)
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    array = np.random.default_rng(channels).standard_normal(shape).astype("float32")
    check([x], lambda e, v: e(ONE[name](v, e, channels)), Layout(lanes), [array])


@pytest.mark.parametrize(
    ("first", "second", "lanes", "columns"),
    [(16, 8, 8, 3), (24, 8, 16, 3), (5, 12, 4, 3), (32, 48, 16, 16)],
)
def test_concat_is_right(first, second, lanes, columns):
    shapes = (1, first, 5, columns), (1, second, 5, columns)
    params = [
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in zip("ab", shapes, strict=True)
    ]
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(s).astype("float32") for s in shapes]
    check(params, lambda e, a, b: e(op.concat([a, b], 1)), Layout(lanes), arrays)


def test_pooled_product_reads_whole_blocks():
    """Vectors of the rows that it pools end where blocks do, instead of gathering."""
    func = kernel("pooled_product", 64, Layout(16), "cpu:x86-64-v4")
    loops, loads = [], []
    tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    lanes = {f.loop_var: int(f.extent) for f in loops if f.kind == tirx.ForKind.VECTORIZED}
    tvm_ffi.structural_walk(func.body, (ir.TensorLoad, loads.append))
    read = [x for x in loads if x.source.same_as(func.params[0])]
    assert read
    for found in read:
        used = [v for i in found.indices for v in tirx.analysis.undefined_vars(i) if v in lanes]
        assert used
        assert all(lanes[v] == 16 for v in used)


def kernel(name, channels, layout, target):
    x = relax.Var("x", relax.TensorType((1, channels, 6, 10), "float32"))
    mod = main_module([x], lambda e, v: e(ONE[name](v, e, channels)))
    found, _ = laid_out_module(mod, layout, target)
    with parse(target).tvm_target():
        scheduled = transform.ScheduleKernels()(found)
    (func,) = [f for f in scheduled.functions.values() if isinstance(f, tirx.PrimFunc)]
    return func


@pytest.mark.parametrize(
    "name",
    [
        "affine",
        "max_pool",
        "avg_pool",
        "global_pool",
        "resize",
        "group_norm",
        "pair_norm",
        "instance_norm",
    ],
)
@pytest.mark.parametrize(("channels", "block"), [(32, 16), (24, 0)])
def test_stores_are_vectors_of_channels(name, channels, block):
    """Every store to an output is in a vector loop whose lanes are contiguous."""
    func = kernel(name, channels, Layout(block), "cpu:x86-64-v4")
    output = func.params[-1]
    loops, stores = [], []
    tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    lanes = {f.loop_var for f in loops if f.kind == tirx.ForKind.VECTORIZED}
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    written = [s for s in stores if s.buffer.same_as(output)]
    assert written
    for store in written:
        last = store.indices[-1]
        assert lanes & set(tirx.analysis.undefined_vars(last)), store
        outer = [v for i in store.indices[:-1] for v in tirx.analysis.undefined_vars(i)]
        assert not lanes & set(outer), store


@pytest.mark.parametrize("name", ["global_pool", "group_norm", "pair_norm", "instance_norm"])
def test_sums_have_four_registers(name):
    """A sum waits for the one before it: neighbouring pixels are added to others."""
    func = kernel(name, 32, Layout(16), "cpu:x86-64-v4")
    blocks, stores = [], []
    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, blocks.append))
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    sums = [b for k in blocks for b in k.alloc_buffers if [int(d) for d in b.shape] == [64]]
    assert sums
    assert all(any(s.buffer.same_as(b) for s in stores) for b in sums)
