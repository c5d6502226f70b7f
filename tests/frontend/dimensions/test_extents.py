import itertools

import pytest
from tvm import tirx

from tvm_fusion.frontend.dimensions.extents import from_tir, to_tir


@pytest.mark.parametrize(
    "text",
    ["a", "a*4", "a+b", "a-b+3", "a-(b+3)", "a*(b+1)", "a*b//3", "a*(b//3)", "(a+b)//2*3", 7],
)
def test_spelling_means_the_expression(text):
    variables = {"a": tirx.Var("a", "int64"), "b": tirx.Var("b", "int64")}
    spelled = from_tir(to_tir(text, variables))
    for a, b in itertools.product((1, 2, 7), (1, 5)):
        assert eval(str(spelled), {}, {"a": a, "b": b}) == eval(str(text), {}, {"a": a, "b": b})


def test_numbers_stay_numbers():
    assert to_tir("2*a", {"a": 3}) == 6
    assert from_tir(tirx.IntImm("int64", 5)) == 5
    n = tirx.Var("n", "int64")
    assert from_tir(tirx.Max(n, tirx.IntImm("int64", 4))) == "max(n,4)"
    assert from_tir(n % 8) == "n%8"


def test_what_is_no_extent():
    with pytest.raises(ValueError, match="is not an extent"):
        to_tir("f(a)", {"a": 3})
