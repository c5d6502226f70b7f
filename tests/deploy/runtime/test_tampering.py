"""Artifacts that are damaged, half copied, or made for another machine."""

import json

import pytest

import tvm_fusion
from tvm_fusion.cli import main
from tvm_fusion.deploy.runtime import load
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.device import Device
from tvm_fusion.errors import UserError


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def rewrite(folder, change):
    """Write another manifest that is consistent in itself, as a compiler would."""
    content = json.loads((folder / manifest.MANIFEST).read_text())
    change(content)
    manifest.write(folder, content)


def refuses(folder, words):
    with pytest.raises(UserError, match=words) as caught:
        tvm_fusion.load(folder)
    assert "\n" not in str(caught.value)


AGAIN = "compile the model again, or copy the whole folder again"


@pytest.mark.parametrize("name", ["model.so", "weights.bin"])
def test_a_file_that_is_missing_or_cut_short(dense_copy, name):
    size = (dense_copy / name).stat().st_size
    cut(dense_copy / name)
    words = rf"{name} of artifact .* has {size - 1} bytes; expected {size} bytes; {AGAIN}"
    refuses(dense_copy, words)
    (dense_copy / name).unlink()
    refuses(dense_copy, rf"{name} of artifact .* is missing; expected {size} bytes; {AGAIN}")


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_changed_byte_in_the_library(dense_copy, where):
    library = dense_copy / "model.so"
    flip(library, int(library.stat().st_size * where))
    refuses(
        dense_copy, "model.so of artifact .* has been changed; expected the content with sha256"
    )


def test_a_changed_byte_in_the_weights_is_found_by_verify(dense_copy, capsys):
    assert main(["inspect", str(dense_copy), "--verify"]) == 0
    flip(dense_copy / "weights.bin", 1000)
    tvm_fusion.load(dense_copy)  # which does not read them
    capsys.readouterr()
    assert main(["inspect", str(dense_copy), "--verify"]) == 2
    assert "weights.bin of artifact" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\udcff", '{"schema": 1', '"schema"', "{}"]
)
def test_a_manifest_that_is_no_manifest(dense_copy, text):
    (dense_copy / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refuses(dense_copy, rf"manifest.json' is damaged \(.*\); {AGAIN}")


def test_a_manifest_cut_short_anywhere(dense_copy):
    path = dense_copy / "manifest.json"
    whole = path.read_text()
    for length in range(0, len(whole) - 2, 97):
        path.write_text(whole[:length])
        refuses(dense_copy, "is damaged")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["weights"]["weight"].update(offset=64),
        lambda m: m["functions"]["main"]["inputs"].reverse() or m["dims"].clear(),
        lambda m: m.pop("target"),
        lambda m: m.pop("sha256"),
        lambda m: m["files"].pop("weights.bin"),
        lambda m: m["target"].update(machine="other"),
    ],
)
def test_an_edited_manifest(dense_copy, change):
    path = dense_copy / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    refuses(
        dense_copy, rf"manifest.json' has been changed; expected what the compiler wrote; {AGAIN}"
    )


def test_layout_of_the_text_does_not_matter(dense_copy):
    path = dense_copy / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7, sort_keys=True))
    tvm_fusion.load(dense_copy)


@pytest.mark.parametrize("schema", [0, 1, 3, "2", None])
def test_another_schema(dense_copy, schema):
    rewrite(dense_copy, lambda m: m.update(schema=schema))
    refuses(
        dense_copy, f"has schema {schema}; expected schema 2; compile the model again with this"
    )


def test_no_artifact_at_all(tmp_path):
    refuses(tmp_path, r"is not an artifact \(it has no manifest.json\); expected a folder that")
    refuses(tmp_path / "nowhere", "there is no folder")


def test_another_tvm(dense_copy):
    rewrite(dense_copy, lambda m: m["versions"].update({"apache-tvm": "0.26.0"}))
    refuses(dense_copy, "was made by apache-tvm 0.26.0; expected apache-tvm .*; compile the model")


def test_a_cpu_without_the_features(dense_copy):
    rewrite(dense_copy, lambda m: m["target"]["features"].append("avx1024"))
    refuses(
        dense_copy,
        r"is made for cpu:.*; this CPU is \w+ without avx1024: compile it for this machine",
    )


def test_a_cpu_of_another_family(dense_copy):
    rewrite(dense_copy, lambda m: m["target"].update(machine="riscv64", text="cpu:riscv"))
    refuses(dense_copy, "is made for cpu:riscv; this CPU is .*: compile it for this machine")


def for_cuda(*archs):
    def change(m):
        target = {"text": f"cuda:{','.join(archs)}", "kind": "cuda", "archs": list(archs)}
        own = {key: m[key] for key in ("suffix", "weights", "functions")}
        m.update(target=target, architectures=dict.fromkeys(archs[1:], own))

    return change


def test_a_machine_without_cuda(dense_copy, monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: ())
    rewrite(dense_copy, for_cuda("sm_80", "sm_90a"))
    refuses(dense_copy, "is made for cuda:sm_80,sm_90a; this machine has no visible CUDA device")


@pytest.mark.parametrize(
    ("archs", "device", "runs"),
    [
        (["sm_80"], "sm_80", "sm_80"),
        (["sm_80"], "sm_89", "sm_80"),
        (["sm_89"], "sm_80", None),
        (["sm_80"], "sm_90a", None),
        (["sm_80", "sm_90a"], "sm_90a", "sm_90a"),
        (["sm_80", "sm_90a"], "sm_86", "sm_80"),
        (["sm_80", "sm_86"], "sm_86", "sm_86"),
        (["sm_90"], "sm_90a", "sm_90"),
        (["sm_90a"], "sm_100", None),
        (["sm_75"], "sm_75", "sm_75"),
    ],
)
def test_a_cuda_device_of_another_architecture(dense_copy, monkeypatch, archs, device, runs):
    monkeypatch.setattr(load, "cuda_devices", lambda: (Device("cuda", device, "a device"),))
    opened = []
    monkeypatch.setattr(load, "_open_library", opened.append)
    monkeypatch.setattr(load, "load_cudart", lambda: opened.append("cudart"))
    rewrite(dense_copy, for_cuda(*archs))
    if runs:
        target = json.loads((dense_copy / "manifest.json").read_text())["target"]
        _, chosen = load._open_device(dense_copy, {"target": target})
        assert chosen == runs
        assert opened == ["tvm_runtime", "cudart", "tvm_runtime_cuda"]
    else:
        refuses(dense_copy, f"is made for cuda:.*; this device is {device}: compile it for that")


def test_a_kind_of_device_that_nobody_knows(dense_copy):
    target = {"text": "metal:m1", "kind": "metal", "archs": ["m1"]}
    rewrite(dense_copy, lambda m: m.update(target=target))
    refuses(dense_copy, "is made for metal:m1; expected a CPU, CUDA devices or AMD GPUs")
