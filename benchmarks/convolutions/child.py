"""Measurements in a process of their own, whose libraries have so many threads."""

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.harness.client import THREAD_VARIABLES


def rows_of(module: str, *arguments: str, threads: int = 1) -> list[dict[str, Any]]:
    """Run a module and read the rows that it prints, a line each."""
    settings = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"TVM_BIND_THREADS": "0"}
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in run.stdout.splitlines()]
