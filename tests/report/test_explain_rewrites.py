"""What an explanation tells of rewriting is what the compilation does."""

import io
import json

import pytest
from relax_modules import main_module
from rich.console import Console
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion import FusionConfig
from tvm_fusion.report.explain import Explanation

ALLOWED = FusionConfig(allow=["reassociate"])


def two_layers():
    """Build two layers that are alike: softmax twice, and a factor of both."""
    x, z = (relax.Var(name, relax.TensorType((64, 128), "float32")) for name in "xz")

    def result(emit, *_):
        h = x
        for _ in range(2):
            left = emit(relax.op.multiply(relax.op.nn.softmax(h, 0), z))
            right = emit(relax.op.multiply(relax.op.nn.softmax(h, 1), z))
            h = emit(relax.op.add(left, right), "total")
        return h

    return main_module([x, z], result)


@pytest.fixture(scope="module")
def explanation():
    return tvm_fusion.explain(two_layers(), "cpu", ALLOWED, stock=False, rewrites=True)


def test_changes(explanation):
    first, second = explanation.rewriting.changes
    assert first.rules == second.rules == ("factor_multiply",)
    assert (first.before, first.after) == ("a * b + c * b", "(a + c) * b")
    assert first.function == "main"
    assert first.variable != second.variable
    assert first.gain.flops == 64 * 128


def test_extents_are_numbers():
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 6), "float32"))

    def result(emit, *_):
        flat = emit(relax.op.reshape(x, (n, 2, 3)))
        return emit(relax.op.reshape(flat, (2 * n, 3)))

    dims = {"n": tvm_fusion.DimRange(1, 8)}
    config = FusionConfig(dims=dims)
    found = tvm_fusion.explain(main_module([x], result), "cpu", config, stock=False, rewrites=True)
    (change,) = found.rewriting.changes
    assert change.before == "reshape(reshape(a, (n, 2, 3)), (n * 2, 3))"


def test_statistics(explanation):
    use = explanation.rewriting.uses["factor_multiply"]
    assert use.chosen == 2
    assert use.tried >= use.fired > 0
    assert use.gain_us == pytest.approx(sum(c.gain.us for c in explanation.rewriting.changes))


def test_counts_are_those_of_what_was_rewritten(explanation):
    assert sum(len(group.members) for group in explanation.groups) == 2 * 4
    plain = tvm_fusion.explain(two_layers(), stock=False)
    assert sum(len(group.members) for group in plain.groups) == 2 * 5
    assert plain.rewriting is None


def test_text(explanation):
    text = str(explanation)
    assert "2 x   a * b + c * b" in text
    assert "-> (a + c) * b" in text
    assert "factor_multiply in total" in text
    assert "Groups" not in text


def test_json_holds_all_of_it(explanation):
    data = json.loads(json.dumps(explanation.to_json()))
    again = Explanation.from_json(data)
    assert again.rewriting == explanation.rewriting
    assert str(again) == str(explanation)


def test_rules_that_are_not_tried_and_why():
    config = FusionConfig(without=["factor_one"])
    found = tvm_fusion.explain(two_layers(), "cpu", config, stock=False, rewrites=True)
    assert found.rewriting.changes == ()
    assert found.rewriting.unused["factor_one"] == "switched off"
    words = " ".join(str(found).split())
    assert "Nothing was rewritten." in words
    assert "Not tried, switched off: factor_one" in words
    refused = found.rewriting.uses["factor_multiply"].refused
    assert any("--allow reassociate" in sentence for sentence in refused)
    assert "allowed here by --allow reassociate only." in words


def test_without_rewriting():
    config = FusionConfig(rewrite="none")
    found = tvm_fusion.explain(two_layers(), "cpu", config, stock=False, rewrites=True)
    assert found.rewriting.uses == {}
    assert set(found.rewriting.unused.values()) == {"nothing is rewritten"}


@pytest.mark.parametrize("width", [60, 120])
def test_tables_keep_to_the_width(explanation, width):
    text = io.StringIO()
    explanation.show(Console(file=text, width=width))
    assert max(map(len, text.getvalue().splitlines()[1:])) <= width


def test_products_that_are_joined():
    import numpy as np

    x = relax.Var("x", relax.TensorType((64, 128), "float32"))

    def result(emit, *_):
        p, q = (
            emit(relax.op.matmul(x, relax.const(np.full((128, 64), v, "float32")))) for v in (1, 2)
        )
        return relax.op.multiply(emit(relax.op.nn.silu(p)), q)

    found = tvm_fusion.explain(main_module([x], result), stock=False, rewrites=True)
    change = found.rewriting.changes[-1]
    assert (change.rules, change.before, change.after) == (
        ("join_matmuls",),
        "x A, x B",
        "x [A | B]",
    )
    assert change.gain.kernels == 1
    assert found.rewriting.uses["join_matmuls"].chosen == 1
