"""A block of a transformer over a cache, and experts, as Relax modules of named weights."""

import numpy as np
import tvm
from tvm import relax

from tvm_fusion.core.tir.ragged import grouped_matmul
from tvm_fusion.frontend.operators.packed_weights import (
    Packing,
    RelaxOperators,
    dequantize,
    planes_of,
    split_planes,
)

op = relax.op
WIDTH, HEADS, GROUPS, PLACES, INNER, CLASSES = 16, 4, 2, 8, 24, 12
HEAD = WIDTH // HEADS
WIDE = 256  # numbers of few bits of smaller weights would be folded
IN_PLACE = {"keys": "output_1", "values": "output_2"}


def weight(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32") / 4


def block(heads=HEADS, groups=GROUPS):
    """Attention of grouped heads over cached keys and values, a gated MLP, and logits."""
    shapes = {
        "x": ((1, WIDTH), "float32"),
        "place": ((1,), "int64"),
        "keys": ((groups, PLACES, HEAD), "float32"),
        "values": ((groups, PLACES, HEAD), "float32"),
    }
    builder = relax.BlockBuilder()
    inputs = [relax.Var(n, relax.TensorType(shape, dtype)) for n, (shape, dtype) in shapes.items()]
    x, place, keys, values = inputs
    emit = builder.emit

    def cached(cache, new):
        numbers = relax.const(np.arange(PLACES)[:, None])
        hit = emit(op.equal(numbers, emit(op.expand_dims(place, 0))))
        new = emit(op.permute_dims(emit(op.reshape(new, (1, groups, HEAD))), [1, 0, 2]))
        return emit(op.where(hit, new, cache))

    def repeated(cache):
        wide = emit(op.broadcast_to(emit(op.expand_dims(cache, 1)),
                                    (groups, heads // groups, PLACES, HEAD)))  # fmt: skip
        return emit(op.reshape(wide, (heads, PLACES, HEAD)))

    with builder.function("main", inputs):
        with builder.dataflow():
            q, k, v = (
                emit(op.matmul(x, relax.const(weight(WIDTH, n * HEAD))))
                for n in (heads, groups, groups)
            )
            k, v = cached(keys, k), cached(values, v)
            q = emit(op.permute_dims(emit(op.reshape(q, (1, heads, HEAD))), [1, 0, 2]))
            scores = emit(op.matmul(q, emit(op.permute_dims(repeated(k), [0, 2, 1]))))
            mixed = emit(op.matmul(emit(op.nn.softmax(scores, -1)), repeated(v)))
            mixed = emit(op.reshape(emit(op.permute_dims(mixed, [1, 0, 2])), (1, heads * HEAD)))
            y = emit(op.add(x, emit(op.matmul(mixed, relax.const(weight(heads * HEAD, WIDTH))))))
            both = emit(op.split(emit(op.matmul(y, relax.const(weight(WIDTH, 2 * INNER)))), 2, 1))
            gated = emit(op.multiply(emit(op.nn.silu(emit(both[0]))), emit(both[1])))
            y = emit(op.add(y, emit(op.matmul(gated, relax.const(weight(INNER, WIDTH))))))
            logits = emit(op.matmul(y, relax.const(weight(WIDTH, CLASSES))))
            result = builder.emit_output(relax.Tuple([logits, k, v]))
        builder.emit_func_output(result)
    return builder.get()


def experts(count=3, rows=6):
    """Rows in groups, each by two matrices of its own, and added to what they were."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, WIDTH), "float32"))
    ends = relax.Var("ends", relax.TensorType((count,), "int32"))
    with builder.function("main", [x, ends]):
        with builder.dataflow():
            first, second = (
                relax.const(weight(count, *shape)) for shape in ((WIDTH, INNER), (INNER, WIDTH))
            )
            y = builder.emit(builder.call_te(grouped_matmul, x, first, ends, "float32"))
            y = builder.emit(op.nn.relu(y))
            y = builder.emit(builder.call_te(grouped_matmul, y, second, ends, "float32"))
            result = builder.emit_output(op.add(x, y))
        builder.emit_func_output(result)
    return builder.get()


def packed(bits=4, size=8, dtype="float32"):
    """Two products by weights of few bits in blocks of rows that share a scale, and a zero."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, WIDE), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for rows, columns in ((3 * WIDE, WIDE), (WIDE, 3 * WIDE)):
                weight = packed_weight(builder.emit, rows, columns, bits, size, dtype)
                y = builder.emit(op.matmul(y, builder.emit(op.permute_dims(weight))))
                y = builder.emit(op.nn.relu(y))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.get()


def packed_weight(emit, rows, columns, bits, size, dtype):
    """A weight as importers write it, of drawn numbers; of 0 bits, float8."""
    draw = np.random.default_rng(rows)
    if not bits:
        values = draw.standard_normal((rows, columns)).astype("float8_e4m3fn")
        form, arrays = Packing(rows, columns, columns, ()), {"values": values}
    else:
        blocks, planes = columns // size, planes_of(bits)
        numbers = draw.integers(0, 1 << bits, (rows, blocks, size), "uint8")
        form, arrays = Packing(rows, columns, size, planes), split_planes(numbers, planes)
        arrays["scales"] = draw.random((rows, blocks), "float32") / 8
        arrays["zeros"] = draw.integers(0, 1 << bits, (rows, blocks), "uint8")
    consts = {name: relax.const(tvm.runtime.tensor(array)) for name, array in arrays.items()}
    return dequantize(form, consts, dtype, RelaxOperators(emit))


def inputs_of(groups=GROUPS):
    draw = np.random.default_rng(3).standard_normal
    return {
        "x": draw((1, WIDTH)).astype("float32"),
        "place": np.array([2]),
        "keys": draw((groups, PLACES, HEAD)).astype("float32"),
        "values": draw((groups, PLACES, HEAD)).astype("float32"),
    }


def collectives(mod: tvm.IRModule) -> list[str]:
    """Name the collectives of all functions, in order."""
    values = [b.value for f in mod.functions.values() if isinstance(f, relax.Function)
              for block in f.body.blocks for b in block.bindings]  # fmt: skip
    names = [getattr(v.op, "name", "") for v in values if isinstance(v, relax.Call)]
    return [name.removeprefix("relax.ccl.") for name in names if name.startswith("relax.ccl.")]
