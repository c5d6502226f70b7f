"""Arrays read as those of apache-tvm-ffi do."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm_ffi import _ffi_api

from tvm_fusion._tvm.containers import speed_up_arrays


@pytest.fixture
def arrays(monkeypatch):
    usual = {name: getattr(tvm_ffi.Array, name) for name in ("__getitem__", "__iter__")}
    for name, method in usual.items():
        monkeypatch.setattr(tvm_ffi.Array, name, method)  # restored after the test
    given = [tvm_ffi.Array(values) for values in ([], [7], ["a", 2, tvm_ffi.Array([3, 4])])]
    questions = (list, len, lambda a: a[-1:], lambda a: a[0], lambda a: a[-1], lambda a: a[True])
    before = [_answer(question, array) for array in given for question in questions]
    speed_up_arrays()
    return before, [_answer(question, array) for array in given for question in questions]


def _answer(question, array):
    try:
        return question(array)
    except IndexError:
        return IndexError


def test_elements_are_what_they_were(arrays):
    before, after = arrays
    assert before == after
    assert IndexError in after


def test_tvm_ffi_still_asks_for_the_length_before_each_element(monkeypatch):
    """When this fails, its own methods are quick enough."""
    seen = []
    length = _ffi_api.ArraySize

    def counted(array):
        seen.append(array)
        return length(array)

    monkeypatch.setattr(_ffi_api, "ArraySize", counted)
    assert [element for element in tvm_ffi.Array([1, 2, 3])] == [1, 2, 3]  # no hint for a list
    assert len(seen) == 1 + 3
