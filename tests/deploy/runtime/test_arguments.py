import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_fusion.deploy.runtime.arguments import check, check_out, evaluate, order
from tvm_fusion.errors import UserError
from tvm_fusion.signature import DimRange, Signature, TensorSpec

TWO = Signature(
    (
        TensorSpec("ids", ("batch", "length"), "int64"),
        TensorSpec("mask", ("batch", "length*2"), "bool"),
    ),
    (TensorSpec("scores", ("batch",), "float32"),),
)
DIMS = {"batch": DimRange(1, 8), "length": DimRange(4, 16)}


def check_two(ids, mask):
    return check(TWO.inputs, [ids, mask], ["int64", "bool"], DIMS)


def test_arguments_come_into_call_order():
    assert order(TWO.inputs, {"mask": 1, "ids": 2}) == [2, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ids": 1}, "missing input 'mask'; expected the inputs 'ids', 'mask'"),
        ({"ids": 1, "mask": 2, "x": 3}, "unknown input 'x'; expected the inputs 'ids', 'mask'"),
        ({"Ids": 1, "mask": 2}, "unknown input 'Ids', missing input 'ids'"),
        ([1, 2], "the inputs are a list; expected arrays by name ('ids', 'mask')"),
    ],
)
def test_wrong_names_are_listed(arguments, words):
    with pytest.raises(UserError, match=re.escape(words)):
        order(TWO.inputs, arguments)


def test_fitting_arguments_tell_the_extents():
    assert check_two((3, 5), (3, 10)) == {"batch": 3, "length": 5}


@pytest.mark.parametrize(
    ("ids", "mask", "words"),
    [
        ((3,), (3, 10), "input 'ids' has shape (3,); expected (batch, length)"),
        ((3, 5), (2, 10), "(2, 10); expected (batch, length*2); batch is 3 in an earlier input"),
        ((3, 5), (3, 9), "input 'mask' has shape (3, 9); expected (batch, length*2)"),
        ((9, 5), (9, 10), "batch = 9; expected 1 to 8; compile with --dim batch=1..9"),
        ((3, 2), (3, 4), "length = 2; expected 4 to 16; compile with --dim length=2..16"),
        ((0, 5), (0, 10), "input 'ids' has batch = 0; expected 1 to 8."),
    ],
)
def test_wrong_shapes_are_named(ids, mask, words):
    with pytest.raises(UserError, match=re.escape(words)):
        check_two(ids, mask)


def test_a_fixed_extent_and_a_dtype_are_compared():
    spec = (TensorSpec("x", (2, 3), "float32"),)
    assert check(spec, [(2, 3)], ["float32"], {}) == {}
    with pytest.raises(UserError, match=r"has shape \(2, 4\); expected \(2, 3\)"):
        check(spec, [(2, 4)], ["float32"], {})
    with pytest.raises(UserError, match="has dtype float64; expected float32; cast it to float32"):
        check(spec, [(2, 3)], ["float64"], {})


def test_an_extent_known_only_at_run_time_is_not_checked():
    assert check((TensorSpec("x", ("?",), "float32"),), [(7,)], ["float32"], {}) == {}


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ([1], "out is a list; expected arrays by output name ('scores')"),
        ({"score": 1}, "unknown output 'score'; expected one of 'scores'"),
        ({"scores": [0.0]}, "the array for output 'scores' is a list"),
    ],
)
def test_wrong_outputs_are_named(out, words):
    with pytest.raises(UserError, match=re.escape(words)):
        check_out(TWO, out)


NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def expressions(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.one_of(st.integers(0, 99), NAMES)))
    sign = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    left, right = (draw(expressions(depth=depth - 1)) for _ in range(2))
    return f"({left}){sign}({right})"


@given(expressions(), st.fixed_dictionaries({n: st.integers(0, 99) for n in "abc"}))
def test_expressions_mean_what_they_mean_in_python(text, extents):
    try:
        expected = eval(text, {}, dict(extents))
    except ZeroDivisionError:
        expected = None
    assert evaluate(text, extents) == expected


@given(st.text(max_size=20))
@pytest.mark.slow
def test_any_other_text_is_unknown_or_a_number(text):
    assert evaluate(text, {}) is None or isinstance(evaluate(text, {}), int)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=4), st.integers(0, 3), st.data())
def test_an_extent_that_differs_from_a_fixed_shape_is_refused(shape, axis, data):
    specs = (TensorSpec("x", tuple(shape), "float32"),)
    assert check(specs, [tuple(shape)], ["float32"], {}) == {}
    wrong = list(shape)
    wrong[axis % len(shape)] += data.draw(st.integers(1, 9))
    with pytest.raises(UserError):
        check(specs, [tuple(wrong)], ["float32"], {})


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 60))
def test_a_range_admits_exactly_its_extents(low, more, size):
    dims = {"n": DimRange(low, low + more)}
    specs = (TensorSpec("x", ("n",), "float32"),)
    if low <= size <= low + more:
        assert check(specs, [(size,)], ["float32"], dims) == {"n": size}
    else:
        with pytest.raises(UserError, match=f"n = {size}; expected {low} to {low + more}"):
            check(specs, [(size,)], ["float32"], dims)
