"""Trials on other machines: libraries built here, measured by the servers of TVM's RPC tracker.

  one process a trial, as many at a time as the tracker has servers of the key:
    build the candidate and the default into libraries
    ask the tracker for a free server;  upload;  compare results;  time in turns, there
  a server that is lost costs the trial another try on another server

A trial that fails on two servers is the candidate's fault. TVM's servers handle a session in a
process of its own, so that a crashing candidate does not end them.
"""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, rpc

from ..core.contract.template import Config
from ..deploy.runtime.results import leaves
from ..device import TargetSpec
from ..errors import UserError
from ..fusion.database.tuning_records import Trial
from ..measure.build import export
from ..measure.isolate import Failed, isolated
from ..measure.timing import Effort, check_same
from .measure import build, inputs_of
from .tasks import MAIN, Task

CONNECT_SECONDS = 5.0
TRIES = 2  # servers
_LOST = ("rpc", "socket", "connection", "broken pipe", "server")  # words of errors of a lost one
_FORM = "local, or rpc://host:port/key of a tracker"


@dataclass(frozen=True)
class Tracker:
    """A tracker and the key of its servers."""

    # As ``rpc://host:port/key`` names them.
    host: str
    port: int
    key: str

    @classmethod
    def parse(cls, text: str) -> Tracker:
        """Read ``rpc://host:port/key``.

        Raises
        ------
        UserError
            For anything else.
        """
        found = re.fullmatch(r"rpc://([^:/]+):(\d{1,5})/([^/]+)", text)
        if not found or not 0 < int(found[2]) < 65536:
            raise UserError(f"runner {text!r}", _FORM)
        return cls(found[1], int(found[2]), found[3])

    def servers(self) -> int:
        """Count the servers that are registered under the key, busy ones included.

        Raises
        ------
        UserError
            If nothing answers there, or no server has the key.
        """
        place = f"tracker {self.host}:{self.port}"
        try:
            socket.create_connection((self.host, self.port), CONNECT_SECONDS).close()
        except OSError as error:
            raise UserError(
                f"the {place} cannot be reached ({error.strerror or error})",
                advice="start it with `python -m tvm.exec.rpc_tracker`",
            ) from error
        try:
            summary = rpc.connect_tracker(self.host, self.port).summary()
        # guard: what answers there may be anything; the sentence has its reason
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"the {place} is not a TVM tracker ({reason})") from error
        names = [str(one["key"]).removeprefix("server:") for one in summary["server_info"]]
        count = names.count(self.key)
        if not count:
            others = f"there are {', '.join(sorted(set(names)))}" if names else "there are none"
            raise UserError(
                f"the {place} has no server of the key {self.key!r} ({others})",
                advice=f"start one with `python -m tvm.exec.rpc_server --key {self.key}`",
            )
        return count


class RpcBench:
    """Measures candidates of one task against its default, on a tracker's servers."""

    def __init__(self, task: Task, spec: TargetSpec, seed: int, tracker: Tracker) -> None:
        self._task, self._spec, self._tracker = task, spec, tracker
        self._arrays = inputs_of(task, seed)

    def trials(self, configs: Sequence[Config], effort: Effort) -> Iterator[Trial]:
        """Measure configurations, as many at a time as there are servers, in their order."""
        with ThreadPoolExecutor(max(1, min(len(configs), self._tracker.servers()))) as pool:
            yield from pool.map(lambda config: self.trial(config, effort), configs)

    def trial(self, config: Config, effort: Effort) -> Trial:
        """Measure one configuration."""
        try:
            us, default_us = self.race([config], effort)
        except Failed as reason:
            return Trial(config, None, None, str(reason))
        return Trial(config, us, default_us)

    def race(self, configs: Sequence[Config], effort: Effort) -> list[float]:
        """Measure configurations and the default in turns on one server; the default's time last.

        Raises
        ------
        Failed
            If one crashes, takes too long or gives other results, on two servers.
        """
        for attempt in range(TRIES):
            try:
                return isolated(lambda: self._measure(configs, effort), effort.timeout)
            except Failed as reason:
                is_lost = any(word in str(reason).lower() for word in _LOST)
                if not is_lost or attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _measure(self, configs: Sequence[Config], effort: Effort) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, config in enumerate((*configs, None)):
                path = Path(folder, f"c{number}.so")
                export(build(self._task, config, self._spec), self._spec, path)
                paths.append(path)
            tracker = rpc.connect_tracker(self._tracker.host, self._tracker.port)
            session = tracker.request(self._tracker.key, session_timeout=effort.timeout)
            for path in paths:
                session.upload(str(path))
            kind = self._spec.kind
            device = session.cpu() if kind == "llvm" else session.device(kind, 0)
            modules = [session.load_module(path.name) for path in paths]
            machines = [relax.VirtualMachine(module, device) for module in modules]
            args = [tvm.runtime.tensor(array, device) for array in self._arrays]
            results = [_run(machine, args) for machine in machines]
            for result in results[:-1]:
                check_same(result, results[-1])
            return _in_turns(machines, device, effort)


def _run(machine: relax.VirtualMachine, args: list[Any]) -> list[Any]:
    machine.set_input(MAIN, *args)
    machine.invoke_stateful(MAIN)
    return [leaf.numpy() for leaf in leaves(machine.get_outputs(MAIN))]


def _in_turns(machines: list[Any], device: Any, effort: Effort) -> list[float]:
    """Time machines in turns by the server's clock; the least of each in microseconds."""
    clocks = [m.time_evaluator("invoke_stateful", device, number=1, repeat=3) for m in machines]
    best = [float("inf")] * len(machines)
    spent, rounds = 0.0, 0
    while rounds < effort.most and (rounds < effort.fewest or spent < effort.seconds):
        for number, clock in enumerate(clocks):
            results = clock(MAIN).results
            best[number] = min(best[number], *results)
        spent += sum(results)
        rounds += 1
        if rounds == effort.fewest and min(best[:-1]) > effort.hopeless * best[-1]:
            break
    return [seconds * 1e6 for seconds in best]
