"""ONNX's own cases: the comparison, the stored record, and a part of the cases judged anew."""

import os
import random

import numpy as np
import pytest

from benchmarks.operators_onnx import record as records
from benchmarks.operators_onnx.cases import CONSTANTS, operators
from benchmarks.operators_onnx.compare import difference
from benchmarks.operators_onnx.excluded import NOISE, excluded
from benchmarks.operators_onnx.pool import judge_all
from benchmarks.operators_onnx.table import README, behind_stock, render

#: Of the cases: the same part in every run, or another one that OPERATORS_SEED names.
PART = float(os.environ.get("OPERATORS_PART", "0.02"))  # 1 for all
BACKEND_PART = float(os.environ.get("BACKEND_PART", "0.015"))


@pytest.fixture(scope="module")
def known():
    return operators()


def test_the_comparison_sees_every_kind_of_difference():
    x = np.array([1, np.nan, 3], "float32")
    assert difference([x], [x], 1e-3, 1e-7) == ""
    assert difference([x.astype("float64")], [x], 1e-3, 1e-7) == (
        "output 0: float64 instead of float32"
    )
    assert difference([x[:2]], [x], 1e-3, 1e-7) == "output 0: shape [2] instead of [3]"
    assert difference([np.zeros(3, "float32")], [x], 1e-3, 1e-7) == "output 0: NaN elsewhere"
    assert difference([x * 2], [x], 1e-3, 1e-7) == "output 0: 2 of 3 values"
    assert difference([], [x], 1e-3, 1e-7) == "0 outputs instead of 1"
    infinite = np.array([np.inf], "float32")
    assert difference([-infinite], [infinite], 1e-3, 1e-7) == "output 0: 1 of 1 values"


def test_reasons_lose_what_differs_between_cases():
    reason = "ModelProto has values of type float8_e4m3fn (x and 1 more); replace float8_e4m3fn."
    assert records.shortened(reason) == "values of type float8_e4m3fn"


@pytest.mark.slow
def test_the_stored_record_is_right_and_the_page_is_its_page(known):
    record = records.load()
    ours = records.verdicts_of(record, "ours", known)
    stock = records.verdicts_of(record, "stock", known)
    assert not {"wrong", "crash", "hang"} & {*ours.values()}
    assert {*behind_stock(ours, stock)} <= {*records.BY_CHANCE}
    assert README.read_text() == render(record, known)


@pytest.mark.slow
def test_a_part_of_the_cases(known):
    seed = int(os.environ.get("OPERATORS_SEED", "0"))
    names = random.Random(seed).sample(sorted(known), int(len(known) * PART))
    stock = records.verdicts_of(records.load(), "stock", known)
    found = judge_all(names, "ours", jobs=1, timeout=900)
    bad = {
        name: f"{verdict}: {reason}"
        for name, (verdict, reason) in found.items()
        if verdict in ("wrong", "crash", "hang")
        or (verdict != "right" and stock[name] == "right" and name not in records.BY_CHANCE)
    }
    assert not bad, f"OPERATORS_SEED={seed}"


@pytest.mark.slow
def test_the_excluded_cases_are_cases_with_reasons(known):
    listed = excluded()
    assert {*listed} <= {*known}
    assert all(listed.values())


@pytest.mark.slow
def test_a_part_of_the_backend_s_cases(known):
    """A part of those that it takes are right, and all that are excluded stay refused.

    One that starts to pass leaves the list by `... benchmarks.operators_onnx --backend`.
    """
    seed = int(os.environ.get("OPERATORS_SEED", "0"))
    listed = excluded()
    included = sorted(n for n in known if not n.endswith(CONSTANTS) and n not in listed)
    names = random.Random(seed).sample(included, int(len(included) * BACKEND_PART))
    found = judge_all([*names, *listed], "backend", jobs=1, timeout=900)
    bad = {name: found[name] for name in names if found[name][0] != "right"}
    assert not bad, f"OPERATORS_SEED={seed}"
    passing = {name: found[name] for name in listed if found[name][0] != "refused"}
    assert passing.keys() <= {*NOISE}, passing
