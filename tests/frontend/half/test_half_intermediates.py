"""Which conversions round in between: the question that decides how an operator is converted."""

import numpy as np
import pytest
from tvm import relax

from tvm_fusion.frontend.half.intermediates import narrowed, rounds_between, widened

op = relax.op
F16, F32 = "float16", "float32"


def answer(compose, dtype=F16):
    """Ask about an operator that is composed of Relax operators over one tensor."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 6), dtype))
    with builder.function("main", [x]):
        results = compose(x, builder.emit)
        results = results if isinstance(results, list) else [results]
        results = [builder.normalize(r) for r in results]
        found = rounds_between(results, builder, [x])
        builder.emit_func_output(builder.emit(results[0]))
    return found


def cast(x, dtype):
    return op.astype(x, dtype)


COMPOSED = {
    "a norm": lambda x, emit: op.sqrt(emit(op.sum(emit(op.multiply(x, x)), [1]))),
    "behind a move": lambda x, emit: op.exp(op.reshape(op.multiply(x, x), [24])),
    "behind a selection": lambda x, emit: op.exp(op.maximum(op.exp(x), x)),
    "compared": lambda x, emit: op.greater(op.exp(x), x),
    "widened afterwards": lambda x, emit: cast(op.exp(cast(op.exp(x), F32)), F16),
    "a product of what was rounded": lambda x, emit: op.matmul(op.exp(x), op.permute_dims(x)),
}
SINGLE = {
    "one operator": lambda x, emit: op.exp(x),
    "moves": lambda x, emit: op.concat([op.reshape(x, [24]), op.reshape(x, [24])], 0),
    "selections": lambda x, emit: op.maximum(op.abs(op.exp(x)), op.negative(op.exp(x))),
    "in float32": lambda x, emit: cast(op.sqrt(op.multiply(cast(x, F32), cast(x, F32))), F16),
    "a product of what is cast": lambda x, emit: op.matmul(
        cast(op.exp(cast(x, F32)), F16), op.permute_dims(x)
    ),
    "tests for NaN": lambda x, emit: op.isnan(op.exp(x)),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_rounds_between(name):
    assert answer(COMPOSED[name])
    if name != "widened afterwards":
        assert not answer(COMPOSED[name], F32)


@pytest.mark.parametrize("name", SINGLE)
def test_rounds_once(name):
    assert not answer(SINGLE[name])


def test_what_an_operator_returns_is_rounded_by_right():
    def compose(x, emit):
        total = emit(op.add(x, x))
        return [emit(op.exp(total)), total]

    assert not answer(compose)
    assert answer(lambda x, emit: compose(x, emit)[:1])


def test_small_constants_are_widened_and_large_ones_cast():
    emitted = []

    def emit(expr):
        emitted.append(expr)
        return expr

    small, large = (relax.const(np.ones(n, F16)) for n in (3, 5000))
    wide = widened([small, relax.Tuple([large]), 3, None], emit)
    assert str(wide[0].value.dtype) == F32
    assert [str(e.op.name) for e in emitted] == ["relax.astype"]
    assert wide[2:] == [3, None]
    assert narrowed(None, small, emit) is None
    assert narrowed(small, small, emit) is small
