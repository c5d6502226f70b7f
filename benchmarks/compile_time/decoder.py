"""GPT-2's decoder of any depth, operator by operator as importers give it."""

import math

import tvm
from tvm import relax

TOKENS, WIDTH, HEADS = 128, 768, 12


def decoder(layers: int) -> tvm.IRModule:
    """Build the module.

    Parameters
    ----------
    layers
        Blocks of attention and multi-layer perceptron; the widths are GPT-2's, batch 1.

    Returns
    -------
    tvm.IRModule
        With one function ``main`` of the hidden states and the weights.
    """
    op, f32 = relax.op, "float32"
    weights: list[relax.Var] = []

    def weight(*shape: int) -> relax.Var:
        weights.append(relax.Var(f"w{len(weights)}", relax.TensorType(shape, f32)))
        return weights[-1]

    builder = relax.BlockBuilder()
    emit = builder.emit

    def number(value: float) -> relax.Expr:
        return relax.const(value, f32)

    def norm(x: relax.Expr) -> relax.Expr:
        return emit(op.nn.layer_norm(x, weight(WIDTH), weight(WIDTH), [-1]))

    def linear(x: relax.Expr, inputs: int, outputs: int) -> relax.Expr:
        return emit(op.add(emit(op.matmul(x, weight(inputs, outputs))), weight(outputs)))

    def gelu(x: relax.Expr) -> relax.Expr:
        cube = emit(op.multiply(emit(op.multiply(x, x)), x))
        inner = emit(op.add(x, emit(op.multiply(cube, number(0.044715)))))
        inner = emit(op.tanh(emit(op.multiply(inner, number(math.sqrt(2 / math.pi))))))
        outer = emit(op.add(inner, number(1.0)))
        return emit(op.multiply(emit(op.multiply(x, number(0.5))), outer))

    def heads(x: relax.Expr) -> relax.Expr:
        parts = emit(op.reshape(x, (1, TOKENS, HEADS, WIDTH // HEADS)))
        return emit(op.permute_dims(parts, [0, 2, 1, 3]))

    def attention(x: relax.Expr) -> relax.Expr:
        parts = emit(op.split(linear(x, WIDTH, 3 * WIDTH), 3, -1))
        query, key, value = (heads(emit(parts[i])) for i in range(3))
        scores = emit(op.matmul(query, emit(op.permute_dims(key, [0, 1, 3, 2]))))
        scores = emit(op.divide(scores, number(math.sqrt(WIDTH // HEADS))))
        scores = emit(op.where(mask, scores, number(-1e9)))
        mixed = emit(op.matmul(emit(op.nn.softmax(scores)), value))
        mixed = emit(op.permute_dims(mixed, [0, 2, 1, 3]))
        return linear(emit(op.reshape(mixed, (1, TOKENS, WIDTH))), WIDTH, WIDTH)

    hidden = relax.Var("hidden", relax.TensorType((1, TOKENS, WIDTH), f32))
    mask = relax.Var("mask", relax.TensorType((1, 1, TOKENS, TOKENS), "bool"))
    with builder.function("main"):
        with builder.dataflow():
            x: relax.Expr = hidden
            for _ in range(layers):
                x = emit(op.add(attention(norm(x)), x))
                inner = gelu(linear(norm(x), WIDTH, 4 * WIDTH))
                x = emit(op.add(linear(inner, 4 * WIDTH, WIDTH), x))
            result = builder.emit_output(norm(x))
        builder.emit_func_output(result, [hidden, mask, *weights])
    return builder.get()
