"""A page holds what the explanation says, fetches nothing, and runs nothing but its own script."""

import base64
import hashlib
import json
import re
from pathlib import Path

import page_parts
import planted
import pytest
from page_parts import Page

from tvm_fusion import UserError
from tvm_fusion.report import page
from tvm_fusion.report.explain import explained

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
    return page.explanation_content(found)


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
            assert f"def {name}(" in content["kernels"][name]


def test_measured_times_go_to_the_groups_of_the_kernels(found):
    first, second = (group["kernels"] for group in page.explanation_content(found)["groups"])
    measured = page.explanation_content(found, {first[0]: [3.0], second[0]: [5.0, 7.0]})
    assert [group["measured_us"] for group in measured["groups"]] == [3.0, 5.0]
    part = page.explanation_content(found, {second[0]: [5.0]})
    assert [group["measured_us"] for group in part["groups"]] == [None, 5.0]


def test_document_gives_the_content_back(content):
    read = Page(page.document(content))
    assert read.kernels == content["kernels"]
    assert read.content["groups"] == json.loads(json.dumps(content["groups"]))
    assert "kernels" not in read.content


def test_nothing_is_fetched(content):
    document = page.document(content)
    for _, attrs, _ in Page(document).elements:
        assert not attrs.keys() & {"src", "href", "srcset", "data", "action", "background"}
    assert "@import" not in document
    assert not re.search(r"url\((?!#)", document)
    assert set(re.findall(r"https?://[\w./-]*", document)) <= {"http://www.w3.org/2000/svg"}


def test_policy_allows_this_script_alone(content):
    document = page.document(content)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', document)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy.partition("style-src")[0]
    (script,) = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
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

    hostile = {**renamed(content), "kernels": {name: name}}
    plain = Page(page.document(content)).elements
    read = Page(page.document(hostile))
    assert [tag for tag, _, _ in read.elements] == [tag for tag, _, _ in plain]
    assert read.content["model"] == name
    assert read.content["operators"][0]["title"] == name
    assert read.kernels == {name: name}
    page.write(tmp_path / "page.html", hostile)
    assert (tmp_path / "page.html").read_bytes().decode().count("<script") == 4


def test_dagre_is_as_published_with_its_licence():
    assets = Path(page.__file__).parent / "assets"
    assert "Permission is hereby granted, free of charge" in (assets / "dagre.LICENSE").read_text()
    assert "</script" not in (assets / "dagre.min.js").read_text()


@pytest.mark.parametrize("path", ["missing/page.html", "."])
def test_what_cannot_be_written_is_refused(path, tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        page.check_writable(tmp_path / path)
    with pytest.raises(UserError, match="cannot write"):
        page.write(tmp_path / path, {"model": "m"})
