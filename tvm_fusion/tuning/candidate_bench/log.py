"""The file of records that a run writes: what it has, and each new line at once."""

import json
from pathlib import Path
from typing import Any

Outcome = tuple[float | None, float | None, str]  # microseconds, the default's, error


class Log:
    """The file of records: what it has already, and each new line, at once.

    Parameters
    ----------
    path
        Made if it does not exist. A last line that was cut off is removed.
    """

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.truncate(len(whole))
        self._file.seek(len(whole))
        self._trials: dict[str, dict[str, Outcome]] = {}
        self._decided: set[str] = set()
        self._compared: set[str] = set()
        for line in whole.splitlines():
            self._learn(json.loads(line))

    def has(self, key: dict[str, str], config: dict[str, Any]) -> bool:
        """Whether a configuration of a task was tried."""
        return text(config) in self.trials(key)

    def trials(self, key: dict[str, str]) -> dict[str, Outcome]:
        """Return a task's known outcomes by configuration; the dict grows."""
        return self._trials.setdefault(text(key), {})

    def is_decided(self, key: dict[str, str]) -> bool:
        """Whether all of a task is done."""
        return text(key) in self._decided

    def is_compared(self, question: dict[str, str]) -> bool:
        """Whether a question of the planner is answered."""
        return text(question) in self._compared

    def put_trial(self, task: dict[str, Any], config: dict[str, Any], outcome: Outcome) -> None:
        """Write a measurement down."""
        self._put({"trials": [[config, *outcome]], "tuned": None}, task)

    def decide(self, task: dict[str, Any], tuned: list[Any] | None) -> None:
        """Write down which configuration to use; none where the default cannot be measured."""
        self._put({"trials": [], "tuned": tuned, "decided": True}, task)

    def compare(self, question: dict[str, str], us: list[float], runs: int, error: str) -> None:
        """Write down what the alternatives of a question take, or why that is not known."""
        answer = {"question": question, "us": us, "runs": runs, "error": error}
        self._write({"comparison": answer})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, line: dict[str, Any], task: dict[str, Any]) -> None:
        self._write(line | {"key": task["key"], "title": task["title"]})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, sort_keys=True).encode() + b"\n")
        self._learn(line)

    def _learn(self, line: dict[str, Any]) -> None:
        if "comparison" in line:
            self._compared.add(text(line["comparison"]["question"]))
            return
        for config, us, default_us, error in line["trials"]:
            self.trials(line["key"])[text(config)] = us, default_us, error
        if line.get("decided"):
            self._decided.add(text(line["key"]))


def text(value: dict[str, Any]) -> str:
    """Write a configuration or a key so that equal ones are equal texts."""
    return json.dumps(value, sort_keys=True)
