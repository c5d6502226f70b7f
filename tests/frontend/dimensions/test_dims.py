import pytest

from tvm_fusion.errors import UserError
from tvm_fusion.frontend.dimensions.steps import Steps
from tvm_fusion.frontend.dimensions.symbolic import UNLIMITED, DimTable, unbound_advice
from tvm_fusion.signature import DimRange, Signature, TensorSpec


def test_names_labels_and_expressions():
    table = DimTable(
        [("x", ["batch", 3, None]), ("mask", ["batch", "batch size", "2*batch", "past + 1"])]
    )
    assert [(d.name, d.label, d.where) for d in table.dims] == [
        ("batch", "batch", "x[0]"),
        ("x_2", "x_2", "x[2]"),
        ("batch_size", "batch size", "mask[1]"),
        ("past___1", "past + 1", "mask[3]"),
    ]
    assert table.shapes["x"] == ("batch", 3, "x_2")
    # Arithmetic over a dimension that stands alone somewhere; "past" does not, so it is a name.
    assert table.shapes["mask"] == ("batch", "batch_size", "2*batch", "past___1")


def test_names_stay_distinct():
    table = DimTable([("x", ["batch size", "batch_size", "batch-size"])])
    assert len({dim.name for dim in table.dims}) == 3
    assert table.shapes["x"][1] == "batch_size"


def test_division_of_extents_rounds_down():
    assert DimTable([("x", ["n"]), ("y", ["n/2"])]).shapes["y"] == ("n//2",)


def test_unnamed_extents_are_not_tied_together():
    table = DimTable([("x", [None, None]), ("y", [None])])
    assert [dim.name for dim in table.dims] == ["x_0", "x_1", "y_0"]


def test_names_that_a_tool_made_up():
    table = DimTable([("x", ["s17", 8]), ("y", ["s17"])], made_up={"s17"})
    assert [(d.name, d.label) for d in table.dims] == [("x_0", "s17")]
    assert table.resolve({"s17": 4}) == ({"x_0": 4}, [])


def test_resolve_by_either_name():
    table = DimTable([("x", ["batch size", "seq"])])
    chosen, unbound = table.resolve({"batch size": 4})
    assert chosen == {"batch_size": 4}
    assert [dim.name for dim in unbound] == ["seq"]
    told = unbound_advice(unbound)
    assert told == "give --dim seq=VALUE or seq=LOW..HIGH, in Python dims={...}"
    assert table.resolve({"batch_size": 4})[0] == chosen


def test_range_of_one_extent_is_that_extent():
    assert DimTable([("x", ["n"])]).resolve({"n": DimRange(3, 3)})[0] == {"n": 3}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (-2, "--dim n=-2; expected an extent of at least 0."),
        (DimRange(5, 4), "--dim n=5..4; expected 0 <= LOW <= HIGH."),
        (DimRange(-1, 4), "--dim n=-1..4; expected 0 <= LOW <= HIGH."),
    ],
)
def test_extents_that_cannot_be(value, told):
    with pytest.raises(UserError) as error:
        DimTable([("x", ["n"])]).resolve({"n": value})
    assert str(error.value) == told


def test_unknown_dimension_lists_those_of_the_model():
    with pytest.raises(UserError) as error:
        DimTable([("x", ["batch size", "seq"])]).resolve({"bach": 4})
    assert str(error.value) == (
        "--dim bach names no dimension of the model; "
        "expected one of batch_size ('batch size' in the model), seq."
    )
    with pytest.raises(UserError, match="expected none: all extents of the model are fixed"):
        DimTable([("x", [1, 2])]).resolve({"n": 4})


def test_ranges_that_the_model_states():
    table = DimTable([("x", ["n", "m"])])
    known = {"n": DimRange(2, 16), "m": DimRange(1, UNLIMITED)}
    chosen, unbound = table.resolve({}, known)
    assert chosen == {"n": DimRange(2, 16)}
    assert [dim.name for dim in unbound] == ["m"]
    assert table.resolve({"n": DimRange(4, 8), "m": 3}, known)[0] == {"n": DimRange(4, 8), "m": 3}
    with pytest.raises(UserError, match=r"--dim n=1\.\.8; expected extents within 2\.\.16"):
        table.resolve({"n": DimRange(1, 8)}, known)


def test_ranges_from_zero_are_for_those_who_ask():
    table = DimTable([("x", ["n"])])
    known = {"n": DimRange(0, 16)}
    assert table.resolve({}, known)[0] == {"n": DimRange(1, 16)}
    assert table.resolve({"n": DimRange(0, 4)}, known)[0] == {"n": DimRange(0, 4)}
    assert table.resolve({"n": 0}, known)[0] == {"n": 0}
    assert table.resolve({}, {"n": DimRange(0, 0)})[0] == {"n": 0}


def test_names_of_what_an_extent_is_a_multiple_of():
    inputs = [("x", [1, "32*s7"])]
    roots = {"s7": "x[1]"}
    assert [d.name for d in DimTable(inputs, {"s7"}, {}, roots).dims] == ["x_1_multiple"]
    assert [d.name for d in DimTable(inputs, {"s7"}, {"s7": "_h"}, roots).dims] == ["_h"]
    assert DimTable(inputs, {"s7"}, {}, roots).shapes == {"x": (1, "32*s7")}


def test_a_range_with_a_step_begins_and_ends_at_multiples():
    chosen, _ = DimTable([("x", ["h", "w"])]).resolve(
        {"h": DimRange(20, 1000, 32), "w": DimRange(30, 33, 32)}
    )
    assert chosen == {"h": DimRange(32, 992, 32), "w": 32}
    with pytest.raises(UserError, match=r"--dim h=33\.\.63:32 allows no extent"):
        DimTable([("x", ["h"])]).resolve({"h": DimRange(33, 63, 32)})
    with pytest.raises(UserError, match="has steps of 0"):
        DimTable([("x", ["h"])]).resolve({"h": DimRange(1, 64, 0)})


@pytest.mark.parametrize(
    ("extent", "whole"),
    [
        ("h_by_32*32", "h"),
        ("h_by_32*16+1", "h//2+1"),
        ("64*h_by_32", "h*2"),
        ("h_by_32*24", "h//32*24"),
        ("h_by_32*w", "(h//32)*w"),
        ("w+1", "w+1"),
    ],
)
def test_signatures_are_over_whole_extents(extent, whole):
    steps = Steps.among({"h": DimRange(32, 1024, 32), "w": DimRange(1, 9)})
    given = Signature((TensorSpec("x", (extent,), "float32"),), ())
    assert steps.in_dims(given).inputs[0].shape == (whole,)
    assert steps.inner({"h": DimRange(32, 1024, 32)}) == {"h_by_32": DimRange(1, 32)}
