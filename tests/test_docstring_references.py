"""What docstrings refer to by a relative module, ``:mod:`.name```, lies there."""

import re
from pathlib import Path

import pytest

import tvm_fusion

PACKAGE = Path(tvm_fusion.__file__).parent
REFERENCE = re.compile(r":(mod|func|class|meth|data):`~?(\.+)([\w.]+)`")


def missing(source, folder):
    """References that name no module, or nothing that stands in it."""
    for role, dots, name in REFERENCE.findall(source):
        place = folder
        for _ in dots[1:]:
            place = place.parent
        parts = name.split(".")
        while parts and (place / parts[0]).is_dir():
            place = place / parts.pop(0)
        module = place / f"{parts.pop(0)}.py" if parts else place / "__init__.py"
        is_there = module.is_file() and (not parts or parts[0] in module.read_text())
        if not is_there or (role == "mod" and parts):
            yield name


@pytest.mark.parametrize("room", sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py")))
def test_references_lead_somewhere(room):
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in (PACKAGE / room).rglob("*.py")
        if (names := list(missing(path.read_text(), path.parent)))
    }
    assert found == {}


def test_a_reference_to_a_moved_module_is_found():
    folder = PACKAGE / "deploy" / "build"
    assert list(missing("see :mod:`.weights_file`", folder)) == ["weights_file"]
    assert not list(missing("see :mod:`..runtime.artifact.weights_file`", folder))
    assert list(missing("see :func:`.bundle.no_such`", folder)) == ["bundle.no_such"]
