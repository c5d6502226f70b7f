"""Operators as TVM lowers them, static and symbolic, and whatever their parts are called."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_modules import main_module
from tvm import relax, s_tir, te, tirx
from tvm.relax import op

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.ecg.mapping_types.classify import classify
from tvm_fusion.ecg.mapping_types.table import MappingType

OTO, REO, SHU = MappingType.ONE_TO_ONE, MappingType.REORGANIZE, MappingType.SHUFFLE
OTM, MTM, OPAQUE = MappingType.ONE_TO_MANY, MappingType.MANY_TO_MANY, MappingType.OPAQUE
N = object()  # stands for a symbolic dimension


def lower(operator, *shapes, dtypes=("float32",) * 4):
    """Return the one PrimFunc of an operator; the second shape may be int64 indices."""
    n = tirx.Var("n", "int64")
    params = [
        relax.Var(f"x{k}", relax.TensorType([n if d is N else d for d in shape], dtype))
        for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    ]
    with parse("cpu").tvm_target():
        mod = transform.Legalize()(main_module(params, operator(*params)))
    (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return func


INDEX = ("float32", "int64")
OPERATORS = {
    "exp": (op.exp, [(N, 7)], [OTO]),
    "gelu": (op.nn.gelu, [(N, 7)], [OTO]),
    "add": (op.add, [(N, 7), (N, 7)], [OTO, OTO]),
    "add a row": (op.add, [(N, 7), (7,)], [OTO, OTM]),
    "add a column": (op.add, [(N, 7), (N, 1)], [OTO, OTM]),
    "clip": (lambda x: op.clip(x, 0, 6), [(N, 7)], [OTO]),
    "concat": (lambda *x: op.concat(x, 1), [(N, 7), (N, 5)], [OTO, OTO]),
    "stack": (lambda *x: op.stack(x, 0), [(5, 7), (5, 7)], [OTO, OTO]),
    "split": (lambda x: op.split(x, 2, 1), [(N, 8)], [OTO]),
    "strided slice": (lambda x: op.strided_slice(x, [1], [1], [7], [2]), [(N, 9)], [OTO]),
    "pad": (lambda x: op.nn.pad(x, [0, 0, 2, 3]), [(N, 7)], [OTO]),
    "tril": (op.tril, [(9, 9)], [OTO]),
    "broadcast to": (lambda x: op.broadcast_to(x, (5, 7)), [(1, 7)], [OTM]),
    "tile": (lambda x: op.tile(x, (2, 1)), [(N, 7)], [OTM]),
    "repeat": (lambda x: op.repeat(x, 3, 1), [(5, 7)], [OTM]),
    "take": (lambda x, i: op.take(x, i, 0), [(9, N), (5,)], [OTM, OTM]),
    "gather elements": (lambda x, i: op.gather_elements(x, i, 1), [(5, 9), (5, 3)], [OTM, OTO]),
    "sum": (lambda x: op.sum(x, 1), [(N, 7)], [MTM]),
    "sum over one": (lambda x: op.sum(x, 1), [(N, 1)], [REO]),
    "argmax": (lambda x: op.argmax(x, 1), [(N, 7)], [MTM]),
    "softmax": (op.nn.softmax, [(N, 7)], [MTM]),
    "layer norm": (lambda x, g, b: op.nn.layer_norm(x, g, b, [-1]), [(N, 7), (7,), (7,)],
                   [MTM, OTM, OTM]),
    "group norm": (lambda x, g, b: op.nn.group_norm(x, g, b, 2, 1, [2, 3]),
                   [(1, 4, 5, 7), (4,), (4,)], [MTM, OTM, OTM]),
    "matmul": (op.matmul, [(N, 7), (7, 5)], [MTM, MTM]),
    "conv2d": (op.nn.conv2d, [(1, 3, 9, 7), (5, 3, 3, 3)], [MTM, MTM]),
    "pointwise conv2d": (op.nn.conv2d, [(1, 3, 9, 7), (5, 3, 1, 1)], [MTM, MTM]),
    "max pool": (lambda x: op.nn.max_pool2d(x, (3, 3)), [(1, 3, 9, 7)], [MTM]),
    "reshape": (lambda x: op.reshape(x, (42, 10)), [(60, 7)], [REO]),
    "flatten": (op.flatten, [(5, 7, 3)], [REO]),
    "squeeze": (lambda x: op.squeeze(x, 1), [(N, 1, 7)], [REO]),
    "expand dims": (lambda x: op.expand_dims(x, 0), [(N, 7)], [REO]),
    "transpose": (op.permute_dims, [(N, 7)], [SHU]),
    "transpose a row": (op.permute_dims, [(1, 12)], [REO]),
    "flip": (lambda x: op.flip(x, 1), [(5, 7)], [SHU]),
    "nearest resize": (
        lambda x: op.image.resize2d(x, (64, 64), method="nearest_neighbor"),
        [(1, 1024, 32, 32)],
        [OTM],
    ),
    "linear resize": (lambda x: op.image.resize2d(x, (9, 9)), [(1, 3, 5, 5)], [MTM]),
    "scatter": (op.scatter_elements, [(5, 7), (3, 7), (3, 7)], [OPAQUE] * 3),
    "cumsum": (lambda x: op.cumsum(x, 1), [(5, 7)], [OPAQUE]),
    "full like": (lambda x: op.zeros_like(x), [(5, 7)], [None]),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operands(name):
    operator, shapes, expected = OPERATORS[name]
    has_indices = name in {"take", "gather elements", "scatter"}
    func = lower(operator, *shapes, dtypes=(*INDEX, "float32") if has_indices else ("float32",) * 4)
    result = classify(func)
    assert [result.operand(k) for k in range(len(expected))] == expected


def test_symbolic_reshapes():
    def fold(x):
        n, m, k = x.ty.shape
        return op.reshape(x, (n * m, k))

    def unfold(x):
        n = x.ty.shape[0]
        return op.reshape(x, (n, 8, 5))

    assert classify(lower(fold, (N, 7, 5))).type is REO
    assert classify(lower(unfold, (N, 40))).type is REO


def test_functions_of_several_operators():
    def depth_to_space(x):
        x = op.reshape(x, (1, 2, 2, 3, 5, 7))
        return op.reshape(op.permute_dims(x, (0, 3, 4, 1, 5, 2)), (1, 3, 10, 14))

    assert classify(fused(depth_to_space, (1, 12, 5, 7))).type is SHU
    there_and_back = fused(lambda x: op.reshape(op.reshape(x, (7, 5)), (5, 7)), (5, 7))
    assert classify(there_and_back).type is OTO
    written_out = fused(lambda x: op.divide(x, op.sum(op.exp(x), 1, keepdims=True)), (5, 7))
    assert classify(written_out).type is MTM


def test_large_permutation_without_closed_form_stays_a_permutation():
    def depth_to_space(x):
        x = op.reshape(x, (1, 2, 2, 16, 360, 360))
        return op.reshape(op.permute_dims(x, (0, 3, 4, 1, 5, 2)), (1, 16, 720, 720))

    (pair,) = classify(fused(depth_to_space, (1, 64, 360, 360))).pairs.values()
    assert pair.type is SHU
    assert "too large" in pair.note


def test_large_reshape_is_proved():
    func = lower(lambda x: op.reshape(x, (8, 320, 64, 64)), (8, 32, 40960))
    (pair,) = classify(func).pairs.values()
    assert (pair.type, pair.note) == (REO, "")


def fused(operator, shape):
    """Return the PrimFunc of several operators in one group."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("group", [x], attrs={"Primitive": True}):
        with builder.dataflow():
            result = builder.emit_output(operator(x))
        builder.emit_func_output(result)
    group = relax.transform.LegalizeOps()(relax.transform.Normalize()(builder.get()))
    y = relax.Var("y", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder(group)
    with builder.function("main", [y]):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(group.get_global_var("group"), [y]))
        builder.emit_func_output(result)
    mod = relax.transform.FuseTIR()(builder.get())
    (func,) = [
        f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc) and len(f.params) == 2
    ]
    return func


def rename(func):
    """Strip attributes and annotations, and give blocks and variables meaningless names."""

    def block(node):
        return s_tir.SBlock(
            node.iter_vars, [], [], "b", node.body, node.init, node.alloc_buffers,
            node.match_buffers,
        )  # fmt: skip

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, block), order="post")
    renamed = tirx.PrimFunc(func.params, body, func.ret_type)
    for kind in (tvm.ir.PrimType, tirx.BufferType):
        renamed = tvm_ffi.structural_map(renamed, (tvm.ir.Var, Renaming(kind)), order="post")
    return renamed


class Renaming:
    def __init__(self, kind):
        self.kind, self.fresh = kind, {}

    def __call__(self, var):
        if isinstance(var.ty, self.kind):
            return self.fresh.setdefault(var, tvm.ir.Var(f"q{len(self.fresh)}", var.ty))
        return var


@pytest.mark.parametrize("name", ["softmax", "matmul", "conv2d", "argmax", "transpose", "take"])
def test_names_and_attributes_play_no_part(name):
    operator, shapes, expected = OPERATORS[name]
    func = rename(lower(operator, *shapes, dtypes=INDEX if name == "take" else ("float32",) * 4))
    assert not func.attrs
    assert "softmax" not in func.script()
    assert [classify(func).operand(k) for k in range(len(expected))] == expected


def test_equal_functions_are_analysed_once():
    first, second = (lower(op.exp, (N, 11)) for _ in range(2))
    assert not first.same_as(second)
    assert classify(first) is classify(second.with_attr("op_pattern", 8))


STEPS = 4
LIMIT = 400


def random_view(rng, shape):
    """Return a random data movement of `shape`, as numpy and as Relax do it."""
    kind = rng.integers(6)
    axis = int(rng.integers(len(shape)))
    if kind == 0:
        order = [int(k) for k in rng.permutation(len(shape))]
        return lambda x: np.transpose(x, order), lambda x: op.permute_dims(x, order)
    if kind == 1:
        return lambda x: np.flip(x, axis), lambda x: op.flip(x, axis)
    if kind == 2:
        factors = [d for n in shape for d in prime_factors(n)]
        rng.shuffle(factors)
        cut = int(rng.integers(len(factors) + 1))
        new = (int(np.prod(factors[:cut])), int(np.prod(factors[cut:])))
        return lambda x: np.reshape(x, new), lambda x: op.reshape(x, new)
    if kind == 3:
        start, stride = int(rng.integers(shape[axis])), int(rng.integers(1, 4))
        index = (slice(None),) * axis + (slice(start, None, stride),)
        return lambda x: x[index], lambda x: op.strided_slice(
            x, [axis], [start], [shape[axis]], [stride]
        )
    if kind == 4:
        return lambda x: np.repeat(x, 2, axis), lambda x: op.repeat(x, 2, axis)
    return lambda x: np.expand_dims(x, axis), lambda x: op.expand_dims(x, axis)


def prime_factors(n):
    for p in range(2, n + 1):
        if n % p == 0:
            return [p, *prime_factors(n // p)]
    return []


def class_of_positions(source, moved):
    """Classify by the definition: `moved` holds the input positions that the output reads."""
    positions = moved.ravel()
    if len(np.unique(positions)) < positions.size:
        return OTM
    if positions.size < source.size:
        return OTO
    if not np.array_equal(positions, source.ravel()):
        return SHU
    return OTO if moved.shape == source.shape else REO


@pytest.mark.parametrize("seed", range(25))
def test_random_data_movement_against_the_definition(seed):
    rng = np.random.default_rng(seed)
    source = np.arange(180).reshape(4, 5, 9)
    moved, steps = source, []
    for _ in range(STEPS):
        by_numpy, by_relax = random_view(rng, moved.shape)
        candidate = by_numpy(moved)
        if candidate.size <= LIMIT:
            moved = candidate
            steps.append(by_relax)

    def operator(x):
        for step in steps:
            x = step(x)
        return x

    assert classify(fused(operator, source.shape)).type is class_of_positions(source, moved)


def test_symbolic_extent_from_te():
    n = te.var("n", "int64")
    x = te.placeholder((n * 2, 6), "float32")
    y = te.compute((n, 2, 6), lambda i, j, k: x[j * n + i, k])
    assert classify(te.create_prim_func([x, y])).type is SHU
