"""A page holds what the explanation says, fetches nothing, and runs nothing but its own script."""

import base64
import hashlib
import json
import lzma
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import page_parts
import planted
import pytest
from page_parts import Page
from relax_constructs import CASES
from tvm import relax, topi

from tvm_fusion import UserError
from tvm_fusion.deploy.runtime.profile.result import KernelTime, Profile, Rates
from tvm_fusion.ecg.mapping_types.table import MappingType
from tvm_fusion.report import page
from tvm_fusion.report.explain import explained
from tvm_fusion.report.page import kernels
from tvm_fusion.report.page.document import check_writable, document, write
from tvm_fusion.report.page.explanation import explanation_content
from tvm_fusion.report.page.profile import profile_content, read_profile

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "'\"&lt;\\u003c\u2028\ud800\0<!--style-->",
)


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        planted.plant(patch)  # groups that do not depend on the package's templates
        return explained(page_parts.two_products(), stock=False, rewrites=True)


@pytest.fixture(scope="module")
def content(found):
    return explanation_content(found)


def test_graph_before_and_after(found, content):
    before = content["imported"]
    assert [node["title"] for node in before["nodes"]] == ["matmul", "relu", "matmul"]
    assert [node["type"] for node in before["nodes"]] == ["float32[16, 32]"] * 3
    assert before["edges"] == [(0, 1), (1, 2)]
    assert [op["title"] for op in content["operators"]] == ["matmul", "relu", "matmul"]
    assert [op["group"] for op in content["operators"]] == [0, 0, 1]
    assert [group["operators"] for group in content["groups"]] == [[0, 1], [2]]
    for group, told in zip(content["groups"], found.explanation.groups, strict=True):
        assert (group["us"], group["source"], group["type"]) == (told.us, told.source, told.type)


def test_a_tensor_that_a_reader_writes_again_is_of_its_producer():
    """In another layout, by the name that it has in the model."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    made = (("v_NCHW4c", topi.tanh), ("w", topi.exp), ("v", topi.nn.relu))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for variable, function in made:
                call = builder.call_te(function, value, primfunc_name_hint=f"makes_{variable}")
                value = builder.emit(call, variable)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    groups = [SimpleNamespace(outputs=[SimpleNamespace(name=name)]) for name in "vw"]
    plan = SimpleNamespace(claims=[SimpleNamespace(group=group) for group in groups])
    planned = SimpleNamespace(plans={0: plan}, functions={0: "main"})
    found = kernels.kernels_of_groups(planned, builder.get())
    assert found == [("makes_v_NCHW4c",), ("makes_w",)]


def test_each_edge_has_its_reason(found, content):
    edges = content["edges"]
    assert [(edge["from"], edge["to"], edge["verdict"]) for edge in edges] == [
        (0, 1, "accepted"),
        (1, 2, "refused"),
    ]
    (refused,) = found.explanation.refused
    assert edges[1]["sentence"] == refused.sentence
    assert edges[0]["sentence"].startswith("One kernel")
    assert edges[1]["bytes"] == 4 * 16 * 32


def test_each_group_has_its_kernels(content):
    for group in content["groups"]:
        assert group["kernels"]
        for name in group["kernels"]:
            script, code = content["kernels"][name].values()
            assert f"def {name}(" in script
            assert f"{name}:" in code  # a label of the assembly


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", sorted(CASES, key="match_cast".__ne__))
def test_every_construct_of_relax(name, monkeypatch):
    monkeypatch.setattr(kernels, "LANGUAGES", {})  # saves time
    found = explained(CASES[name][0], stock=False)
    content = Page(document(explanation_content(found))).content
    assert content["imported"]["nodes"]
    count = len(content["imported"]["nodes"])
    assert all(start < end < count for start, end in content["imported"]["edges"])
    count = len(content["operators"])
    assert all(e["from"] < count and e["to"] < count for e in content["edges"])
    assert all(group["operators"] and group["kernels"] for group in content["groups"])


def test_cuda_source_needs_no_compiler():
    model = page_parts.two_products()
    found = explained(model, "cuda:sm_90a", stock=False)
    kernels = explanation_content(found)["kernels"]
    assert kernels
    for texts in kernels.values():
        assert list(texts) == ["TVMScript", "CUDA"]
        assert "__global__" in texts["CUDA"]


def test_code_that_cannot_be_generated_is_told(monkeypatch):
    def fail(*_):
        raise RuntimeError("no such intrinsic")

    monkeypatch.setattr(kernels, "codegen_build", fail)
    found = explained(page_parts.two_products(), "cuda:sm_90a", stock=False)
    texts = next(iter(explanation_content(found)["kernels"].values()))
    assert texts["CUDA"] == "(no code: RuntimeError: no such intrinsic)"


def row(kernels, us):
    """Time of one group of kernels."""
    return KernelTime(
        kernels=kernels,
        names=("/a",),
        operators=("from_NCHW16c1", "conv2d", "relu"),
        template="merged",
        type="Many-to-Many",
        config={"tile": 8},
        us=us,
        least_us=us,
        start_us=0.0,
        spent_us=us,
        share=0.5,
        predicted_us=None,
        source="",
        record="",
        bytes=100,
        flops=200,
        dtype="float32",
        bandwidth_share=0.5,
        peak_share=None,
    )


def profile_of(*rows):
    """A profile whose rows are kernels with microseconds."""
    return Profile(
        source="m.onnx",
        target="cpu",
        device="a CPU",
        function="main",
        threads=2,
        runs=5,
        extents={"n": 4},
        end_to_end_us=20.0,
        kernels_us=15.0,
        host_us=5.0,
        launched_us=None,
        clock="cpu",
        rates=Rates(1e10, {"float32": 1e12}),
        rows=tuple(row(*one) for one in rows),
    )


def test_measured_times_go_to_the_groups_of_the_kernels(found, content, monkeypatch):
    monkeypatch.setattr(kernels, "LANGUAGES", {})  # saves time
    first, second = (tuple(group["kernels"]) for group in content["groups"])
    profile = profile_of((second, 5.0), (first, 3.0), (("another",), 7.0))
    measured = explanation_content(found, profile)
    assert [group["measured_us"] for group in measured["groups"]] == [3.0, 5.0]
    assert measured["machine"]["peaks_from"] == "measured"
    part = explanation_content(found, profile_of((second, 5.0)))
    assert [group["measured_us"] for group in part["groups"]] == [None, 5.0]


def test_page_of_a_profile(tmp_path):
    profile = profile_of((("k0", "k1"), 9.0), (("k2",), 6.0))
    second = replace(profile.rows[1], reads=(0,))
    profile = replace(profile, rows=(profile.rows[0], second))
    content = Page(document(profile_content(profile))).content
    assert content["reads"] == [[0, 1]]
    assert content["call"] == {"us": 20.0, "host_us": 5.0, "gaps_us": None, "threads": 2}
    assert content["machine"]["bandwidth"] == 1e10
    assert [group["kernels"] for group in content["groups"]] == [["k0", "k1"], ["k2"]]
    assert content["groups"][0]["shares"] == {"bandwidth": 0.5}
    assert content["groups"][0]["title"] == "conv2d + relu"
    (tmp_path / "p.json").write_text(json.dumps({**profile.to_json(), "all": False}))
    assert read_profile(tmp_path / "p.json") == profile


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 3}', "null", '"rows"'])
def test_what_is_no_profile_is_refused(text, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(UserError, match="is no"):
        read_profile(str(tmp_path / "p.json"))
    with pytest.raises(UserError, match="cannot read"):
        read_profile(str(tmp_path / "missing.json"))


def test_script_knows_all_mapping_types():
    script = (Path(page.__file__).parent / "assets" / "data.js").read_text()
    (marks,) = re.findall(r"const MARKS = \{(.*?)\}", script)
    assert re.findall(r'"?([\w-]+)"?: "', marks) == [mapping.value for mapping in MappingType]


def test_document_gives_the_content_back(content):
    read = Page(document(content))
    assert read.kernels == content["kernels"]
    assert read.content["groups"] == json.loads(json.dumps(content["groups"]))
    assert "kernels" not in read.content


def test_nothing_is_fetched(content):
    text = document(content)
    for _, attrs, _ in Page(text).elements:
        assert not attrs.keys() & {"src", "href", "srcset", "data", "action", "background"}
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert set(re.findall(r"https?://[\w./-]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_policy_allows_this_script_alone(content):
    text = document(content)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy.partition("style-src")[0]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_data(content, name, tmp_path):
    def renamed(value):
        if isinstance(value, dict):
            return {key: renamed(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [renamed(entry) for entry in value]
        return name if isinstance(value, str) else value

    hostile = {**renamed(content), "kernels": {name: {name: name}}}
    plain = Page(document(content)).elements
    read = Page(document(hostile))
    assert [tag for tag, _, _ in read.elements] == [tag for tag, _, _ in plain]
    assert read.content["model"] == name
    assert read.content["operators"][0]["title"] == name
    assert read.kernels == {name: {name: name}}
    write(tmp_path / "page.html", hostile)
    assert (tmp_path / "page.html").read_bytes().decode().count("<script") == 4


def test_dagre_is_as_published_with_its_licence():
    assets = Path(page.__file__).parent / "assets"
    assert "Permission is hereby granted, free of charge" in (assets / "dagre.LICENSE").read_text()
    assert b"</script" not in lzma.decompress((assets / "dagre.min.js.xz").read_bytes())


@pytest.mark.parametrize("path", ["missing/page.html", "."])
def test_what_cannot_be_written_is_refused(path, tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        check_writable(tmp_path / path)
    with pytest.raises(UserError, match="cannot write"):
        write(tmp_path / path, {"model": "m"})
