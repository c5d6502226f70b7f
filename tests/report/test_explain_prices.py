"""What explain tells of prices: their source, and what most of both sides of a decision is for."""

import io
import re

import onnx.parser
import pytest
from rich.console import Console

import tvm_fusion
from tvm_fusion.report.explain.text import show
from tvm_fusion.report.planned import plan_model

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g ({type}[512, 1024] x, {type}[512, 1] s, {type}[1024, 1024] w)
    => ({type}[512, 1024] y, {type}[1024, 512] z) {{
    b = MatMul(x, w)  c = Mul(b, s)  y = Softmax<axis=-1>(c)  z = Transpose<perm=[1, 0]>(y)
}}"""
GPU = "cuda:sm_90a"
TERM = r"([a-z ]+), ([\d.]+) of ([\d.]+) us"


def model(dtype):
    return onnx.parser.parse_model(TEXT.format(type=dtype))


@pytest.fixture(scope="module")
def found():
    return tvm_fusion.explain(model("float16"), target=GPU, stock=False)


def test_groups_have_a_price_its_source_and_its_largest_term(found):
    for group in found.groups:
        assert group.source == "fitted"
        term, _, rest = group.most.partition(", ")
        assert term
        part, whole = map(float, re.fullmatch(r"([\d.]+) of ([\d.]+) us", rest).groups())
        assert 0 < part <= whole == pytest.approx(group.us, abs=0.06)
    (product,) = [group for group in found.groups if "matmul" in group.title]
    assert product.most.startswith("tiles of the product")


def test_a_refusal_by_price_names_what_is_dear(found):
    (edge,) = [edge for edge in found.refused if edge.consumer.title == "permute_dims"]
    assert edge.code == "not_profitable"
    assert re.search(
        r"Most of it is elements stored one by one, [\d.]+ of [\d.]+ us; unfused \w+, [\d.]+ of "
        r"[\d.]+ us\.$",
        edge.sentence,
    )


def test_a_fusion_by_price_tells_both_sides():
    plans = plan_model(model("float16"), GPU).plans.values()
    decisions = [d for plan in plans for d in plan.decisions if " us fused, " in d.sentence]
    assert decisions
    for decision in decisions:
        assert decision.verdict == "accepted"
        assert re.search(r"\(fitted\)\. Most of it is .+ us; unfused .+ us\.$", decision.sentence)


def test_other_types_are_left_to_the_roofline():
    found = tvm_fusion.explain(model("float"), target=GPU, stock=False)
    assert {group.source for group in found.groups} == {"roofline"}
    for group in found.groups:
        name, part, whole = re.fullmatch(TERM, group.most).groups()
        assert name in ("traffic", "operations", "launches")
        assert 0 < float(part) <= float(whole) == pytest.approx(group.us, abs=0.06)


@pytest.mark.parametrize("type_", ["float", "float16"])
def test_groups_and_decisions_of_a_cpu_tell_their_largest_terms(type_):
    found = tvm_fusion.explain(model(type_), target="cpu:x86-64-v3", stock=False)
    for group in found.groups:
        _, part, whole = re.fullmatch(TERM, group.most).groups()
        assert 0 < float(part) <= float(whole) == pytest.approx(group.us, abs=0.06)
    (plan,) = plan_model(model(type_), "cpu:x86-64-v3").plans.values()
    priced = [d.sentence for d in plan.decisions if " us fused, " in d.sentence]
    priced += [d.sentence for d in plan.decisions if d.code == "not_profitable"]
    assert priced
    for sentence in priced:
        assert re.search(r"Most of it is .+ us; unfused .+ us\.$", sentence)


def test_the_text_names_the_source(found):
    console = Console(width=200, file=io.StringIO())
    show(found, console)
    assert "price fitted: tiles of the product" in console.file.getvalue()


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_prices_for_amd_are_counted_without_a_device(arch):
    found = tvm_fusion.explain(model("float16"), target=f"rocm:{arch}", stock=False)
    assert {group.source for group in found.groups} == {"counted"}
    (plan,) = plan_model(model("float16"), f"rocm:{arch}").plans.values()
    priced = [d.sentence for d in plan.decisions if " us fused, " in d.sentence]
    assert any("(counted, no device)" in sentence for sentence in priced)
