"""Models of equal layers, each with weights of its own, in the operators that importers give.

Compiling them shows what is done once for each layer, and what once for all equal ones.
"""

import math
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

op = relax.op

_POOL = 1 << 16  # numbers that weights are cut from


class Builder:
    """Emits operators, and makes weights no two of which are equal.

    Parameters
    ----------
    dtype
        Of weights and numbers.
    as_inputs
        Whether weights are inputs of the function instead of constants.
    """

    def __init__(self, dtype: str, as_inputs: bool) -> None:
        self.dtype = dtype
        self.builder = relax.BlockBuilder()
        self.inputs: list[relax.Var] = []
        self.weights: list[relax.Expr] = []
        self._as_inputs = as_inputs
        self._pool = np.random.default_rng(0).standard_normal(_POOL).astype(dtype) / 8

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression."""
        return self.builder.emit(expr)

    def input(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> relax.Var:
        """Add an input of the function."""
        self.inputs.append(relax.Var(name, relax.TensorType(shape, dtype or self.dtype)))
        return self.inputs[-1]

    def weight(self, *shape: int) -> relax.Expr:
        """Make the next weight."""
        number = len(self.weights)
        if self._as_inputs:
            self.weights.append(self.input(f"w{number}", shape))
        else:
            values = np.resize(np.roll(self._pool, 97 * number), shape)
            self.weights.append(relax.const(values, self.dtype))
        return self.weights[-1]

    def number(self, value: float) -> relax.Expr:
        """Make a scalar constant."""
        return relax.const(value, self.dtype)

    def module(self, body: Callable[[], list[relax.Expr]]) -> tvm.IRModule:
        """Build ``main`` of what ``body`` emits and returns."""
        with self.builder.function("main"):
            with self.builder.dataflow():
                results = body()
                whole = results[0] if len(results) == 1 else relax.Tuple(results)
                result = self.builder.emit_output(whole)
            self.builder.emit_func_output(result, self.inputs)
        return self.builder.get()


def encoder(
    layers: int,
    width: int = 768,
    heads: int = 12,
    tokens: int = 128,
    as_inputs: bool = False,
    is_masked: bool = True,
) -> tvm.IRModule:
    """Build a post-norm Transformer encoder in float32, such as BERT's.

    Parameters
    ----------
    layers, width, heads, tokens
        Of the model; the inner width is four times ``width``.
    as_inputs
        Whether weights are inputs of the function instead of constants.
    is_masked
        Whether there is an additive mask, which all layers read.

    Returns
    -------
    tvm.IRModule
        One function ``main`` of hidden states ``(1, tokens, width)``, and of the mask.
    """
    make = Builder("float32", as_inputs)
    emit, weight, number = make.emit, make.weight, make.number
    depth = width // heads

    def linear(x: relax.Expr, inputs: int, outputs: int) -> relax.Expr:
        return emit(op.add(emit(op.matmul(x, weight(inputs, outputs))), weight(outputs)))

    def parts(x: relax.Expr) -> relax.Expr:
        x = emit(op.reshape(linear(x, width, width), (1, tokens, heads, depth)))
        return emit(op.permute_dims(x, [0, 2, 1, 3]))

    def attention(x: relax.Expr) -> relax.Expr:
        query, key, value = (parts(x) for _ in range(3))
        scores = emit(op.matmul(query, emit(op.permute_dims(key, [0, 1, 3, 2]))))
        scores = emit(op.divide(scores, number(math.sqrt(depth))))
        scores = scores if mask is None else emit(op.add(scores, mask))
        scores = emit(op.nn.softmax(scores))
        mixed = emit(op.permute_dims(emit(op.matmul(scores, value)), [0, 2, 1, 3]))
        return linear(emit(op.reshape(mixed, (1, tokens, width))), width, width)

    def gelu(x: relax.Expr) -> relax.Expr:
        inner = emit(op.erf(emit(op.divide(x, number(math.sqrt(2))))))
        outer = emit(op.multiply(x, emit(op.add(inner, number(1.0)))))
        return emit(op.multiply(outer, number(0.5)))

    def norm(x: relax.Expr) -> relax.Expr:
        return emit(op.nn.layer_norm(x, weight(width), weight(width), [-1]))

    hidden = make.input("hidden", (1, tokens, width))
    mask = make.input("mask", (1, 1, 1, tokens)) if is_masked else None

    def body() -> list[relax.Expr]:
        x: relax.Expr = hidden
        for _ in range(layers):
            x = norm(emit(op.add(attention(x), x)))
            inner = gelu(linear(x, width, 4 * width))
            x = norm(emit(op.add(linear(inner, 4 * width, width), x)))
        return [x]

    return make.module(body)


def decode_step(
    layers: int,
    width: int = 2048,
    heads: int = 32,
    key_heads: int = 8,
    inner: int = 8192,
    context: int = 2048,
    as_inputs: bool = False,
) -> tvm.IRModule:
    """Build a Llama's step for one token in float16, with a cache of a fixed length.

    Parameters
    ----------
    layers, width, heads, key_heads, inner, context
        Of the model, by default those of Llama 3.2 with 1B parameters.
    as_inputs
        Whether weights are inputs of the function instead of constants.

    Returns
    -------
    tvm.IRModule
        One function ``main``. It returns the hidden states, and all caches with the token's keys
        and values written: see :func:`caches`.
    """
    make = Builder("float16", as_inputs)
    emit, weight, number = make.emit, make.weight, make.number
    depth = width // heads

    def linear(x: relax.Expr, inputs: int, outputs: int) -> relax.Expr:
        return emit(op.matmul(x, emit(op.permute_dims(weight(outputs, inputs)))))

    def norm(x: relax.Expr) -> relax.Expr:
        wide = emit(op.astype(x, "float32"))
        mean = emit(op.mean(emit(op.multiply(wide, wide)), [-1], keepdims=True))
        mean = emit(op.add(mean, relax.const(1e-5, "float32")))
        wide = emit(op.multiply(wide, emit(op.rsqrt(mean))))
        return emit(op.multiply(weight(width), emit(op.astype(wide, "float16"))))

    def parts(x: relax.Expr, count: int) -> relax.Expr:
        x = emit(op.reshape(linear(x, width, count * depth), (1, 1, count, depth)))
        return emit(op.permute_dims(x, [0, 2, 1, 3]))

    def rotated(x: relax.Expr) -> relax.Expr:
        half = depth // 2
        first = emit(op.strided_slice(x, [3], [0], [half]))
        second = emit(op.strided_slice(x, [3], [half], [depth]))
        turned = emit(op.concat([emit(op.negative(second)), first], 3))
        return emit(op.add(emit(op.multiply(x, cos)), emit(op.multiply(turned, sin))))

    def written(cache: relax.Expr, values: relax.Expr) -> relax.Expr:
        numbers = relax.const(np.arange(context).reshape(1, 1, context, 1), "int64")
        return emit(op.where(emit(op.equal(numbers, position)), values, cache))

    def attention(x: relax.Expr, number_of: int, mask: relax.Expr) -> relax.Expr:
        query, key, value = rotated(parts(x, heads)), parts(x, key_heads), parts(x, key_heads)
        kept = []
        for name, new in (("keys", rotated(key)), ("values", value)):
            cache = make.input(f"{name}{number_of}", (1, key_heads, context, depth))
            kept.append(written(cache, new))
        results.extend(kept)
        keys, values = (
            emit(
                op.reshape(
                    emit(
                        op.broadcast_to(
                            emit(op.expand_dims(x, 2)),
                            (1, key_heads, heads // key_heads, context, depth),
                        )
                    ),
                    (1, heads, context, depth),
                )
            )
            for x in kept
        )
        scores = emit(op.matmul(query, emit(op.permute_dims(keys, [0, 1, 3, 2]))))
        scores = emit(op.multiply(scores, number(depth**-0.5)))
        scores = emit(op.nn.softmax(emit(op.add(scores, mask))))
        mixed = emit(op.permute_dims(emit(op.matmul(scores, values)), [0, 2, 1, 3]))
        return linear(emit(op.reshape(mixed, (1, 1, width))), width, width)

    def gated(x: relax.Expr) -> relax.Expr:
        gate, up = linear(x, width, inner), linear(x, width, inner)
        gate = emit(op.multiply(gate, emit(op.sigmoid(gate))))
        return linear(emit(op.multiply(gate, up)), inner, width)

    hidden = make.input("hidden", (1, 1, width))
    position = make.input("position", (1,), "int64")
    cos, sin = (make.input(name, (1, 1, 1, depth)) for name in ("cos", "sin"))
    results: list[relax.Expr] = []

    def body() -> list[relax.Expr]:
        numbers = relax.const(np.arange(context).reshape(1, 1, 1, context), "int64")
        seen = emit(op.less_equal(numbers, position))
        mask = emit(op.where(seen, number(0.0), number(-65504.0)))
        x: relax.Expr = hidden
        for layer in range(layers):
            x = emit(op.add(x, attention(norm(x), layer, mask)))
            x = emit(op.add(x, gated(norm(x))))
        return [norm(x), *results]

    return make.module(body)


def caches(layers: int) -> dict[str, str]:
    """Name the caches of a decode step, each with the output that it holds afterwards."""
    names = [f"{name}{layer}" for layer in range(layers) for name in ("keys", "values")]
    return {name: f"output_{place}" for place, name in enumerate(names, 1)}


def residual(
    blocks: int, channels: int = 64, size: int = 56, as_inputs: bool = False
) -> tvm.IRModule:
    """Build residual blocks of two 3x3 convolutions in float32, norms folded into biases.

    Parameters
    ----------
    blocks, channels, size
        Of the model; images are square.
    as_inputs
        Whether weights are inputs of the function instead of constants.

    Returns
    -------
    tvm.IRModule
        One function ``main`` of images ``(1, channels, size, size)``.
    """
    make = Builder("float32", as_inputs)
    emit, weight = make.emit, make.weight

    def convolution(x: relax.Expr) -> relax.Expr:
        x = emit(op.nn.conv2d(x, weight(channels, channels, 3, 3), padding=(1, 1)))
        return emit(op.add(x, weight(1, channels, 1, 1)))

    image = make.input("image", (1, channels, size, size))

    def body() -> list[relax.Expr]:
        x: relax.Expr = image
        for _ in range(blocks):
            inner = emit(op.nn.relu(convolution(x)))
            x = emit(op.nn.relu(emit(op.add(convolution(inner), x))))
        return [x]

    return make.module(body)


MODELS: dict[str, Callable[[int], tvm.IRModule]] = {
    "encoder": encoder,
    "decode_step": decode_step,
    "residual": residual,
}
