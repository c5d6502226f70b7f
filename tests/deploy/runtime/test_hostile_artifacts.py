"""Artifacts that something else has written: one sentence, whatever an entry holds."""

import json
import os
import shutil

import numpy as np
import pytest
from tiny_models import dense_data

import tvm_fusion
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.errors import UserError

VALUES = (None, True, -1, 3, 1.5, 2**63, 2**70, "", "../../x", "/etc/hostname", "n" * 3000)
VALUES += ("f4", "-n", "(" * 300, "n+" * 400 + "n", [], [-1], [2**40, 2**40], {}, {"a": 1})


def verdict(folder):
    """None where an artifact loads; else the one sentence."""
    try:
        tvm_fusion.load(folder)
    except UserError as error:
        sentence = str(error)
        assert len(sentence.splitlines()) == 1
        assert sentence.endswith(".")
        return sentence
    return None


def places(content, path=()):
    """Every entry of a JSON value, at any depth; of lists of words the first alone."""
    if path:
        yield path
    if isinstance(content, dict):
        for key, value in content.items():
            yield from places(value, (*path, key))
    elif isinstance(content, list):
        simple = all(isinstance(item, str) for item in content)
        for position, value in enumerate(content[:1] if simple else content):
            yield from places(value, (*path, position))


def changed(content, path, value, remove=False):
    copy = json.loads(json.dumps(content))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


@pytest.mark.slow
def test_any_entry_of_a_manifest_with_any_value(dense_copy):
    """The checksums are right, as those of another compiler would be."""
    content = json.loads((dense_copy / manifest.MANIFEST).read_text())
    del content["sha256"]
    content["decisions"] = content["decisions"][:1]
    refused = loaded = 0
    for path in places(content):
        cases = [changed(content, path, value) for value in VALUES]
        for case in [*cases, changed(content, path, None, remove=True)]:
            manifest.write(dense_copy, case)
            sentence = verdict(dense_copy)
            refused += sentence is not None
            loaded += sentence is None
    assert refused > 800
    assert loaded > 50  # notes and counts that say nothing about the code


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("weights/weight/offset", 7, "/weights/weight/offset does not lie in weights.bin"),
        ("weights/weight/offset", 1 << 40, "/weights/weight/offset does not lie in weights.bin"),
        ("weights/weight/offset", -64, "/weights/weight/offset is negative"),
        ("weights/weight/bytes", 3, "/weights/weight/bytes does not fit the shape"),
        ("weights/weight/dtype", "object", "/weights/weight/dtype is not an element type"),
        ("functions/main/weights", ["other"], "/functions/main/weights names 'other', which is"),
        ("functions/main/inputs/0/shape", [-3], "/functions/main/inputs/0/shape/0 is negative"),
        ("functions", {}, "/functions is empty"),
        ("files/model.so/sha256", "0", "/files/model.so/sha256 is not a SHA-256"),
        ("files/..", {"bytes": 1, "sha256": "0" * 64}, "/files/.. is not a file of an artifact"),
        ("target/archs", ["a", "b"], "/architectures does not list the target's architectures"),
        ("dims/batch/min", 9, "/dims/batch is an empty range"),
        ("precision", "fp8", "/precision is not one of fp32, fp16, bf16"),
    ],
)
def test_the_sentence_names_the_entry(dense_copy, path, value, words):
    content = json.loads((dense_copy / manifest.MANIFEST).read_text())
    manifest.write(dense_copy, changed(content, tuple(map(_step, path.split("/"))), value))
    assert f"is damaged ({words}" in verdict(dense_copy)


def _step(text):
    return int(text) if text.isdigit() else text


TEXTS = {
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "not UTF-8": b'{"schema": 2, "source": "\xff"}',
    "UTF-16": '{"schema": 2}'.encode("utf-16"),
    "twice": b'{"schema": 2, "schema": 2}',
    "huge": b'{"schema": ' + b"9" * 100_000 + b"}",
    "infinite": b'{"schema": 1e999}',
    "surrogate": b'{"schema": "\\ud800"}',
    "NUL": b"\0" * 4096,
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_text_that_is_no_manifest(dense_copy, case):
    (dense_copy / manifest.MANIFEST).write_bytes(TEXTS[case])
    assert verdict(dense_copy)


@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.LIBRARY, manifest.WEIGHTS])
def test_a_file_cut_at_every_page(dense_copy, name):
    whole = (dense_copy / name).read_bytes()
    for size in range(0, len(whole), 4096):
        (dense_copy / name).write_bytes(whole[:size])
        assert name in verdict(dense_copy)
    (dense_copy / name).write_bytes(whole + b"\n")
    assert (verdict(dense_copy) is None) == (name == manifest.MANIFEST)


def test_a_library_that_is_none(dense_copy):
    """Its hash is what the manifest says."""
    content = json.loads((dense_copy / manifest.MANIFEST).read_text())
    (dense_copy / manifest.LIBRARY).write_bytes(b"\x7fELF" + bytes(100))
    content["files"][manifest.LIBRARY] = {
        "bytes": 104,
        "sha256": manifest.sha256(dense_copy / manifest.LIBRARY),
    }
    manifest.write(dense_copy, content)
    assert "does not load" in verdict(dense_copy)


def each_special_file(path):
    """Put what is no file in a file's place, one kind after the other."""
    path.unlink()
    for make, undo in (
        (os.mkfifo, os.unlink),
        (os.mkdir, os.rmdir),
        (lambda p: os.symlink("absent", p), os.unlink),
        (lambda p: os.symlink(p, p), os.unlink),
        (lambda p: os.symlink("/dev/zero", p), os.unlink),
    ):
        make(path)
        yield
        undo(path)


@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.LIBRARY, manifest.WEIGHTS])
def test_what_is_no_plain_file(dense_copy, name):
    for _ in each_special_file(dense_copy / name):
        assert name in verdict(dense_copy)


def test_links_to_a_store_of_files_are_followed(dense_folder, tmp_path):
    """As download caches keep them: by hash, linked under their names."""
    (tmp_path / "store").mkdir()
    (tmp_path / "model").mkdir()
    for number, name in enumerate(sorted(manifest.NAMES)):
        shutil.copy(dense_folder / name, tmp_path / "store" / f"blob{number}")
        (tmp_path / "model" / name).symlink_to(tmp_path / "store" / f"blob{number}")
    data = dense_data(2)
    np.testing.assert_array_equal(
        tvm_fusion.load(tmp_path / "model")(data=data)["scores"],
        tvm_fusion.load(dense_folder)(data=data)["scores"],
    )


@pytest.mark.parametrize("folder", ["n" * 300, "a/" * 2500, "nul\0", "/dev/null", "/proc/self"])
def test_a_path_that_cannot_be(folder):
    assert verdict(folder)
