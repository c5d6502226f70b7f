"""Docstrings of the public names: every parameter and attribute is described, examples run."""

import dataclasses
import doctest
import inspect

import numpy as np
import onnx
import pytest

import tvm_fusion
from tvm_fusion import transform

NAMES = [name for name in tvm_fusion.__all__ if not inspect.ismodule(getattr(tvm_fusion, name))]
HARMLESS = {"progress"}  # which raise nothing
EXAMPLES = {"compile", "explain", "FusionConfig", "UserError"}


def described(thing):
    """List what a docstring describes: names before a colon, several joined by commas."""
    lines = inspect.cleandoc(thing.__doc__).splitlines()
    heads = [line.partition(" : ")[0] for line in lines if " : " in line and line[0] != " "]
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")} | {
        line.lstrip("*") for line in lines if line.startswith("**")
    }


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_described(name):
    thing = getattr(tvm_fusion, name)
    if dataclasses.is_dataclass(thing):
        assert {field.name for field in dataclasses.fields(thing)} <= described(thing)
    elif not inspect.isclass(thing):
        assert set(inspect.signature(thing).parameters) <= described(thing)
        assert name in HARMLESS or "Raises\n" in inspect.cleandoc(thing.__doc__)
    for method, function in inspect.getmembers(thing, inspect.isfunction):
        if not method.startswith("_") and method in vars(thing):
            assert function.__doc__, method


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {n: getattr(tvm_fusion, n) for n in NAMES}
    known = {**names, "tvm_fusion": tvm_fusion, "onnx": onnx, "np": np}
    (test,) = doctest.DocTestFinder(recurse=False).find(names[name], name, globs=known)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.fixture(scope="module")
def shared():
    """What the examples of all passes begin with: those of their module."""
    names = {"__name__": "examples"}
    test = doctest.DocTestParser().get_doctest(transform.__doc__, names, "transform", None, None)
    assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
    return test.globs


@pytest.mark.parametrize("name", transform.__all__)
def test_each_pass_has_an_example_that_runs(name, shared):
    text = inspect.getdoc(getattr(transform, name))
    test = doctest.DocTestParser().get_doctest(text, dict(shared), name, None, None)
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0


def test_half_precision_names_what_it_takes():
    with pytest.raises(tvm_fusion.UserError, match="precision 'fp8'; expected one of fp16, bf16"):
        transform.ToHalfPrecision("fp8")
