"""The table of algebraic properties, tried out on integers and small exact numbers."""

import numpy as np
import pytest
from tvm import ir

from tvm_fusion.ecg.properties import _PROPERTIES, Properties, properties_of

BINARY = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.logical_and": np.logical_and,
    "relax.logical_or": np.logical_or,
    "relax.logical_xor": np.logical_xor,
    "relax.bitwise_and": np.bitwise_and,
    "relax.bitwise_or": np.bitwise_or,
    "relax.bitwise_xor": np.bitwise_xor,
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.log_add_exp": np.logaddexp,
    "relax.matmul": np.matmul,
    "relax.power": np.power,
    "relax.less": np.less,
}
UNARY = {
    "relax.negative": np.negative,
    "relax.abs": np.abs,
    "relax.square": np.square,
    "relax.sqrt": np.sqrt,
    "relax.exp": np.exp,
    "relax.log": np.log,
    "relax.tanh": np.tanh,
    "relax.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relax.nn.relu": lambda x: np.maximum(x, 0),
    "relax.clip": lambda x: np.clip(x, 1, 3),
    "relax.sum": lambda x: x.sum(1),
    "relax.mean": lambda x: x.mean(1),
    "relax.prod": lambda x: x.prod(1),
    "relax.cumsum": lambda x: x.cumsum(1),
    "relax.reshape": lambda x: x.reshape(1, -1),
    "relax.permute_dims": lambda x: x.T,
    "relax.broadcast_to": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "relax.strided_slice": lambda x: x[:, 1:],
    "relax.flip": lambda x: np.flip(x, 0),
    "relax.take": lambda x: x[[1, 1, 0]],
}


def numbers(name, count):
    rng = np.random.default_rng(len(name))
    low = -4 if name in ("relax.add", "relax.abs", "relax.negative", "relax.nn.relu") else 1
    values = rng.integers(low, 5, (count, 3, 3))
    return values if "bitwise" in name or "logical" in name else values.astype("float64")


def test_every_name_is_an_operator():
    for name, entry in _PROPERTIES.items():
        for listed in (name, *entry.distributes_over):
            assert str(ir.Op.get(listed).name) == listed


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    f = BINARY[name]
    a, b, c = numbers(name, 3)
    entry = properties_of(name)
    assert entry.commutative == np.allclose(f(a, b), f(b, a))
    if name not in ("relax.equal", "relax.not_equal", "relax.less"):  # booleans of numbers
        assert entry.associative == np.allclose(f(f(a, b), c), f(a, f(b, c)))
    for other in entry.distributes_over:
        g = BINARY[other]
        assert np.allclose(f(g(a, b), c), g(f(a, c), f(b, c)))


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    f = UNARY[name]
    a, b = numbers(name, 2)
    for other in properties_of(name).distributes_over:
        g = BINARY[other]
        assert np.allclose(f(g(a, b)), g(f(a), f(b)))


def test_subtraction_is_not_an_addition():
    assert not properties_of("relax.subtract").commutative
    assert not properties_of("relax.divide").associative
    assert "relax.add" not in properties_of("relax.exp").distributes_over


def test_nothing_holds_of_the_unknown():
    assert properties_of("relax.nn.softmax") == Properties()
