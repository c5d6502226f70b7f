"""Layers of a graph: which operators repeat, and the graph with fewer of them."""

import numpy as np
import pytest
from relax_modules import typed_module as module
from tvm import relax

from benchmarks.compile_time import layers as models
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph, Value
from tvm_fusion.ecg.layers import layers_of
from tvm_fusion.ecg.legalization.legalize import Legalize

op = relax.op
SHAPE = relax.TensorType((7, 24), "float32")


def weight():
    return relax.const(np.random.default_rng().standard_normal((24, 24)).astype("float32"))


def graph(mod, legalize):
    with parse("cpu:x86-64-v3").tvm_target():
        mod = legalize(mod)
    func = mod["main"]
    return Graph(mod, func, func.body.blocks[0])


def chain(count, after=lambda emit, found: emit(op.exp(found[-1]))):
    """Products with a residual, which another operator precedes and one follows."""

    def body(emit, x):
        found = [emit(op.sin(x))]
        for _ in range(count):
            x = emit(op.tanh(emit(op.matmul(found[-1], weight()))))
            found.append(emit(op.add(x, found[-1])))
        return [after(emit, found)]

    return module(body, SHAPE)


def described(found):
    """Operators with what they read, by position: equal for graphs that compute the same."""
    number = {v: (i, k) for i, op in enumerate(found.operators) for k, v in enumerate(op.results)}

    def operand(value):
        if not isinstance(value, Value):
            return str(value)
        return number.get(value, (str(value.type), value.is_constant))

    return [
        (
            hash(one.func),
            [operand(o) for o in one.operands],
            [(v.leaves, [(found.operators.index(c)) for c in v.consumers]) for v in one.results],
        )
        for one in found.operators
    ]


@pytest.mark.parametrize(
    ("many", "few"),
    [
        (chain(9), chain(4)),
        (models.encoder(9, 32, 2, 16), models.encoder(4, 32, 2, 16)),
        (
            models.decode_step(9, 128, 4, 2, 256, 64, as_inputs=True),
            models.decode_step(4, 128, 4, 2, 256, 64, as_inputs=True),
        ),
        (models.residual(9, 16, 9), models.residual(4, 16, 9)),
    ],
    ids=["chain", "encoder", "step", "residual blocks"],
)
def test_a_shortened_graph_is_that_of_fewer_layers(many, few):
    legalize = Legalize()
    found, expected = graph(many, legalize), graph(few, legalize)
    layers = layers_of(found, 3)
    assert layers.count >= 8
    kept = layers.count - 5  # its phase may leave a part of the first layer in front of it
    layer_of = layers.shorten(found, kept)
    assert described(found) == described(expected)
    positions = {one.index: number for number, one in enumerate(found.operators)}
    assert len(layer_of) == kept * layers.size
    assert all((positions[i] - layers.first) // layers.size == k for i, k in layer_of.items())


def joined(emit, found):
    return emit(op.concat(found, 1))


def skipping(emit, found):
    return emit(op.add(found[-1], found[6]))


@pytest.mark.parametrize(("after", "count"), [(joined, None), (skipping, 5)])
def test_nothing_behind_reads_a_layer_but_the_last(after, count):
    layers = layers_of(graph(chain(9, after), Legalize()), 3)
    assert (layers and layers.count) == count


def test_few_layers_are_none():
    assert layers_of(graph(chain(3), Legalize()), 3) is None
    assert layers_of(graph(chain(12), Legalize()), 3).size == 3


@pytest.mark.parametrize("shared", [range(0), range(12), range(5, 7)])
def test_weights_are_each_layers_own_or_of_all(shared):
    """One that two of the layers share makes them others than the rest."""
    common = weight()

    def body(emit, x):
        for layer in range(12):
            w = common if layer in shared else weight()
            x = emit(op.tanh(emit(op.matmul(x, w))))
        return [x]

    layers = layers_of(graph(module(body, SHAPE), Legalize()), 3)
    assert layers.count == (5 if len(shared) == 2 else 11)


def test_a_constant_that_has_a_closed_form_is_like_no_weight():
    def body(emit, x):
        for layer in range(12):
            w = relax.const(np.ones((24, 24), "float32")) if layer == 5 else weight()
            x = emit(op.tanh(emit(op.matmul(x, w))))
        return [x]

    assert layers_of(graph(module(body, SHAPE), Legalize()), 3).count == 6
