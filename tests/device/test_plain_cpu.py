"""A target that names no CPU: who is told, and who is not."""

import warnings

import pytest
import tvm
from tiny_models import dense
from tvm.target import Target

import tvm_fusion
from tvm_fusion.device import parse
from tvm_fusion.device.plain_cpu import plain_cpu_note

PLAIN = [Target("llvm"), {"kind": "llvm"}, Target({"kind": "llvm", "num-cores": 4})]


@pytest.mark.parametrize("target", PLAIN, ids=str)
def test_tells_what_it_is_for_and_what_to_write(target):
    note = plain_cpu_note(target)
    assert "names no CPU" in note
    assert f"plain {parse(target).text.removeprefix('cpu:')}" in note
    assert 'write "cpu" for this machine' in note


def test_tells_of_another_family():
    note = plain_cpu_note({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    if tvm_fusion.device.probe.machine() != "aarch64":
        assert note.endswith("plain AArch64: name it as mcpu.")


@pytest.mark.parametrize(
    "target",
    [
        *("cpu", "llvm", "cpu:x86-64", "cuda:sm_80", parse("cpu:x86-64-v3")),
        *(parse(text).tvm_target() for text in ("cpu", "cpu:x86-64", "cpu:aarch64")),
        Target({"kind": "llvm", "mcpu": "generic"}),
        {"kind": "llvm", "mcpu": "znver3"},
    ],
    ids=str,
)
def test_nothing_where_one_is_named(target):
    assert plain_cpu_note(target) is None


def test_compilation_warns_and_the_artifact_says_so():
    with pytest.warns(UserWarning, match="names no CPU") as caught:
        artifact = tvm_fusion.compile(dense(), tvm.target.Target("llvm"), dims={"batch": 2})
    assert caught[0].filename == __file__
    (note,) = [d for d in artifact.manifest["decisions"] if d["code"] == "plain_cpu"]
    assert note["sentence"] == plain_cpu_note(PLAIN[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tvm_fusion.compile(dense(), "llvm", dims={"batch": 2})
