"""Where and when a measurement was taken."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def describe(root: Path) -> dict[str, Any]:
    """Return CPU, memory, system, date and the commit of the tree at ``root``."""
    return {
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.processor(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **_commit(root),
    }


def _first_value(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _commit(root: Path) -> dict[str, Any]:
    """Return the commit and whether the tree had changes besides; None outside a git tree."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
