"""Worker processes: a case that crashes or hangs ends its worker, and nothing else."""

import json
import time
from collections.abc import Callable, Iterable, Iterator

from benchmarks import workers

Verdict = tuple[str, str]


class Worker:
    """One process; a new one takes its place when it dies or is too slow."""

    def __init__(self, engine: str, timeout: float):
        self._engine, self._timeout = engine, timeout
        self._process: workers.Worker | None = None

    def judge(self, name: str) -> Verdict:
        """Return the verdict of a case, ``crash`` or ``hang`` where the process ended or stayed."""
        process = self._process = self._process or self._start()
        process.send(name)
        line = process.line(self._timeout)
        if line:
            verdict, reason = json.loads(line)
            return verdict, reason
        if line == "":
            found = "crash", process.ended()
        else:
            found = "hang", f"longer than {self._timeout:g} s"
        self.close()
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _start(self) -> workers.Worker:
        process = workers.Worker(
            *("-m", "benchmarks.operators_onnx.worker", self._engine),
            environment={"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        if process.line(300) != "ready":
            process.close()
            raise RuntimeError("a worker did not start")
        return process


def judge_all(
    names: Iterable[str],
    engine: str,
    jobs: int = 2,
    timeout: float = 60,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Verdict]:
    """Judge cases in parallel.

    Parameters
    ----------
    engine
        ``ours`` or ``stock``.
    jobs
        Processes.
    timeout
        Seconds that one case may take.
    log
        Told about each case that is neither right nor refused, and every hundredth.
    """
    names = list(names)
    results: dict[str, Verdict] = {}
    start = time.perf_counter()

    def serve(left: Iterator[str]) -> None:
        worker = Worker(engine, timeout)
        try:
            for name in left:
                results[name] = worker.judge(name)
                verdict, reason = results[name]
                if verdict not in ("right", "refused") or len(results) % 100 == 0:
                    spent = time.perf_counter() - start
                    log(f"{spent:6.0f} s {len(results):5} {verdict:7} {name}: {reason}")
        finally:
            worker.close()

    for thread in workers.share(names, jobs, serve):
        thread.join()
    return {name: results[name] for name in names if name in results}
