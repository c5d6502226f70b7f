"""Random Relax functions over a few operators, for properties of the planner."""

import tvm
from hypothesis import strategies as st
from tvm import relax

_SHAPE = (6, 8)


@st.composite
def modules(draw, most: int = 14) -> tvm.IRModule:
    """Draw a function over (6, 8) tensors: maps, reductions, transposes, reshapes, splits."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(_SHAPE, "float32")) for i in range(2)]
    with builder.function("main", params):
        with builder.dataflow():
            values = list(params)
            for _ in range(draw(st.integers(2, most))):
                kind = draw(st.sampled_from(sorted(_KINDS)))
                operands = [draw(st.sampled_from(values)) for _ in range(2)]
                values.append(_KINDS[kind](builder, *operands))
            leaving = draw(
                st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True)
            )
            outputs = [builder.emit_output(v) for v in leaving]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return relax.transform.DeadCodeElimination()(builder.get())


def _exp(builder, x, _y):
    return builder.emit(relax.op.tanh(x))


def _add(builder, x, y):
    return builder.emit(relax.op.add(x, y))


def _mean(builder, x, y):
    mean = builder.emit(relax.op.mean(x, -1, keepdims=True))
    return builder.emit(relax.op.subtract(y, mean))


def _softmax(builder, x, _y):
    return builder.emit(relax.op.nn.softmax(x))


def _transpose(builder, x, _y):
    turned = builder.emit(relax.op.permute_dims(x))
    return builder.emit(relax.op.reshape(turned, _SHAPE))


def _reshape(builder, x, y):
    flat = builder.emit(relax.op.reshape(x, (48,)))
    other = builder.emit(relax.op.reshape(y, (48,)))
    return builder.emit(relax.op.reshape(builder.emit(relax.op.multiply(flat, other)), _SHAPE))


def _split(builder, x, _y):
    parts = builder.emit(relax.op.split(x, 2, axis=1))
    swapped = relax.Tuple([relax.TupleGetItem(parts, 1), relax.TupleGetItem(parts, 0)])
    return builder.emit(relax.op.concat(swapped, axis=1))


_KINDS = {
    "add": _add,
    "exp": _exp,
    "mean": _mean,
    "reshape": _reshape,
    "softmax": _softmax,
    "split": _split,
    "transpose": _transpose,
}
