"""The rewriting benchmark: figures of a module, floors that can be missed, a page and a plot."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

import tvm_fusion
from benchmarks import zoo
from benchmarks.rewriting import __main__ as command
from benchmarks.rewriting import counting, latency, table
from benchmarks.rewriting.table import drawing, floors, render


def products():
    """Build two products of one left operand: joined wherever there is algebra."""
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))

    def result(emit, *_):
        p, q = (
            emit(relax.op.matmul(x, relax.const(np.full((128, 64), v, "float32")))) for v in (1, 2)
        )
        return relax.op.concat([p, q], axis=1)

    return main_module([x], result)


def test_figures():
    found = {way: counting.figures(products(), way) for way in counting.WAYS}
    assert list(found) == ["none", "greedy", "search"]
    assert found["none"]["operators"] == 3
    assert found["none"]["flops"] >= 2 * 64 * 128 * 128
    assert all(row["kernels"] >= 1 and row["bytes"] > 0 for row in found.values())
    assert found["search"]["kernels"] <= found["none"]["kernels"]


def record(kernels=80, slow=1.02, seconds=14.0):
    def counts(kernels):
        return {"operators": 500, "flops": 10**9, "bytes": 10**8, "kernels": kernels, "seconds": 2}

    return {
        "environment": {},
        "models": {
            "gpt2": {
                "counts": {"none": counts(100), "greedy": counts(95), "search": counts(kernels)},
                "latency": {
                    way: {"ms": 10 * ratio, "error": 1e-6}
                    for way, ratio in (("none", 1), ("greedy", 1), ("search", slow))
                },
            }
        },
        "depths": {
            str(layers): {
                frontend: {"operators": 40 * layers, "seconds": seconds * layers / 12}
                for frontend in ("onnx", "torch")
            }
            for layers in (2, 12)
        },
    }


def test_floors_that_are_met():
    assert [floor.is_met for floor in floors(record())] == [True] * 4


@pytest.mark.parametrize(
    ("change", "missed"),
    [({"kernels": 83}, [0]), ({"slow": 1.04}, [1]), ({"seconds": 15.5}, [2, 3])],
)
def test_floors_that_are_missed(change, missed):
    found = list(floors(record(**change)))
    assert [i for i, floor in enumerate(found) if not floor.is_met] == missed


def test_page():
    text = render(record(kernels=83))
    assert "| gpt2: at least 18% fewer kernels, as published | 100 to 83: 17% fewer |" in text
    assert "**missed**" in text
    assert "| gpt2 | none | 500 | 1.00 | 100.0 | 100 | 2.0 |" in text
    assert "| gpt2 | 10.00 | 10.00 | 10.20 | 1.02 | 1e-06 |" in text
    assert "| 12 | 480 | 14.0 | 480 | 14.0 |" in text


def test_a_page_of_nothing():
    empty = {"environment": {}, "models": {}, "depths": {}}
    assert "## Floors" not in render(empty)
    assert drawing(empty) is None


def test_plot():
    root = ElementTree.fromstring(drawing(record()))
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    assert len(circles) == 4
    by_x = sorted((float(c.get("cx")), -float(c.get("cy"))) for c in circles)
    assert by_x[0][1] < by_x[-1][1]
    assert all(0 < float(c.get("cx")) < table.WIDTH for c in circles)
    assert "&lt;" in table.line_chart({"<": [(0.0, 0.0)]}, "x", "y")


def test_what_is_not_measured_again_stays(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record()))
    page = tmp_path / "README.md"
    arguments = ["--models", "--parts", "--json", str(path), "--readme", str(page)]
    assert command.main(arguments) == 0
    assert json.loads(path.read_text()) == record()
    assert page.read_text() == render(record())
    assert (tmp_path / "depths.svg").is_file()


class Wrong:
    """Returns what it was told to, whatever it is asked."""

    def __init__(self, value):
        self._value = value

    def run(self, inputs):
        return {"y": np.array([1.0, self._value])}


def test_wrong_results_are_found():
    def error(value):
        return latency.errors({"none": Wrong(2.0), "search": Wrong(value)}, "mobilenet_v2", [0])

    assert error(2.0) == {"search": 0.0}
    assert error(2.5)["search"] == pytest.approx(0.25)
    assert error(float("nan"))["search"] == float("inf")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "t5_small_enc"])
def test_models_mean_the_same_rewritten(name, tmp_path):
    model = zoo.load(name)
    executables = {
        way: tvm_fusion.load(tvm_fusion.compile(model, rewrite=way).export(tmp_path / way))
        for way in ("none", "search")
    }
    assert latency.errors(executables, name)["search"] <= latency.TOLERANCE
