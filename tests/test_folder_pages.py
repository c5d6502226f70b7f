"""Each folder opens with a page, which names every file and folder in it."""

import ast
import re
from pathlib import Path

import pytest

import tvm_fusion

PACKAGE = Path(tvm_fusion.__file__).parent
# Folders in layers: a newcomer enters by these.
ROOMS = ["_tvm", "core", "deploy", "ecg", "fusion", "program", "rewrite", "schedule"]
ROOMS += ["frontend/dimensions", "frontend/normalize", "frontend/operators"]


def pages():
    for room in ROOMS:
        for init in sorted((PACKAGE / room).rglob("__init__.py")):
            page = ast.get_docstring(ast.parse(init.read_text())) or ""
            if len(page.splitlines()) > 1:
                yield init.parent, page


PAGES = dict(pages())


def test_the_linter_sees_each_folder():
    """import-linter passes over folders without a page, silently."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [f for f in folders if not (f / "__init__.py").exists()] == []


def test_families_have_pages():
    families = {f for f in PAGES if f.is_relative_to(PACKAGE / "schedule")}
    assert len(families) >= 30


@pytest.mark.parametrize("folder", PAGES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_page_names_each_file(folder):
    files = {p.stem for p in folder.glob("*.py")} - {"__init__"}
    folders = {p.parent.name for p in folder.glob("*/__init__.py")}
    words = set(re.findall(r"\w+", PAGES[folder]))
    assert files | folders <= words
