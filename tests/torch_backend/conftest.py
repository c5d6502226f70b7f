import re
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

GROUP = "torch_dynamo_backends"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def _registered(tmp_path_factory, monkeypatch, plain_llvm):
    """Register the backend as the entry point of pyproject.toml does; keep artifacts apart."""
    registry = pytest.importorskip("torch._dynamo.backends.registry")
    dynamo = import_module("torch._dynamo")
    monkeypatch.setenv("TVM_FUSION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    (entries,) = re.findall(rf"entry-points.{GROUP}\]\n((?:.+\n)+)", PROJECT.read_text())
    registry._lazy_import()
    for name, place in re.findall(r'(\w+) = "(.+)"', entries):
        monkeypatch.setitem(registry._BACKENDS, name, EntryPoint(name, place, GROUP))
    dynamo.reset()
    yield
    dynamo.reset()
