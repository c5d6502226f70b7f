"""The runner in C++ on damaged artifacts: one sentence and exit code 2, whatever is damaged."""

import json
import os
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from test_hostile_artifacts import TEXTS, VALUES, changed, each_special_file, places

from tvm_fusion.deploy.runtime.artifact import manifest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no C++ here"),
]
SECONDS = 1000  # for a call that takes 0.1 s, on a busy machine


def call(runner, *arguments):
    command = [str(runner), *map(str, arguments), "--repeat", "1", "--warmup", "0"]
    return subprocess.run(command, capture_output=True, timeout=SECONDS)


def refusal(runner, *arguments):
    done = call(runner, *arguments)
    assert done.returncode == 2, done
    assert done.stdout == b""
    (line,) = done.stderr.decode(errors="replace").splitlines()
    assert line.startswith("tvm_fusion_run: ")
    return line


def test_any_entry_of_a_manifest_with_any_value(runner, dense_copy):
    """Passed, refused by a sentence, or told what TVM told: never a crash."""
    path = dense_copy / manifest.MANIFEST
    content = json.loads(path.read_text())
    content["decisions"] = content["decisions"][:1]
    cases = [(place, value) for place in places(content) for value in VALUES]
    codes = []
    for place, value in random.Random(0).sample(cases, 150):
        path.write_text(json.dumps(changed(content, place, value)))
        done = call(runner, dense_copy)
        codes.append(done.returncode)
        assert done.returncode in (0, 1, 2), (place, value, done)
        if done.returncode:
            assert len(done.stderr.decode(errors="replace").splitlines()) == 1, (place, value, done)
    assert codes.count(2) > 20
    assert codes.count(1) < 10


@pytest.mark.parametrize("case", [case for case in TEXTS if case not in ("twice", "UTF-16")])
def test_a_text_that_is_no_manifest(runner, dense_copy, case):
    (dense_copy / manifest.MANIFEST).write_bytes(TEXTS[case])
    assert "manifest.json" in refusal(runner, dense_copy)


@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.LIBRARY, manifest.WEIGHTS])
def test_a_file_cut_at_every_page(runner, dense_copy, name):
    whole = (dense_copy / name).read_bytes()
    for size in range(0, len(whole), 4096):
        (dense_copy / name).write_bytes(whole[:size])
        assert name in refusal(runner, dense_copy)


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_changed_byte_in_the_library(runner, dense_copy, where):
    data = bytearray((dense_copy / manifest.LIBRARY).read_bytes())
    data[int(len(data) * where)] ^= 1
    (dense_copy / manifest.LIBRARY).write_bytes(data)
    assert "model.so of" in refusal(runner, dense_copy)


@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.LIBRARY, manifest.WEIGHTS])
def test_what_is_no_plain_file(runner, dense_copy, name):
    for _ in each_special_file(dense_copy / name):
        assert name in refusal(runner, dense_copy)


def test_links_to_a_store_of_files_are_followed(runner, dense_copy, tmp_path):
    (tmp_path / "store").mkdir()
    for number, path in enumerate(sorted(dense_copy.iterdir())):
        path.symlink_to(shutil.move(path, tmp_path / "store" / f"blob{number}"))
    assert call(runner, dense_copy).returncode == 0


def test_an_extent_out_of_range_costs_no_memory(runner, dense_folder):
    words = "--dim batch=99999999999; expected 1 to 8"
    assert words in refusal(runner, dense_folder, "--dim", "batch=99999999999")


def test_a_link_in_the_output_folder_is_replaced(runner, dense_folder, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scores.npy").symlink_to(tmp_path / "mine")
    assert call(runner, dense_folder, "--output", tmp_path / "out").returncode == 0
    assert (tmp_path / "mine").read_text() == "mine"
    assert np.load(tmp_path / "out" / "scores.npy").shape == (1, 32)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["scores.npy"]


def test_an_interrupt_at_any_moment(runner, dense_folder, tmp_path):
    command = [str(runner), str(dense_folder), "--repeat", "100000000", "--output", str(tmp_path)]
    for seconds in (0.02, 0.1, 0.5, 2, 10, 50):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Background jobs of a shell ignore it, and so would their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
        # Before main() begins, the signal itself ends the process.
        assert process.returncode in (130, -signal.SIGINT)
        assert errors == (b"tvm_fusion_run: interrupted\n" if process.returncode == 130 else b"")
        if seconds >= 0.5 and process.returncode == 130:
            break
    assert process.returncode == 130
    assert not list(tmp_path.iterdir())


def test_an_input_that_is_no_plain_file(runner, dense_folder, tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    for path in (tmp_path / "pipe.npy", tmp_path, "/dev/zero"):
        words = f"cannot read '{path}'; expected a numpy .npy file."
        assert words in refusal(runner, dense_folder, "--input", f"data={path}")
