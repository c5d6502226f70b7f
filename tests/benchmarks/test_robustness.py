"""Tiny models of many architectures: what becomes of crashes, the page, and a sample of them."""

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.robustness.sweep import rows_of
from benchmarks.robustness.table import page


def work(name, cells, answers):
    """Answer cells as their names say."""
    answers.send(("export", {"outcome": "right"}))
    for cell in cells:
        answers.send((cell, None))
        if cell == "kill":
            Path(os.environ["FOLDERS"]).write_text(tempfile.mkdtemp())
            os.kill(os.getpid(), signal.SIGKILL)
        if cell == "sleep":
            time.sleep(10**6)
        answers.send((cell, {"outcome": "right", "seconds": 1.0}))


class Patient:
    """A context whose pipes have a time limit for the cell that sleeps, and none for the others."""

    def __init__(self):
        self.Process = multiprocessing.get_context("fork").Process

    def Pipe(self, duplex):
        self.end, theirs = multiprocessing.Pipe(duplex)
        self.at = None
        return self, theirs

    def poll(self, limit):
        return self.end.poll(limit if self.at == "sleep" else None)

    def recv(self):
        self.at, row = self.end.recv()
        return self.at, row


def test_crashes_and_hangs_are_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDERS", str(tmp_path / "folders"))
    rows = rows_of(Patient(), work, "model", ["first", "kill", "sleep", "last"], 0.2)
    assert [(cell, row["outcome"]) for cell, row in rows.items()] == [
        ("export", "right"), ("first", "right"), ("kill", "crash"), ("sleep", "hang"),
        ("last", "right"),
    ]  # fmt: skip
    assert rows["kill"]["reason"] == "the process ended with -9"
    assert not Path((tmp_path / "folders").read_text()).exists()


def test_the_page_counts_and_names_what_fails():
    export = {"outcome": "right", "family": "text"}
    right = {"outcome": "right", "seconds": 2.0, "error": 1e-7}
    stock = {"outcome": "right", "gain": 4.0, "seconds": 1.0}
    text = page(
        {
            "a": {"export": export, "cpu:fp32": right, "stock": stock},
            "b": {"export": export, "cpu:fp32": {"outcome": "wrong", "reason": "why"}},
            "c": {"export": {"outcome": "no program", "family": "sound", "reason": "torch"}},
        },
        9,
    )
    assert "Swept so far: 3 of 9 models." in text
    assert "| CPU fp32 | 2 | 1 | 50 % | 2.0 |" in text
    assert "1 of 1 right, 0 wrong, the others do not compile. Geometric mean" in text
    assert "* b, CPU fp32: wrong: why\n" in text
    assert "No programs: c." in text
    assert "| text | 2 | 1.0e-07 | 0.0e+00 | 4.00 of 1 |" in text


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mixtral", "llama, static cache", "whisper", "swinv2", "FluxTransformer2DModel"]
)
def test_a_sample_is_right(name):
    for module in ("torch", "transformers", "diffusers"):
        pytest.importorskip(module)
    from benchmarks.robustness.worker import work as model

    context = multiprocessing.get_context("forkserver")  # libraries are imported once for all
    context.set_forkserver_preload(["benchmarks.robustness.worker"])
    rows = rows_of(context, model, name, ["cpu:fp32", "cpu:fp16"], 600)
    assert {cell: row["outcome"] for cell, row in rows.items()} == {
        "export": "right", "cpu:fp32": "right", "cpu:fp16": "right"
    }, rows  # fmt: skip
