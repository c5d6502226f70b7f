"""Functions with some of their inputs fixed."""

import numpy as np
import pytest
from onnx import TensorProto as T
from rounding import assert_sums_close
from tiny_models import onnx_model

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.deploy.runtime.tensors import aligned_empty
from tvm_fusion.errors import UserError


@pytest.fixture(scope="module")
def weighed(tmp_path_factory):
    """``y = a * b + out``, one input with the name of a keyword."""
    model = onnx_model(
        [("Mul", ["a", "b"], ["ab"]), ("Add", ["ab", "out"], ["y"])],
        [(name, T.FLOAT, ["n", 3]) for name in ("a", "b", "out")],
        [("y", T.FLOAT, ["n", 3])],
    )
    artifact = tvm_fusion.compile(model, dims={"n": DimRange(1, 8)})
    return tvm_fusion.load(artifact.export(tmp_path_factory.mktemp("weighed") / "a"))


def draw(rows, seed):
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype("float32")


def assert_sums(found, a, b, c):
    a, b, c = (x.astype("float64") for x in (a, b, c))
    assert_sums_close(found, a * b + c, np.abs(a * b) + np.abs(c), 2)


def aligned(array):
    """Memory that kernels read in place."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def test_the_other_inputs_are_given_in_each_call(weighed):
    a, b = draw(5, 0), draw(5, 1)
    bound = weighed.bind({"b": b})
    for seed in (2, 3):
        c = draw(5, seed)
        assert_sums(bound.run({"a": a, "out": c})["y"], a, b, c)
    twice = bound.bind({"out": c})
    assert_sums(twice(a=a)["y"], a, b, c)
    assert_sums(twice(a=c)["y"], c, b, c)


def test_what_is_written_to_a_bound_array_is_seen(weighed):
    a, b, c = (aligned(draw(2, seed)) for seed in range(3))
    bound = weighed.bind({"a": a, "out": c})
    first = bound(b=b)["y"]
    assert_sums(first, a, b, c)
    kept = first.copy()
    a[...] = draw(2, 7)
    assert_sums(bound(b=b)["y"], a, b, c)
    np.testing.assert_array_equal(first, kept)


def test_all_inputs_may_be_bound(weighed):
    a, b, c = (draw(1, seed) for seed in range(3))
    result = np.zeros_like(a)
    weighed.bind({"a": a, "b": b, "out": c})(out={"y": result})
    assert_sums(result, a, b, c)


@pytest.mark.parametrize(
    ("fixed", "rest", "words"),
    [
        ({"q": draw(1, 0)}, None, "unknown input 'q'; expected the inputs 'a', 'b', 'out'"),
        ({"a": draw(1, 0).astype("int32")}, None, "input 'a' has dtype int32"),
        ({"a": draw(9, 0)}, None, "input 'a' has n = 9; expected 1 to 8"),
        ({"a": draw(2, 0)}, {"b": draw(2, 0)}, "missing input 'out'"),
        ({"a": draw(2, 0)}, {"a": draw(2, 0), "b": draw(2, 0)}, "unknown input 'a'"),
        (
            {"a": draw(2, 0)},
            {"b": draw(2, 0), "out": draw(3, 0)},
            "input 'out' has shape (3, 3); expected (n, 3); n is 2 in an earlier input",
        ),
    ],
)
def test_a_wrong_input_is_one_sentence(weighed, fixed, rest, words):
    with pytest.raises(UserError) as caught:
        weighed.bind(fixed).run(rest)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_other_inputs_may_be_given_in_order(weighed):
    a, b, c = (draw(1, seed) for seed in range(3))
    bound = weighed.bind({"b": b})
    assert_sums(bound(a, c)["y"], a, b, c)
    with pytest.raises(UserError, match="3 inputs in order; expected the inputs 'a', 'out'"):
        bound(a, b, c)
