"""Time models on one GPU and on several: ``python3 -m benchmarks.parallel.gpu --seconds 480``.

It needs the compiler, PyTorch, transformers and NCCL. Artifacts, and PyTorch's ranks, get ready in
processes of their own, side by side; a case that is ready is checked and timed while no other is.
The record is written row by row, and what is not ready in time is told.

    decode, prefill    medians of turns of all sides
    queued             calls that are launched one behind the other
    waiting            calls each of which is waited for by reading the logits
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tvm_fusion
from benchmarks.workers import Worker

from .cases import CASES, DEFAULT, Case

PACKAGE = "benchmarks.parallel"
ROUNDS, CALLS, PREFILLS = 7, 20, 3
ALLOWED = 2e-2  # of the largest logit: sums of half types in another order
PEER_ALLOWED = 5e-2  # PyTorch's kernels differ in more than order
LEAST_SECONDS = 45.0  # that loading and timing a case takes
ANSWER_SECONDS = 60.0


class Pending:
    """A case whose artifacts and ranks get ready.

    Attributes
    ----------
    row : dict
        What is known of it.
    """

    def __init__(self, case: Case, target: str, folder: Path) -> None:
        self.case, self._folder = case, folder
        self.row: dict[str, Any] = {"name": case.name, "wrong": []}
        environment = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        self.compilers = {
            size: Worker(
                *("-m", f"{PACKAGE}.compile_worker", case.as_json, str(size), target),
                str(folder / str(size)),
                environment=environment,
            )
            for size in case.sizes
        }
        device, port = "cpu" if target.startswith("cpu") else "cuda", str(_free_port())
        world = max(case.sizes)
        self.ranks = [
            Worker(
                *("-m", f"{PACKAGE}.torch_peer", case.as_json, str(rank), str(world), port, device),
                environment=environment,
            )
            for rank in range(world if case.has_peer else 0)
        ]
        self._left = {**{f"{n} workers": w for n, w in self.compilers.items()},
                      **{f"rank {n}": w for n, w in enumerate(self.ranks)}}  # fmt: skip

    def is_ready(self, seconds: float) -> bool:
        """Wait a little for answers; whether all are there."""
        for name, worker in list(self._left.items()):
            line = worker.line(seconds)
            if line is None:
                continue
            answer = json.loads(line) if line else {"error": worker.ended()}
            self.row.setdefault("ready", {})[name] = answer
            if "error" in answer:
                self.row["wrong"].append(f"{name}: {answer['error']}")
            del self._left[name]
        return not self._left

    def give_up(self) -> None:
        """End what is not ready."""
        for name, worker in self._left.items():
            self.row["wrong"].append(f"{name}: not ready in time")
            worker.close()
        self._left = {}

    def folder_of(self, size: int) -> Path | None:
        """Where the artifact for a number of workers is, if it was compiled."""
        answer = self.row.get("ready", {}).get(f"{size} workers", {})
        return self._folder / str(size) if "compile_s" in answer else None

    @property
    def has_ranks(self) -> bool:
        """Whether PyTorch's ranks are all ready."""
        ready = self.row.get("ready", {})
        found = [ready.get(f"rank {n}", {}) for n in range(len(self.ranks))]
        return bool(found) and all("compile_s" in one for one in found)

    def close(self) -> None:
        """End the processes."""
        for worker in (*self.compilers.values(), *self.ranks):
            worker.close()


def main(arguments: list[str] | None = None) -> int:
    """Run all; returns the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.parallel.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="default: parallel_gpu.json in $OUT, if set")
    parser.add_argument("--cases", nargs="+", choices=[c.name for c in CASES], default=DEFAULT)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--seconds", type=float, default=480, help="for everything")
    options = parser.parse_args(arguments)
    path = options.json or Path(os.environ.get("OUT", "."), "parallel_gpu.json")
    end = time.monotonic() + options.seconds
    chosen = {case.name: case for case in CASES}
    rows: dict[str, dict[str, Any]] = {}

    def keep(row: dict[str, Any]) -> None:
        rows[row["name"]] = row
        path.write_text(json.dumps({"target": options.target, "rows": [*rows.values()]}, indent=1))
        print(f"{options.seconds - (end - time.monotonic()):4.0f} s {json.dumps(row)}", flush=True)

    with tempfile.TemporaryDirectory(prefix="parallel-") as folder:
        pending = [
            Pending(chosen[name], options.target, Path(folder, name)) for name in options.cases
        ]
        try:
            for one in _in_turn(pending, end - LEAST_SECONDS):
                measure(one, keep, end)
                one.close()
        finally:
            for one in pending:
                one.close()
    return int(any(row["wrong"] for row in rows.values()))


def _in_turn(pending: list[Pending], end: float) -> Iterator[Pending]:
    """Yield cases as they get ready; at the end, those of which something is."""
    left = list(pending)
    while left and time.monotonic() < end:
        for one in list(left):
            if one.is_ready(0.2):
                left.remove(one)
                one.row["beside"] = len(left)  # cases whose compilers run meanwhile
                yield one
    for one in left:
        one.give_up()
    yield from left


def measure(one: Pending, keep: Callable[[dict[str, Any]], None], end: float) -> None:
    """Check and time what is ready of a case."""
    row = one.row
    keep(row)
    sides, closing = _loaded(one, row)
    keep(row)
    if len(sides) > 1:
        _check(one.case, sides, row)
    if one.has_ranks and sides:
        _check_peer(one, sides, row)
    keep(row)
    if not row.get("differs"):
        for name in ("decode", "prefill") if one.case.prompt else ("decode",):
            if time.monotonic() < end:
                row[name] = _timed(one, sides, name, end)
                keep(row)
    for close in closing:
        close()


class Side:
    """A model that is loaded, as its user calls it."""

    def __init__(self, case: Case, executable: Any) -> None:
        self._session, self._executable = executable.session(), executable
        shape = (1, max(1, case.prompt))
        self._case, generator = case, np.random.default_rng(0)
        words = {s.name: s for s in executable.signatures["decode"].outputs}["logits"].shape[-1]
        self._ids = generator.integers(3, int(words), shape)

    def set_tokens(self, ids: np.ndarray) -> None:
        """Take the tokens of another side."""
        self._ids = ids

    @property
    def tokens(self) -> np.ndarray:
        """The prompt; its first token is the one that decode takes."""
        return self._ids

    def run(self, name: str) -> Any:
        """Launch a step; returns the logits where they lie."""
        if name == "decode":
            found = self._session.decode(self._ids[:, :1], position=self._case.position)
        else:
            found = self._session.prefill(self._ids, position=0)
        return found["logits"]

    def read(self, name: str) -> np.ndarray:
        """Run a step, and wait for its logits in their type."""
        found = self.run(name)
        return found.numpy() if hasattr(found, "numpy") else np.from_dlpack(_on_host(found))

    def logits(self, name: str) -> np.ndarray:
        """Run a step; returns its logits in float32."""
        return np.asarray(self.read(name), "float32").reshape(-1)

    def synchronize(self) -> None:
        """Wait for all workers."""
        self._executable.synchronize()


def _on_host(value: Any) -> Any:
    from tvm_fusion.deploy.runtime.tensors import to_numpy

    return value if isinstance(value, np.ndarray) else to_numpy(value)


def _loaded(one: Pending, row: dict[str, Any]) -> tuple[dict[str, Side], list[Callable[[], None]]]:
    sides: dict[str, Side] = {}
    closing: list[Callable[[], None]] = []
    for size in one.case.sizes:
        folder = one.folder_of(size)
        if folder is None:
            continue
        start = time.perf_counter()
        try:
            executable = tvm_fusion.load(folder)
            sides[f"{size} workers"] = Side(one.case, executable)
        except Exception as error:  # guard: the other sides are timed all the same
            row["wrong"].append(f"{size} workers: {type(error).__name__}: {str(error)[:300]}")
            continue
        row.setdefault("load_s", {})[str(size)] = time.perf_counter() - start
        if hasattr(executable, "close"):
            closing.append(executable.close)
    return sides, closing


def _check(case: Case, sides: dict[str, Side], row: dict[str, Any]) -> None:
    """Compare logits of a prefill and of a token behind it with one worker's."""
    first, *others = sides.items()
    for name in ("prefill", "decode") if case.prompt else ("decode",):
        want = first[1].logits(name)
        for other, side in others:
            error = _relative(side.logits(name), want)
            row.setdefault("error", {})[f"{name}, {other}"] = error
            if not error <= ALLOWED:
                row["wrong"].append(f"{name} of {other} differs by {error:.1e}")
                row["differs"] = True


def _check_peer(one: Pending, sides: dict[str, Side], row: dict[str, Any]) -> None:
    """Compare with PyTorch's ranks, which draw the same weights and tokens."""
    try:
        answer = _ask(one.ranks, "logits")
    except PeerError as error:
        row["wrong"].append(f"PyTorch's ranks: {error}")
        return
    side = next(iter(sides.values()))
    kept, ids = side.tokens, np.asarray(answer["tokens"], "int64")[None]
    side.set_tokens(ids)
    for name in ("prefill", "decode") if one.case.prompt else ("decode",):
        found = side.logits(name)
    side.set_tokens(kept)
    row.setdefault("error", {})["peer"] = error = _relative(np.asarray(answer["logits"]), found)
    if not error <= PEER_ALLOWED:
        row["wrong"].append(f"PyTorch's logits differ by {error:.1e}")


def _relative(found: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(found - want).max() / np.abs(want).max())


def _timed(one: Pending, sides: dict[str, Side], name: str, end: float) -> dict[str, Any]:
    """Time all sides in turns; the medians of microseconds of a call."""
    calls = CALLS if name == "decode" else PREFILLS
    times: dict[str, dict[str, list[float]]] = {}

    def note(side: str, queued: float, waiting: float) -> None:
        found = times.setdefault(side, {"queued_us": [], "waiting_us": []})
        found["queued_us"].append(queued)
        found["waiting_us"].append(waiting)

    peers = one.ranks if one.has_ranks else []
    for _ in range(ROUNDS):
        if time.monotonic() > end and times:
            break
        for side_name, side in sides.items():
            side.logits(name)
            side.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                side.run(name)
            side.synchronize()
            queued = time.perf_counter()
            for _ in range(calls):
                side.read(name)
            waiting = time.perf_counter()
            note(side_name, 1e6 * (queued - start) / calls, 1e6 * (waiting - queued) / calls)
        try:
            answer = _ask(peers, f"{name} {calls}") if peers else {}
        except PeerError as error:
            one.row["wrong"].append(f"PyTorch's ranks: {error}")
            answer, peers = {}, []
        if answer:
            note("PyTorch", answer["queued_us"], answer["waiting_us"])
    return {
        side: {kind: statistics.median(found) for kind, found in kinds.items()}
        for side, kinds in times.items()
    }


class PeerError(RuntimeError):
    """What one of PyTorch's ranks says, or how it ended."""


def _ask(ranks: list[Worker], line: str) -> dict[str, Any]:
    """Send a line to all ranks; returns the first one's answer."""
    for rank in ranks:
        rank.send(line)
    answers: list[dict[str, Any]] = []
    for rank in ranks:
        told = rank.line(ANSWER_SECONDS)
        if not told:
            raise PeerError("a rank does not answer" if told is None else rank.ended())
        answers.append(json.loads(told))
    for answer in answers:
        if "error" in answer:
            raise PeerError(answer["error"])
    return answers[0]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
