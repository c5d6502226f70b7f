"""A layer of a decoder at one token: five kernels on a GPU, the cache written in place.

A block of experts is six.
"""

import math

import numpy as np
import pytest
from cache_models import copied
from emulator.launch import launch
from group_kernels import CUDA
from relax_modules import main_module
from tvm import ir, relax
from tvm.ir.transform import Sequential

from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.memory.in_place import update_in_place
from tvm_fusion.deploy.memory.write_through import write_through
from tvm_fusion.frontend import import_model
from tvm_fusion.pipeline import stages

op = relax.op
NAMES = {"keys": "output_1", "values": "output_2"}
EPSILON, HIDDEN, INNER, PLACES = 1e-5, 128, 192, 320
KERNELS = [
    "norm, Q, K, V, norms of heads, rotary, cache",
    "attention",
    "output",
    "gate and up",
    "down",
]


class Layer:
    """Weights in half precision, the graph of a step, and the same in float64."""

    def __init__(self, heads, shared, width, norms_heads):
        self.heads, self.shared, self.width = heads, shared, width
        self.norms_heads = norms_heads
        draw = np.random.default_rng(heads).standard_normal
        sizes = {
            "qkv": (HIDDEN, (heads + 2 * shared) * width), "out": (heads * width, HIDDEN),
            "gated": (HIDDEN, 2 * INNER), "down": (INNER, HIDDEN),
        }  # fmt: skip
        self.weights = {
            name: (draw(shape) / math.sqrt(shape[0])).astype("float16")
            for name, shape in sizes.items()
        }
        of_norms = {"a": HIDDEN, "b": HIDDEN, "q": width, "k": width}
        self.norms = {n: (1 + draw(size) / 4).astype("float16") for n, size in of_norms.items()}
        self.frequencies = 1e3 ** -np.linspace(0, 1, width // 2)

    def caches(self):
        draw = np.random.default_rng(7).standard_normal
        return [draw((1, self.shared, PLACES, self.width)).astype("float16") for _ in range(2)]

    def angles(self, position):
        turned = self.frequencies * position
        return [f(turned)[None, None, None].astype("float16") for f in (np.cos, np.sin)]

    def module(self):
        heads, shared, width = self.heads, self.shared, self.width
        half, cache = width // 2, (1, shared, PLACES, width)
        builder = relax.BlockBuilder()
        emit = builder.emit
        types = {"x": ((1, 1, HIDDEN), "float16"), "position": ((1,), "int64")}
        types |= dict.fromkeys(NAMES, (cache, "float16"))
        types |= dict.fromkeys(("cos", "sin"), ((1, 1, 1, half), "float16"))
        params = {n: relax.Var(n, relax.TensorType(*ty)) for n, ty in types.items()}
        x, position, keys, values, cos, sin = params.values()

        def normed(x, name):
            return emit(op.nn.rms_norm(x, relax.const(self.norms[name]), [-1], EPSILON))

        def product(x, name):
            rows = emit(op.reshape(x, (1, self.weights[name].shape[0])))
            return emit(op.matmul(rows, relax.const(self.weights[name])))

        def heads_of(part, count, name=""):
            part = emit(op.reshape(part, (1, 1, count, width)))
            part = normed(part, name) if name and self.norms_heads else part
            return emit(op.permute_dims(part, [0, 2, 1, 3]))

        def turned(part):
            low, high = (emit(op.strided_slice(part, [3], [n], [n + half])) for n in (0, half))
            first = op.subtract(emit(op.multiply(low, cos)), emit(op.multiply(high, sin)))
            second = op.add(emit(op.multiply(high, cos)), emit(op.multiply(low, sin)))
            return emit(op.concat([emit(first), emit(second)], -1))

        with builder.function("main", list(params.values())):
            with builder.dataflow():
                joined = product(normed(x, "a"), "qkv")
                parts = emit(op.split(joined, [heads * width, (heads + shared) * width], -1))
                q, k, v = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
                q, k = turned(heads_of(q, heads, "q")), turned(heads_of(k, shared, "k"))
                v = heads_of(v, shared)
                keys, values = (
                    copied(emit, cache, position, new, 2) for cache, new in ((keys, k), (values, v))
                )
                q = emit(op.reshape(q, (shared, heads // shared, width)))
                flat = [emit(op.reshape(c, (shared, PLACES, width))) for c in (keys, values)]
                columns = emit(op.permute_dims(flat[0], [0, 2, 1]))
                scores = emit(op.matmul(q, columns, "float32"))
                scores = emit(op.multiply(scores, relax.const(width**-0.5, "float32")))
                number = emit(op.reshape(position, (1, 1, 1)))
                seen = emit(op.less_equal(relax.const(np.arange(PLACES)[None, None]), number))
                mask = emit(
                    op.where(seen, relax.const(0.0, "float32"), relax.const(-np.inf, "float32"))
                )
                weights = emit(op.nn.softmax(emit(op.add(scores, mask)), -1))
                wide = emit(op.astype(flat[1], "float32"))
                found = emit(op.astype(emit(op.matmul(weights, wide)), "float16"))
                x = emit(op.add(x, emit(op.reshape(product(found, "out"), (1, 1, HIDDEN)))))
                sides = emit(op.split(product(normed(x, "b"), "gated"), 2, -1))
                gate, up = (emit(relax.TupleGetItem(sides, i)) for i in range(2))
                gate = emit(op.nn.silu(emit(op.astype(gate, "float32"))))
                inner = emit(op.multiply(emit(op.astype(gate, "float16")), up))
                x = emit(op.add(x, emit(op.reshape(product(inner, "down"), (1, 1, HIDDEN)))))
                whole = builder.emit_output(relax.Tuple([x, keys, values]))
            builder.emit_func_output(whole)
        return builder.get()

    def reference(self, x, position, keys, values):
        """Compute the step, and write into the caches."""
        width = self.width

        def normed(x, name):
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * self.norms[name]

        def turned(x):
            cos, sin = np.cos(self.frequencies * position), np.sin(self.frequencies * position)
            a, b = np.split(x, 2, -1)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        x = x.reshape(HIDDEN).astype("float64")
        joined = (normed(x, "a") @ self.weights["qkv"]).reshape(-1, width)
        q, k, v = np.split(joined, [self.heads, self.heads + self.shared])
        if self.norms_heads:
            q, k = normed(q, "q"), normed(k, "k")
        keys[0, :, position], values[0, :, position] = turned(k), v
        q = turned(q).reshape(self.shared, -1, width)
        scores = q @ keys[0, :, : position + 1].transpose(0, 2, 1) * width**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + (weights @ values[0, :, : position + 1]).ravel() @ self.weights["out"]
        gate, up = np.split(normed(x, "b") @ self.weights["gated"], 2)
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.weights["down"]


def scheduled(layer):
    with CUDA.tvm_target():
        imported = import_model(layer.module(), FusionConfig())
        mod = update_in_place(imported.mod, imported.signatures, NAMES)
        return write_through(Sequential(stages(FusionConfig()))(mod))


def emulated(mod, given):
    """Run the calls of a scheduled function; returns the results, and how many kernels ran."""
    func, held, launches = mod["main"], {}, 0
    held |= dict(zip(func.params, given, strict=True))

    def value(expr):
        return held[expr] if isinstance(expr, ir.Var) else expr.value.numpy()

    for binding in func.body.blocks[0].bindings:
        call = binding.value
        if isinstance(call, relax.TupleGetItem):
            held[binding.var] = held[call.tuple_value][call.index]
        elif isinstance(call, relax.Tuple):
            held[binding.var] = [value(x) for x in call.fields]
        elif call.op.name == "relax.reshape":
            shape = [int(d) for d in binding.var.ty.shape.values]
            held[binding.var] = value(call.args[0]).reshape(shape)
        else:
            (types,) = call.ty_args
            is_one = not isinstance(types, relax.TupleType)
            args = [value(x) for x in call.args[1].fields]
            places = getattr(call.attrs, "inplace_indices", None) or [-1] * 9
            results = [
                args[p]
                if p >= 0
                else np.full([int(d) for d in t.shape.values], np.nan, str(t.dtype))
                for t, p in zip([types] if is_one else types.fields, map(int, places), strict=False)
            ]
            new = [r for r, p in zip(results, map(int, places), strict=False) if p < 0]
            launches += len(launch(mod[call.args[0]], [*args, *new], CUDA.tvm_target()))
            held[binding.var] = results[0] if is_one else results
    return held[func.body.body], launches


@pytest.fixture(
    scope="module",
    params=[(8, 2, 64, False), (8, 2, 128, True)],
    ids=lambda p: "x".join(map(str, p)),
)
def step(request):
    layer = Layer(*request.param)
    return layer, scheduled(layer)


def test_a_layer_is_five_kernels(step):
    layer, mod = step
    caches = layer.caches()
    expected = [c.astype("float64") for c in caches]
    for position in (0, 3, PLACES - 1):
        x = np.random.default_rng(position).standard_normal((1, 1, HIDDEN)).astype("float16")
        want = layer.reference(x, position, *expected)
        given = [x, np.array([position]), *caches, *layer.angles(position)]
        (found, *states), launches = emulated(mod, given)
        assert launches == len(KERNELS)
        assert all(s is c for s, c in zip(states, caches, strict=True))
        np.testing.assert_allclose(found.ravel(), want, rtol=2e-2, atol=2e-2)
        for cache, other in zip(caches, expected, strict=True):
            np.testing.assert_allclose(cache, other, rtol=1e-2, atol=1e-2)


class Experts:
    """A block of experts behind its router: the graph, and the same in float64."""

    def __init__(self, experts, chosen):
        self.experts, self.chosen = experts, chosen
        draw = np.random.default_rng(experts).standard_normal
        sizes = {
            "router": (HIDDEN, experts), "gated": (experts, 2 * INNER, HIDDEN),
            "down": (experts, HIDDEN, INNER),
        }  # fmt: skip
        self.weights = {
            name: (draw(shape) / math.sqrt(shape[0 if name == "router" else -1])).astype("float16")
            for name, shape in sizes.items()
        }

    def module(self):
        chosen = self.chosen
        x = relax.Var("x", relax.TensorType((1, HIDDEN), "float16"))

        def body(emit, x):
            def by_experts(rows, name, places, width):
                taken = op.take(relax.const(self.weights[name]), places, axis=0, mode="clip")
                found = emit(op.matmul(emit(taken), emit(op.expand_dims(rows, -1))))
                return emit(op.reshape(found, (chosen, width)))

            logits = emit(op.matmul(x, relax.const(self.weights["router"])))
            shares = emit(op.nn.softmax(emit(op.astype(logits, "float32")), -1))
            best = emit(op.topk(shares, chosen, -1, "both", True, "int64"))
            share, place = (emit(relax.TupleGetItem(best, i)) for i in range(2))
            share = emit(op.divide(share, emit(op.sum(share, -1, keepdims=True))))
            share, place = (emit(op.reshape(v, (chosen,))) for v in (share, place))
            rows = emit(op.broadcast_to(x, (chosen, HIDDEN)))
            sides = emit(op.split(by_experts(rows, "gated", place, 2 * INNER), 2, -1))
            gate, up = (emit(relax.TupleGetItem(sides, i)) for i in range(2))
            inner = emit(op.multiply(emit(op.nn.silu(gate)), up))
            found = by_experts(inner, "down", place, HIDDEN)
            share = emit(op.expand_dims(emit(op.astype(share, "float16")), -1))
            found = emit(op.sum(emit(op.multiply(found, share)), 0, keepdims=True))
            return op.add(x, found)

        return main_module([x], body)

    def reference(self, x):
        router, gated, down = (w.astype("float64") for w in self.weights.values())
        shares = np.exp(x @ router)
        places = np.argsort(-shares)[: self.chosen]
        shares = shares[places] / shares[places].sum()
        gate, up = np.split(gated[places] @ x, 2, -1)
        inner = gate / (1 + np.exp(-gate)) * up
        return x + shares @ np.einsum("shi,si->sh", down[places], inner)


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (32, 8)], ids=["Mixtral", "Qwen3-MoE"])
def test_a_block_of_experts_is_six_kernels(experts, chosen):
    block = Experts(experts, chosen)
    with CUDA.tvm_target():
        mod = Sequential(stages(FusionConfig()))(import_model(block.module(), FusionConfig()).mod)
    x = np.random.default_rng(experts).standard_normal((1, HIDDEN)).astype("float16")
    found, launches = emulated(mod, [x])
    assert launches <= 6  # router, shares, the best of them, gate and up, down, sum
    want = block.reference(x[0].astype("float64"))
    np.testing.assert_allclose(found[0], want, rtol=2e-2, atol=2e-2)
