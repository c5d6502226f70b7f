"""The page of quantized networks: ratios to the faster peer, and what is wrong or refused."""

import pytest

from benchmarks.qdq.table import is_right, ratio, render

ABOUT = {
    "cpu": "a CPU",
    "llvm": "x86-64-v4",
    "cpus": 2,
    "date": "2026-11-29T10:00:00+00:00",
    "layers": 2,
    "load": 0.1,
}


def row(ours, error=0.01, **peers):
    return {
        "name": "bert",
        "form": "ours",
        "threads": 2,
        "quantization": 0.05,
        "errors": {"ours": error, **dict.fromkeys(peers, 0.02)},
        "refused": {},
        "ms": {"ours": ours, **peers},
    }


def test_the_ratio_is_to_the_faster_peer():
    assert ratio(row(3.0, onnxruntime=4.0, openvino=2.0)) == 1.5
    assert ratio(row(3.0, onnxruntime=6.0)) == 0.5


@pytest.mark.parametrize("error", [0.08, float("nan")])
def test_what_is_wrong_has_no_ratio(error):
    wrong = row(1.0, error, onnxruntime=4.0)
    assert not is_right(wrong)
    page = render({"about": ABOUT, "failed": {}, "rows": [row(2.0, onnxruntime=4.0), wrong]})
    assert "geometric mean of 1 ratios 0.50" in page
    assert "* bert, ours, 2 threads: wrong" in page


def test_what_is_missing_and_a_busy_machine_are_told():
    refused = {**row(2.0, onnxruntime=4.0), "refused": {"openvino": "no implementation"}}
    record = {"about": {**ABOUT, "load": 3.0}, "failed": {"regnet, ours": "no"}, "rows": [refused]}
    page = render(record)
    assert "Other processes were running" in page
    assert "* regnet, ours: no" in page
    assert "openvino: no implementation" in page
