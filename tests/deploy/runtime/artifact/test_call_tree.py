"""Arguments and results of a module, between nested structures and names."""

from collections import namedtuple

import pytest

from tvm_fusion.deploy.runtime.artifact.call_tree import flat_inputs, names_of, nested
from tvm_fusion.errors import UserError

Pair = namedtuple("Pair", ["first", "second"])


def of(kind, keys, items):
    return {"type": kind, "keys": keys, "items": items}


TREE = of("dict", ["a", "b"], ["x_a", of("list", [], ["x_b_0", "x_b_1"])])
CALL = {
    "arguments": [["x", TREE], ["y", "y"]],
    "keywords": [["scale", {"value": 3}], ["pair", of("tuple", [], ["pair_0"])]],
}


def test_arguments_become_inputs():
    x = {"a": 1, "b": (2, 3)}
    expected = {"x_a": 1, "x_b_0": 2, "x_b_1": 3, "y": 4, "pair_0": 5}
    assert flat_inputs(CALL, [x, 4], {"pair": [5]}) == expected
    assert flat_inputs(CALL, [x], {"y": 4, "scale": 3, "pair": [5]}) == expected
    assert flat_inputs(CALL, [], {"x": x, "state": 6}) == {
        **{name: expected[name] for name in names_of(TREE)},
        "state": 6,
    }


@pytest.mark.parametrize(
    ("positional", "named", "words"),
    [
        ([1, 2, 3], {}, "3 arguments; expected 2 in order, of 'x', 'y', 'scale', 'pair'."),
        (
            [{"a": 1, "b": [2]}],
            {},
            "argument x['b'] is of type list and length 1; expected a list of 2.",
        ),
        ([{"a": 1}], {}, "argument x is of type dict and length 1; expected the keys 'a', 'b'."),
        ([7], {}, "argument x is of type int; expected a dict of 'a', 'b'."),
        ([{"a": 1, "b": [2, 3]}], {"x": 1}, "argument 'x' is given twice; expected each argument"),
        ([], {"scale": 4}, "argument scale is 4; expected 3, which the model was exported with."),
    ],
)
def test_other_structures_are_refused(positional, named, words):
    with pytest.raises(UserError) as caught:
        flat_inputs(CALL, positional, named)
    assert words in str(caught.value)


def test_outputs_become_results():
    pair = of(f"{__name__}:Pair", ["first", "second"], ["p", {"value": None}])
    tree = of("tuple", [], [TREE, pair])
    outputs = {"x_a": 1, "x_b_0": 2, "x_b_1": 3, "p": 4}
    assert nested(tree, outputs) == ({"a": 1, "b": [2, 3]}, Pair(4, None))
    pair["type"] = "a_module_that_is_not_there:Pair"
    assert nested(pair, outputs) == {"first": 4, "second": None}
