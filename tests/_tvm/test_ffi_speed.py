"""Arrays are read, and types checked, as apache-tvm-ffi does."""

import abc

import pytest
import tvm_ffi
from tvm import ir, tirx
from tvm_ffi import _ffi_api

from tvm_fusion._tvm.ffi_speed import speed_up_ffi

META = type(tvm_ffi.Object)


pytestmark = pytest.mark.usefixtures("usual_ffi")


@pytest.fixture
def answers(usual_ffi):
    """What questions come to before and after."""
    before = _answers()
    speed_up_ffi()
    return before, _answers()


def _answers() -> list:
    arrays = [tvm_ffi.Array(values) for values in ([], [7], ["a", 2, tvm_ffi.Array([3, 4])])]
    reads = (list, len, lambda a: a[-1:], lambda a: a[0], lambda a: a[-1], lambda a: a[True])
    values = (ir.Var("x", ir.PrimType("int64")), tirx.IntImm("int64", 1), *arrays, 3, None)
    kinds = (ir.Expr, ir.Var, tirx.IntImm, tvm_ffi.Object, tvm_ffi.Array, (ir.Call, tirx.IntImm))
    found = [_answer(read, array) for array in arrays for read in reads]
    return found + [isinstance(value, kind) for value in values for kind in kinds]


def _answer(read, array):
    try:
        return read(array)
    except IndexError:
        return IndexError


def test_answers_are_what_they_were(answers):
    before, after = answers
    assert before == after
    assert {IndexError, True, False} <= {
        a for a in after if not isinstance(a, tvm_ffi.Array | list)
    }


def test_tvm_ffi_still_asks_for_the_length_before_each_element(monkeypatch):
    """When this fails, its own methods are quick enough."""
    seen = []
    length = _ffi_api.ArraySize

    def counted(array):
        seen.append(array)
        return length(array)

    monkeypatch.setattr(_ffi_api, "ArraySize", counted)
    items = iter(tvm_ffi.Array([1, 2, 3]))
    assert [next(items) for _ in range(3)] == [1, 2, 3]
    assert len(seen) == 1 + 3


def test_classes_of_objects_are_still_abstract_base_classes():
    """When this fails, ``isinstance`` needs no help."""
    assert META.__instancecheck__ is abc.ABCMeta.__instancecheck__
