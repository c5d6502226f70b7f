"""Run a folder of cases under compute-sanitizer, several at a time, each with a time limit.

``python3 -m benchmarks.gpu_sanitizer.run DIR [--json FILE]`` needs the CUDA toolkit, numpy and
TVM's runtime. Planted faults (planted.cu) go first: a tool that does not find its own is no
witness.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.once import INDEX

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Planted faults, and the tool that has to find each.
PLANTED = {
    **{tool: tool for tool in TOOLS},
    "synccheck_mbarrier": "synccheck",
    "synccheck_divergent": "synccheck",
}
PROCESSES, SECONDS = 12, 90.0
MOST_LINES = 6  # of what a tool says that are kept
_SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: (?P<errors>\d+) error|RACECHECK SUMMARY: (?P<hazards>\d+) hazard)"
)
_LINE = re.compile(r"=========\s+(?P<said>\S.*)")
_USUAL = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
    "Saved host backtrace",
    "Host Frame",
)


def main() -> int:
    """Run all; returns the exit code: 1 if any tool found anything, or nothing where it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="default: sanitizer.json in $OUT, if it is set")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one case with one tool")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    path = options.json or Path(os.environ.get("OUT", "."), "sanitizer.json")
    index = json.loads((options.folder / INDEX).read_text())
    names = [n for n in index["names"] if not options.only or any(p in n for p in options.only)]
    record: dict[str, Any] = {"about": {"target": index["target"], **_about()}}
    record["planted"] = planted(options.tools)
    print(json.dumps(record), flush=True)
    record["cases"] = {n: {**told, "tools": {}} for n, told in index["cases"].items()}
    command = [sys.executable, "-m", "benchmarks.gpu.once", str(options.folder)]
    with ThreadPoolExecutor(options.processes) as pool:
        jobs = [
            (tool, name, pool.submit(watched, tool, [*command, name], options.seconds))
            for tool in options.tools
            for name in names
        ]
        for tool, name, job in jobs:
            record["cases"][name]["tools"][tool] = found = job.result()
            print(
                f"{tool:10} {name:24} {found['verdict']:12} {found['seconds']:6.1f} s", flush=True
            )
            path.write_text(json.dumps(record, indent=1) + "\n")
    cases = record["cases"].values()
    clean = all(f["verdict"] == "clean" for case in cases for f in case["tools"].values())
    seeing = {PLANTED[n] for n, found in record["planted"].items() if found["verdict"] != "clean"}
    return int(not clean or not seeing.issuperset(options.tools))


def planted(tools: list[str]) -> dict[str, Any]:
    """Compile the planted faults, and watch each with the tool that has to find it."""
    source = Path(__file__).parent / "planted.cu"
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "planted")
        subprocess.run(["nvcc", "-arch=sm_90", "-lineinfo", str(source), "-o", program], check=True)
        faults = [(name, tool) for name, tool in PLANTED.items() if tool in tools]
        return {name: watched(tool, [program, name], SECONDS) for name, tool in faults}


def watched(tool: str, command: list[str], seconds: float) -> dict[str, Any]:
    """Run a command under a tool.

    Returns
    -------
    dict
        ``verdict``: clean, a number of errors or hazards, timed out, or failed; ``seconds``; and
        ``said``, the first lines of what the tool reports.
    """
    start = time.perf_counter()
    whole = ["compute-sanitizer", "--tool", tool, "--print-limit", "2", *command]
    if tool == "racecheck":
        whole[3:3] = ["--racecheck-report", "all"]
    try:
        done = subprocess.run(whole, capture_output=True, text=True, timeout=seconds, check=False)
        output = done.stdout + done.stderr
        verdict = verdict_of(output, done.returncode)
    except subprocess.TimeoutExpired:
        output, verdict = "", "timed out"
    return {
        "verdict": verdict,
        "seconds": round(time.perf_counter() - start, 1),
        "said": said(output) if verdict != "clean" else [],
    }


def verdict_of(output: str, code: int) -> str:
    """Sum up what a tool wrote."""
    found = _SUMMARY.search(output)
    if found is None:
        return "failed"
    number = int(found["errors"] or found["hazards"] or 0)
    if number:
        return f"{number} {'errors' if found['errors'] else 'hazards'}"
    return "clean" if code == 0 else "failed"


def said(output: str) -> list[str]:
    """Take the first lines of a tool's report; of a program that failed, its last ones."""
    lines = [match["said"] for match in map(_LINE.match, output.splitlines()) if match]
    lines = [line for line in lines if not line.startswith(_USUAL)]
    return (lines or output.splitlines()[-MOST_LINES:])[:MOST_LINES]


def _about() -> dict[str, Any]:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    device, driver = subprocess.check_output(asked, text=True).strip().split(", ")
    version = subprocess.check_output(["compute-sanitizer", "--version"], text=True)
    release = re.search(r"Version (\S+)", version)
    return {"device": device, "driver": driver, "sanitizer": release[1] if release else version}


if __name__ == "__main__":
    sys.exit(main())
