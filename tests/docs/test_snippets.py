"""What the README and the site's own pages show runs: Python, and options of the command line."""

import re
import runpy
import shlex
from pathlib import Path

import onnx
import pytest
from tiny_models import classifier

from tvm_fusion.cli.dispatch import _parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "generated" not in page.parts]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fences(page, language):
    return [text for found, text in FENCE.findall(page.read_text()) if found == language]


def scripts():
    """The Python of each page, as one script, and what needs PyTorch as another."""
    for page in PAGES:
        needs = {False: [], True: []}
        for text in fences(page, "python"):
            needs["import torch" in text].append(text)
        for has_torch, texts in needs.items():
            if texts:
                name = f"{page.relative_to(ROOT)}{', torch' * has_torch}"
                marks = [pytest.mark.torch] if has_torch else []
                yield pytest.param("\n".join(texts), id=name, marks=marks)


@pytest.mark.parametrize("text", list(scripts()))
def test_python_runs(text, tmp_path, monkeypatch, request):
    """The snippets of a page run one after the other, in a folder that has ``model.onnx``."""
    if "import torch" in text:
        request.getfixturevalue("registered_backend")
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "model.onnx")
    script = tmp_path / "snippets.py"  # TVMScript is read from a file
    script.write_text(text)
    runpy.run_path(str(script))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(name):
    """Sphinx checks those of the site's own pages."""
    links = re.findall(r"\]\((?!\w+:)([^)\s#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert links


def test_commands_have_the_options_that_are_shown(capsys):
    count = 0
    for page in PAGES:
        for text in fences(page, "console"):
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ ").partition(" > ")[0], comments=True)
                if words[:1] == ["tvm-fusion"]:
                    _parser().parse_args(words[1:])
                    count += 1
    assert count > 10
