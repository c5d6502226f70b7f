"""Tuning by the servers of an RPC tracker: its name, what may be wrong, a server that is lost."""

import socket
import threading
from dataclasses import replace

import pytest
from rpc_servers import KEY, kill, servers
from tuned_models import QUICK, two_products

from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.database.tuning_records import TuningRecords
from tvm_fusion.measure.isolate import Failed
from tvm_fusion.tuning import rpc_bench, tune
from tvm_fusion.tuning.rpc_bench import RpcBench, Tracker


def test_trackers_have_names():
    assert Tracker.parse("rpc://some.host:9190/zen5") == Tracker("some.host", 9190, "zen5")


@pytest.mark.parametrize(
    "text", ["cloud", "rpc://host", "rpc://host:99999/key", "rpc://host:1/", "rpc://host:a/key"]
)
def test_other_runners_are_mistakes(tmp_path, text):
    with pytest.raises(UserError, match="expected local, or rpc://host:port/key of a tracker"):
        tune(two_products(), db=tmp_path / "t.db", runner=text)
    assert not (tmp_path / "t.db").exists()


def test_alternatives_are_measured_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(Tracker, "servers", lambda self: 1)
    with pytest.raises(UserError, match="with the option profile; expected local"):
        tune(
            two_products(),
            config=FusionConfig(profile="5m"),
            db=tmp_path / "t.db",
            runner="rpc://host:9190/key",
        )
    assert not (tmp_path / "t.db").exists()


def test_trackers_that_are_not_there(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen; nobody else can
        runner = f"rpc://127.0.0.1:{silent.getsockname()[1]}/key"
        with pytest.raises(UserError, match=r"tracker 127.0.0.1:\d+ cannot be reached .*start it"):
            tune(two_products(), db=tmp_path / "t.db", runner=runner)


def test_what_is_no_tracker():
    connections = []  # closed while there is something to be read, they would be reset
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            for _ in range(2):
                connections.append(listening.accept()[0])
                connections[-1].sendall(b"HTTP")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UserError, match="is not a TVM tracker"):
            Tracker("127.0.0.1", listening.getsockname()[1], "key").servers()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    ("errors", "tries", "passes"),
    [
        (["RPCError: connection closed"], 2, True),
        (["RPCError: connection closed"] * 2, 2, False),
        (["ValueError: its results differ"], 1, False),
    ],
)
def test_a_lost_server_costs_another_try(monkeypatch, errors, tries, passes):
    left, calls = list(errors), []

    def isolated(function, seconds):
        calls.append(seconds)
        if left:
            raise Failed(left.pop(0))
        return [1.0, 2.0]

    monkeypatch.setattr(rpc_bench, "isolated", isolated)
    bench = RpcBench.__new__(RpcBench)
    trial = bench.trial({"mr": 4}, QUICK)
    assert len(calls) == tries
    assert (trial.us == 1.0) == passes
    assert trial.error == ("" if passes else errors[-1])


@pytest.mark.slow
def test_three_servers_one_killed(tmp_path):
    trials = 9
    with servers(3, tmp_path) as (tracker, processes):
        seen = []

        def progress(state):
            if state.trials >= 3 and not seen:
                seen.append(state.trials)
                kill(processes[1])

        found = tune(
            two_products(),
            db=tmp_path / "t.db",
            budget=f"trials={trials}",
            runner=f"rpc://{tracker.host}:{tracker.port}/{KEY}",
            effort=replace(QUICK, timeout=1800.0),
            progress=progress,
        )
        assert seen
        assert tracker.servers() == 2
    assert found.trials == trials
    assert found.failed == 0
    with Records.open(tmp_path / "t.db") as records:
        known = TuningRecords(records)
        kept = [trial for _, key, _ in known.tasks() for trial in known.trials(key)]
    assert len(kept) == trials
    assert all(trial.us > 0 < trial.default_us for trial in kept)


@pytest.mark.slow
def test_servers_of_another_key(tmp_path):
    with (
        servers(1, tmp_path) as (tracker, _),
        pytest.raises(UserError, match=r"no server of the key 'gpu' \(there are test\)"),
    ):
        replace(tracker, key="gpu").servers()
