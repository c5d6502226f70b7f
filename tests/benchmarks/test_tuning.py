"""Tuned models: steps are done once, the page is that of its records, gaps stay empty."""

import json

import pytest

from benchmarks.tuning import steps
from benchmarks.tuning.bounds_page import bounds, section
from benchmarks.tuning.page import HERE, load, ratio, render
from benchmarks.tuning.steps import Plan

SAID = {
    "tasks": 4, "tuned": 1, "trials": 96, "failed": 0, "gain_of_tasks": 1.01, "kept": True,
    "seconds": 61, "load": 1.0,
}  # fmt: skip
STOCK = {"tasks": 9, "fixed": 3, "left_out": 1, "trials": 96, "seconds": 300, "load": 1.0}


def peer(*round_ms):
    values = sorted(round_ms)
    latency = {"min": values[0], "median": values[len(values) // 2]}
    return {"status": "right", "round_ms": list(round_ms), "latency_ms": latency}


def record(**peers):
    known = {
        "tuned-1-min": SAID, "tuned-96-trials": SAID, "metaschedule-96-trials": STOCK,
    }  # fmt: skip
    return {
        "environment": {"date": "2026-01-01", "cpu": "a CPU"},
        "settings": {"threads": 1, "rounds": 3, "budget": 1.0},
        "load": 1.0,
        "steps": known,
        "peers": peers,
    }


def rows(page, start):
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith(start)
    ]


def test_the_page_is_that_of_its_records():
    assert (HERE / "README.md").read_text() == render(load(HERE / "results"), bounds())


def test_what_was_not_measured_is_empty():
    peers = {
        "ours": peer(10.0, 12.0, 11.0), "tuned-1-min": peer(10.0, 10.0, 10.0),
        "tuned-96-trials": peer(5.0, 20.0, 10.0), "metaschedule-96-trials": peer(40.0, 40.0, 40.0),
    }  # fmt: skip
    page = render({"m": record(**peers)}, {})
    times, ratios, *_ = rows(page, "| m |")
    assert times == ["m", "11 (10)", "10 (10)", "", "", "", "96", "10 (5)", "40 (40)"]
    assert ratios == ["m", "4.00", "1.10", "1 min", "1.10"]
    assert "`python -m benchmarks.tuning --models m --minutes 1 --trials 96 --threads 1`" in page
    assert rows(page, "| **geo") == [["**geometric mean**, a CPU", "4.00", "1.10", "", ""]]


def test_a_peer_that_is_wrong_has_no_ratio():
    peers = {"ours": peer(10.0), "metaschedule-96-trials": {"status": "wrong"}}
    page = render({"m": record(**peers)}, {})
    times, ratios, *_ = rows(page, "| m |")
    assert times[-1] == "wrong"
    assert ratios == ["m", "", "", "", ""]


def test_ratios_are_of_the_same_rounds():
    fast, slow = peer(1.0, 2.0, 4.0), peer(3.0, 6.0, 12.0)
    assert ratio(record(a=fast, b=slow), "b", "a") == 3.0


def kernel(title, us, mflop, kib, calls=1, configs=2):
    return [title, "contraction", calls, configs, us, 200.0, mflop, kib]


def test_what_tuning_can_gain_is_up_to_the_best_rates():
    """Of multiply-adds at 200 GFLOP/s the best kernel reaches a half; the best bandwidth is 100."""
    products = kernel("matmul", 100.0, 10.0, 1.0)
    slow = kernel("conv2d", 40.0, 1.0, 1.0, calls=5)
    copies = kernel("add", 1.024, 0.0, 100.0, configs=1)
    record = {
        "environment": {"date": "2026-01-01", "cpu": "a CPU"},
        "m": {"load": 0.5, "whole_ms": {"1": 0.31, "4": 0.09}, "kernels": [products, slow, copies]},
    }
    page = "\n".join(section(record))
    assert "50%, the bandwidth 100 GB/s" in page
    models, *gaps = rows(page, "| m |")
    assert models == [
        "m", "7", "0.30", "99.7%", "0.15", "0.15", "50%", "1.99", "0.31", "0.09 by 4", "2.38",
        "0.5",
    ]  # fmt: skip
    assert gaps[0] == ["m", "conv2d", "contraction", "5", "2", "40.0", "10.0", "49.8%"]
    assert [row[-1] for row in gaps[1:]] == ["0.0%", "0.0%"]
    assert rows(page, "| **geo")[-1][-5:] == ["**1.99**", "", "", "**2.38**", ""]


def test_nothing_is_said_where_nothing_is_bounded():
    assert section({}) == []


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan whose steps are the interpreter itself, saying what it is told."""
    ran = []

    def step(self, label, command):
        ran.append((label, command[0], command[-1]))
        return {"error": "exit code 1"} if label in failing else {"failed": 0}

    failing: set[str] = set()
    monkeypatch.setattr(Plan, "_step", step)
    monkeypatch.setattr(Plan, "_write_model", lambda self: None)
    return lambda minutes, trials: Plan("m", tmp_path, minutes, trials, 1), ran, failing


def test_minutes_are_added_to_those_spent(plan):
    make, ran, _ = plan
    make((5, 1), 8).run()
    assert ran == [
        ("tuned-1-min", "ours", "60s"), ("tuned-5-min", "ours", "240s"),
        ("tuned-8-trials", "ours", "trials=8"), ("metaschedule-8-trials", "metaschedule", "1"),
    ]  # fmt: skip
    ran.clear()
    said = make((5, 15), 8).run()
    assert ran == [("tuned-15-min", "ours", "600s")]
    assert len(said) == 5


def test_a_failed_step_stops_no_other_and_is_done_again(plan):
    make, ran, failing = plan
    failing.add("tuned-8-trials")
    said = make((), 8).run()
    assert (said["tuned-8-trials"], len(ran)) == ({"error": "exit code 1"}, 2)
    failing.clear()
    make((), 8).run()
    assert [label for label, *_ in ran[2:]] == ["tuned-8-trials"]


@pytest.mark.parametrize("code", [0, 3])
def test_a_step_is_a_process(tmp_path, monkeypatch, code):
    """Its last line is what it says; its records are copied under the label."""
    script = tmp_path / "fake.py"
    script.write_text(
        "import json, os, sys\n"
        "print('a library prints')\n"
        "print('a reason', file=sys.stderr)\n"
        "print(json.dumps({'cpus': len(os.sched_getaffinity(0)), "
        "'threads': os.environ['TVM_NUM_THREADS']}))\n"
        f"sys.exit({code})\n"
    )
    real = steps.subprocess.Popen
    monkeypatch.setattr(
        steps.subprocess, "Popen",
        lambda command, **options: real([command[0], str(script)], **options),
    )  # fmt: skip
    db = tmp_path / "minutes.db"
    db.write_bytes(b"records")
    said = Plan("m", tmp_path, (), 0, 1)._step("tuned-1-min", ["ours", "m", str(db), "60s"])
    if code:
        assert said == {"error": "exit code 3: a reason"}
        return
    assert (said["cpus"], said["threads"]) == (1, "1")
    assert (tmp_path / "tuned-1-min" / "records.db").read_bytes() == b"records"
    json.dumps(said)
