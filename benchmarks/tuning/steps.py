"""The steps of tuning one model: a process each, what they leave in a folder, what they say.

  FOLDER/model.onnx, inputs.npz       what is tuned
  FOLDER/steps.json                   what is done, and what it said
  FOLDER/minutes.db                   records of the run by time, which goes on
  FOLDER/tuned-5-min/records.db       as they were after so many minutes
  FOLDER/tuned-96-trials/records.db   of a run of its own, by trials
  FOLDER/metaschedule-96-trials/      MetaSchedule's database

A step that is done is not done again, unless it failed: a run that was interrupted is continued by
the same command, and minutes are added to those that were spent.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks import zoo
from benchmarks.harness import arrays
from benchmarks.harness.client import ROOT, THREAD_VARIABLES

from . import labels

RECORDS = "records.db"
DATABASE = ("database_workload.json", "database_tuning_record.json")


@dataclass(frozen=True)
class Plan:
    """What to do for a model."""

    name: str  # of the zoo
    folder: Path  # its own
    minutes: Sequence[float]  # after how many of tuning it is measured
    trials: int  # of this package's tuner and of MetaSchedule, each; 0: neither
    threads: int  # of everything

    def run(self) -> dict[str, dict[str, Any]]:
        """Do what is not done; returns what all steps of the folder have said, by their labels."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "steps.json"
        said: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self._write_model()
        for label, command in self._commands(said):
            print(f"{self.name}: {label}", file=sys.stderr, flush=True)
            said[label] = self._step(label, command)
            path.write_text(json.dumps(said, indent=1) + "\n")
        return said

    def _write_model(self) -> None:
        if (self.folder / "inputs.npz").exists():
            return
        # Weights aside: a protobuf file ends at 2 GB.
        onnx.save_model(
            zoo.load(self.name),
            str(self.folder / "model.onnx"),
            save_as_external_data=True,
            location="model.weights",
        )
        arrays.save(self.folder / "inputs.npz", zoo.inputs(self.name))

    def _commands(self, said: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
        """Yield the label and the arguments of each step that is to be done."""
        model = str(self.folder / "model.onnx")
        done = [label for label, facts in said.items() if "error" not in facts]
        spent = max([0.0, *filter(None, map(labels.minutes_of, done))])
        for minutes in sorted(self.minutes):
            if minutes > spent:
                budget = f"{60 * (minutes - spent):.0f}s"
                spent = minutes
                records = str(self.folder / "minutes.db")
                yield labels.after(minutes), ["ours", model, records, budget]
        if not self.trials:
            return
        label = labels.tuned(self.trials)
        if label not in done:
            records = str(self.folder / f"trials-{self.trials}.db")
            yield label, ["ours", model, records, f"trials={self.trials}"]
        label = labels.metaschedule(self.trials)
        if label not in done:
            work = self.folder / label
            shutil.rmtree(work, ignore_errors=True)  # MetaSchedule would add to what it finds
            inputs = str(self.folder / "inputs.npz")
            numbers = [str(self.trials), str(self.threads)]
            yield label, ["metaschedule", model, inputs, str(work), *numbers]

    def _step(self, label: str, command: list[str]) -> dict[str, Any]:
        """Run a step; keeps its records under its label. A failure is told and stops no other."""
        start, load = time.monotonic(), os.getloadavg()[0]
        log = self.folder / f"{label}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.tuning.{command[0]}", *command[1:]],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={
                    **os.environ,
                    **dict.fromkeys(THREAD_VARIABLES, str(self.threads)),
                    "PYTHONPATH": os.pathsep.join(
                        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
                    ),
                },
            )
            os.sched_setaffinity(process.pid, set(sorted(os.sched_getaffinity(0))[: self.threads]))
            answer, _ = process.communicate()
        if process.returncode:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            return {"error": ": ".join([f"exit code {process.returncode}", *last])[:200]}
        if command[0] == "ours":
            kept = self.folder / label / RECORDS
            kept.parent.mkdir(exist_ok=True)
            shutil.copyfile(command[2], kept)
        return {
            **json.loads(answer.splitlines()[-1]),
            "seconds": round(time.monotonic() - start),
            "load": round(max(load, os.getloadavg()[0]), 1),
        }
