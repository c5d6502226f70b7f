"""The process of one engine: reads one JSON command a line, answers one JSON object a line.

Commands, in the order in which they make sense::

    {"command": "prepare", "engine": "module:function", "job": {...}}
        -> {"ok": true, "versions": {...}, "facts": {...}}
    {"command": "outputs", "path": "x.npz"}
        -> {"ok": true, "ms": 12.3}, with the arrays in the file
    {"command": "time", "warmup": 1, "runs": 20}
        -> {"ok": true, "ms": [...]}

A failure answers ``{"ok": false, "kind": "failed" | "unavailable", "reason": "..."}``. The
traceback and whatever a library prints go to standard error: standard output holds answers only.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from . import arrays
from .engines import Job, Prepared, Unavailable, resolve


class Worker:
    """Holds the prepared engine between commands."""

    def __init__(self) -> None:
        self._prepared: Prepared | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command; a failure becomes an answer, not an exception."""
        try:
            return {"ok": True, **getattr(self, f"_{request.pop('command')}")(**request)}
        except Unavailable as error:
            return {"ok": False, "kind": "unavailable", "reason": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"ok": False, "kind": "failed", "reason": one_line(error)}

    def _prepare(self, engine: str, job: dict[str, Any]) -> dict[str, Any]:
        paths = {"model": Path(job["model"]), "folder": Path(job["folder"])}
        inputs = arrays.load(Path(job["inputs"]))
        self._prepared = resolve(engine)(Job(**{**job, **paths, "inputs": inputs}))
        return {"versions": dict(self._prepared.versions), "facts": dict(self._prepared.facts)}

    def _outputs(self, path: str) -> dict[str, Any]:
        start = time.perf_counter()
        result = self._engine.run()
        ms = (time.perf_counter() - start) * 1e3
        arrays.save(Path(path), self._engine.outputs(result))
        return {"ms": ms}

    def _time(self, warmup: int, runs: int) -> dict[str, Any]:
        run = self._engine.run
        for _ in range(warmup):
            run()
        ms = []
        for _ in range(runs):
            start = time.perf_counter()
            run()
            ms.append((time.perf_counter() - start) * 1e3)
        return {"ms": ms}

    @property
    def _engine(self) -> Prepared:
        if self._prepared is None:
            raise RuntimeError("the first command must be 'prepare'")
        return self._prepared


def one_line(error: BaseException) -> str:
    """Return type and first line of a message, cut to what fits a table.

    Lines before it that name OpenVINO's sources are left out.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Exception from ")] or lines
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def main() -> None:
    """Serve commands until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
