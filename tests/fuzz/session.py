"""Many graphs, in worker processes: a crash or a hang costs one graph and is a finding."""

import gc
import json
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.workers import ROOT, Worker, share
from tvm_fusion._tvm.ffi_speed import speed_up_ffi

from .coverage import Coverage
from .dims import Dim

SECONDS, SHRINKING_SECONDS = 60, 600  # for one graph: some make LLVM search for ever


@dataclass
class Report:
    """What a number of graphs gave."""

    graphs: int = 0
    nodes: int = 0
    values: int = 0
    shared: int = 0
    symbolic: int = 0
    half: int = 0
    draws: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        counts = {"draws": dict(self.draws), "coverage": self.coverage.as_json()}
        return {**self.__dict__, **counts}

    def add(self, result: dict[str, Any]) -> None:
        """Add one graph's result, as a worker wrote it."""
        self.graphs += 1
        for name in ("nodes", "values", "shared", "symbolic", "half"):
            setattr(self, name, getattr(self, name) + result.get(name, 0))
        self.draws.update(result.get("draws", ()))
        for phase, seconds in result.get("seconds", {}).items():
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 3)
        if "coverage" in result:
            self.coverage.update(result["coverage"])
        if "failure" in result:
            self.failures.append({"seed": result["seed"], **result["failure"]})


def check_seed(seed: int, target: str, shrinking: bool) -> dict[str, Any]:
    """Generate and check one graph in this process; a JSON-ready result."""
    from .check import Check
    from .generate import drawn, generate
    from .shrink import shrink

    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, on means of nothing
    check = Check(target)
    with check.times.of("generate"):
        graph = generate(seed)
    made = [v for node in graph.nodes for v in node.outputs]
    made += [leaf.value for leaf in graph.parameters]
    consumers = graph.consumers()
    check.coverage.add_graph(graph.operators)
    result: dict[str, Any] = {
        "seed": seed,
        "nodes": len(graph.nodes),
        "values": len(made),
        "shared": sum(consumers.get(v, 0) > 1 for v in made),
        "symbolic": int(graph.is_symbolic),
        "half": int(graph.has_half),
        "draws": sorted(drawn(seed)),
    }
    failure = check(graph)
    result |= {"seconds": dict(check.times.seconds), "coverage": check.coverage.as_json()}
    if failure:
        small = shrink(graph, Check(target), failure.kind) if shrinking else graph
        again = Check(target)(small) or failure
        text = {"kind": failure.kind, "sentence": again.sentence, "graph": str(small)}
        result["failure"] = text
    return result


def run(
    seeds: Sequence[int],
    *,
    target: str = "cpu",
    jobs: int = 1,
    shrinking: bool = True,
    stop_at: int | None = None,
    path: Sequence[str] = (),
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Check graphs in ``jobs`` worker processes.

    Parameters
    ----------
    seeds
    target
        A target of the project, such as ``cpu``.
    jobs
        Worker processes.
    shrinking
        Whether failing graphs are made small.
    stop_at
        The number of failures after which no further graph is started.
    path
        Folders that the workers look for modules in before all others.
    log
        Is given a line for each failure.

    Returns
    -------
    Report
        Failures by seed.
    """
    report, lock = Report(), threading.Lock()

    def serve(left: Iterator[int]) -> None:
        worker = None
        for seed in left:
            worker = worker or _Worker(target, shrinking, path)
            result = worker.check(seed)
            if worker.is_over:
                worker = None
            with lock:
                report.add(result)
                if "failure" in result:
                    log(describe(report.failures[-1]))
                if stop_at is not None and len(report.failures) >= stop_at:
                    break
        if worker:
            worker.close()

    for thread in share(seeds, jobs, serve):
        thread.join()
    report.failures.sort(key=lambda failure: failure["seed"])
    return report


def describe(failure: dict[str, Any]) -> str:
    """Return a failure as text, with the graph that still shows it."""
    return f"seed {failure['seed']}: {failure['kind']}: {failure['sentence']}\n{failure['graph']}\n"


class _Worker(Worker):
    """A process that reads seeds and writes results, one a line."""

    def __init__(self, target: str, shrinking: bool, path: Sequence[str]):
        folders = [*path, str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(f for f in folders if f),
            "TVM_NUM_THREADS": os.environ.get("TVM_NUM_THREADS", "2"),
        }
        isolated = ["-P"] if sys.version_info >= (3, 11) else []
        super().__init__(
            *(*isolated, "-m", "tests.fuzz", "--worker", target, str(int(shrinking))),
            environment=environment,
            folder=path[0] if path else ROOT,
        )
        self.seconds = SHRINKING_SECONDS if shrinking else SECONDS

    def check(self, seed: int) -> dict[str, Any]:
        self.send(str(seed))
        line = self.line(self.seconds)
        if line:
            return json.loads(line)
        sentence = self.ended() if line == "" else f"it took more than {self.seconds} s"
        self.close()
        failure = {"kind": "crash", "sentence": sentence, "graph": "not shrunk"}
        return {"seed": seed, "failure": failure}


def serve(target: str, shrinking: bool) -> None:
    """Answer seeds from the standard input by results on the standard output."""
    # What TVM prints must not come between the results.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from . import check, generate, shrink  # noqa: F401  what check_seed imports

    speed_up_ffi()

    gc.collect()  # modules stay to the end: an eighth of a graph's time went into their objects
    gc.freeze()
    gc.set_threshold(50_000)
    for line in sys.stdin:
        result = check_seed(int(line), target, shrinking)
        out.write(json.dumps(result, default=_plain) + "\n")
        out.flush()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Dim) else value.item()
