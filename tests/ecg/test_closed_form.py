"""Closed forms of constants: every element is right, and almost regular tensors have none."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_fusion.core.constants.weight_names import WeightNames, tracking
from tvm_fusion.ecg.closed_form import closed_form, element_at

INF = np.inf


def band(queries, keys, low=-99, high=99):
    distance = np.arange(keys) - np.arange(queries)[:, None]
    return (distance >= low) & (distance <= high)


def value_of(expr):
    found = tvm.sym.Analyzer().simplify(expr)
    while isinstance(found, tvm.tirx.Cast):
        found = found.value
    return found.value


REGULAR = {
    "number": np.full((2, 3), 0.5, "float32"),
    "scalar": np.array(-INF, "float16"),
    "nothing is hidden": np.ones((1, 5, 4), "bool"),
    "positions": np.arange(3, 12, 2, dtype="int32").reshape(1, 5, 1),
    "falling positions": np.arange(6, dtype="int64")[::-1].copy(),
    "positions of three heads": np.tile(np.arange(2, 7, dtype="int32"), 3).reshape(1, 15, 1),
    "falling ones of two heads": np.tile(np.arange(5, dtype="int64")[::-1], 2),
    "causal": band(5, 7, high=0)[None, None],
    "causal with an offset": band(3, 7, high=4),
    "later keys": band(6, 4, low=1),
    "window": band(7, 6, -2, 0)[:, None, :],
    "outside of a band": ~band(7, 7, -1, 2),
    "repeated": np.broadcast_to(band(4, 5, high=1), (2, 3, 4, 5)).copy(),
    "added": np.where(band(5, 7, high=0), 0, -INF).astype("float16"),
    "large": np.where(band(5, 6, -2, 1), 0, -65504).astype(ml_dtypes.bfloat16),
    "integers": band(5, 6, high=0).astype("int8"),
    "heads in rows": np.tile(band(4, 5, high=1), (3, 1))[None],
    "heads in columns": np.tile(band(5, 4, low=-1), 2),
    "padding": np.broadcast_to(np.arange(6) < 4, (2, 1, 1, 6)).copy(),
    "one row of two": np.array([[True, False, False]]),
}


@pytest.mark.parametrize("case", REGULAR)
def test_every_element(case):
    array = REGULAR[case]
    form = closed_form(relax.const(array, array.dtype.name))
    for place in np.ndindex(array.shape):
        found = element_at(form, [tvm.tirx.IntImm("int64", i) for i in place])
        assert value_of(found) == array[place], place
        assert str(found.ty.dtype) == array.dtype.name


@pytest.mark.parametrize("case", [c for c in REGULAR if REGULAR[c].size > 8])
def test_one_other_element_leaves_none(case):
    """Wherever it is, also where the sample does not look."""
    array = REGULAR[case].copy()
    for place in np.random.default_rng().permutation(array.size)[:4]:
        changed = array.copy().reshape(-1)
        changed[place] = ~changed[place] if array.dtype == bool else changed[place] + 77
        form = closed_form(relax.const(changed.reshape(array.shape), array.dtype.name))
        if form is None:
            continue  # else another regular tensor
        for at in np.ndindex(array.shape):
            found = element_at(form, [tvm.tirx.IntImm("int64", i) for i in at])
            assert value_of(found) == changed.reshape(array.shape)[at]


def test_a_flipped_element_of_a_long_mask_is_seen():
    mask = band(700, 700, high=0)
    assert closed_form(relax.const(mask)) is not None
    for place in ((0, 1), (333, 100), (699, 0)):
        changed = mask.copy()
        changed[place] = not changed[place]
        assert closed_form(relax.const(changed)) is None


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(0).standard_normal((5, 6)).astype("float32"),
        np.array([np.nan, np.nan], "float32"),
        np.array([0, -INF, np.nan, 0], "float32"),
        np.array([[0.0, -1.0], [-2.0, 0.0]], "float32"),
        np.zeros((0, 4), "bool"),
        np.kron(np.eye(3), np.ones((2, 2))).astype("bool"),  # blocks
    ],
)
def test_others_have_none(array):
    assert closed_form(relax.const(array, array.dtype.name)) is None


def test_weights_have_none():
    """Others may replace them when the artifact is loaded."""
    mask, scale = relax.const(band(5, 5, high=0)), relax.const(np.float32(0.5))
    with tracking(WeightNames([("mask", mask), ("scale", scale)])):
        assert closed_form(mask) is None
        assert closed_form(scale) is not None
    assert closed_form(mask) is not None
