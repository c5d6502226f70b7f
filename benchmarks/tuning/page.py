"""The page of tuned models, from the files in ``results``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.harness.engines import OURS
from benchmarks.harness.measure import spread
from benchmarks.markdown import table
from benchmarks.records import read

from . import bounds_page, labels

HERE = Path(__file__).parent
MODELS = ("mobilenet_v2", "bert_base", "unet2d")
MINUTES = (5.0, 15.0, 60.0)  # columns that are there, measured or not
COMMAND = "python -m benchmarks.tuning"
FLOORS = {"metaschedule": 3.0, "default": 1.1}

Record = Mapping[str, Any]


def load(folder: Path) -> dict[str, Record]:
    """Read the results, a file for each model."""
    return {p.name.removesuffix(".json.xz"): read(p) for p in sorted(folder.glob("*.json.xz"))}


def render(records: Mapping[str, Record], limits: Record) -> str:
    """Write the page from the results, and from what any tuning can gain."""
    lines = [
        "# Tuned models",
        "",
        f"Generated from `results/*.json.xz` by `{COMMAND}`; edits are lost.",
        "",
        "Milliseconds of a run on this CPU, medians of interleaved rounds (least in brackets), all",
        "columns of a row from one run of the harness, outputs first compared with ONNX Runtime's.",
        "*default*: this package, nothing tuned. *After so many minutes* of `tvm_fusion.tune`, or",
        "*trials*. *MetaSchedule*: stock TVM's fusion, its tasks tuned by its own MetaSchedule",
        "with as many trials (`metaschedule.py`). An empty cell was not measured.",
        "",
        *_latencies(records),
        *_floors(records),
        *bounds_page.section(limits),
        *_steps(records),
        *_sources(records),
    ]
    return "\n".join(lines) + "\n"


def _latencies(records: Mapping[str, Record]) -> list[str]:
    found = {labels.minutes_of(label) for record in records.values() for label in record["peers"]}
    minutes = sorted({*MINUTES, *filter(None, found)})
    headings = ["model", "default", *(f"after {_plain(m)} min" for m in minutes)]
    rows = []
    for name, record in records.items():
        trials = _trials(record)
        cells = [_latency(record, OURS), *(_latency(record, labels.after(m)) for m in minutes)]
        cells.append(str(trials or ""))
        cells.append(_latency(record, labels.tuned(trials)))
        cells.append(_latency(record, labels.metaschedule(trials)))
        rows.append([name, *cells])
    return table([*headings, "trials", "after as many", "MetaSchedule"], rows)


def _latency(record: Record, label: str) -> str:
    """Write a cell: empty where nothing was measured, else the times, or what is wrong."""
    result = record["peers"].get(label)
    if result is None:
        return ""
    if "latency_ms" not in result:
        return result["status"]
    return f"{_ms(result['latency_ms']['median'])} ({_ms(result['latency_ms']['min'])})"


def _floors(records: Mapping[str, Record]) -> list[str]:
    """Write the ratios that floors are about, model by model and in the geometric mean."""
    rows: list[list[str]] = []
    stock: dict[str, list[float]] = {}
    gains: dict[str, list[float]] = {}
    for name, record in records.items():
        trials = _trials(record)
        last, machine = _last(record), str(record["environment"]["cpu"])
        over_stock = ratio(record, labels.metaschedule(trials), labels.tuned(trials))
        gain = ratio(record, OURS, last) if last else None
        others = [label for label in record["peers"] if label.startswith("tuned-")]
        slowest = min(filter(None, (ratio(record, OURS, label) for label in others)), default=None)
        stock.setdefault(machine, []).extend(filter(None, [over_stock]))
        gains.setdefault(machine, []).extend(filter(None, [gain]))
        where = f"{_plain(labels.minutes_of(last) or 0.0)} min" if last else ""
        rows.append([name, _ratio(over_stock), _ratio(gain), where, _ratio(slowest)])
    for machine, found in gains.items():
        means = [_mean(stock[machine]), _mean(found), "", ""]
        rows.append([f"**geometric mean**, {machine}", *means])
    return [
        "",
        "## Ratios",
        "",
        "Quotients of times of the same rounds, medians; above 1, what is tuned by this package is",
        f"faster. Floors: {FLOORS['metaschedule']:g} over MetaSchedule,"
        f" {FLOORS['default']:g} over the default in the geometric mean,",
        "and no model slower than its default in any column.",
        "",
        *table(
            [
                "model",
                "over MetaSchedule, same trials",
                "over the default",
                "after",
                "over the default, least of all columns",
            ],
            rows,
        ),
    ]


def ratio(record: Record, slower: str, faster: str) -> float | None:
    """Divide the times of two peers round by round; the median, ``None`` if one has no times."""
    rounds = [record["peers"].get(label, {}).get("round_ms", ()) for label in (slower, faster)]
    found = [a / b for a, b in zip(*rounds, strict=False) if a and b]
    return spread(found)["median"] if found else None


def _steps(records: Mapping[str, Record]) -> list[str]:
    rows, stock, failed = [], [], []
    for name, record in records.items():
        for label, said in record["steps"].items():
            common = [str(said.get("seconds", "")), str(said.get("load", ""))]
            if "error" in said:
                failed.append(f"* {name}, {label}: {said['error']}")
            elif labels.trials_of(label) is None:
                counts = [str(said[key]) for key in ("tasks", "tuned", "trials", "failed")]
                kept = "" if said["kept"] else "no"
                gain = f"{said['gain_of_tasks']:.3f}"
                rows.append([name, label, *counts, gain, kept, *common])
            else:
                counts = [str(said[key]) for key in ("tasks", "fixed", "left_out", "trials")]
                stock.append([name, *counts, *common])
    return [
        "",
        "## What tuning did",
        "",
        "*Faster*: tasks with a configuration that beat the default in races. *Gain*: of the",
        "kernels of tasks, each measured alone. *Kept*: no, where the model as a whole was not",
        "faster, so that it keeps its defaults. *Load*: load average of the machine while it was",
        "tuned; on a busy one, trials of this package are still timed in turns with the default,",
        "MetaSchedule's alone.",
        "",
        *table(
            ["model", "step", "tasks", "faster", "trials", "failed", "gain", "kept", "s", "load"],
            rows,
        ),
        "",
        "MetaSchedule: tasks with one design take one trial; tasks whose design space stock TVM",
        "cannot generate are left out, and run as stock TVM makes them.",
        "",
        *table(["model", "tasks", "one design", "left out", "trials", "s", "load"], stock),
        *(["", "Failed:", "", *failed] if failed else []),
    ]


def _sources(records: Mapping[str, Record]) -> list[str]:
    lines = ["", "## How it was measured", ""]
    for name, record in records.items():
        where, settings = record["environment"], record["settings"]
        peers = record["peers"].values()
        versions = dict(v for result in peers for v in result.get("versions", {}).items())
        lines.append(
            f"* `results/{name}.json`: {where['date']}, {where['cpu']}, threads"
            f" {settings['threads']}, rounds {settings['rounds']} of {settings['budget']:g} s,"
            f" load {record['load']}; "
            + ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
            + f"; `{_command(name, record)}`"
        )
    return lines


def _command(name: str, record: Record) -> str:
    """Write the command that does the same on another machine."""
    spent = sorted(filter(None, map(labels.minutes_of, record["steps"])))
    minutes, threads = ",".join(map(_plain, spent)), record["settings"]["threads"]
    model, _, machine = name.partition(".")
    given = f"--models {model} --minutes {minutes} --trials {_trials(record)} --threads {threads}"
    return f"{COMMAND} {given}" + (f" --machine {machine}" if machine else "")


def _trials(record: Record) -> int:
    """Tell how many trials MetaSchedule had, the most if several; 0 where it had none."""
    known = {**record["steps"], **record["peers"]}
    return max(filter(None, map(labels.trials_of, known)), default=0)


def _last(record: Record) -> str:
    """Name the longest run by time that was measured; empty where there is none."""
    timed = [(labels.minutes_of(label) or 0.0, label) for label in record["peers"]]
    minutes, label = max(timed, default=(0.0, ""))
    return label if minutes else ""


def _mean(values: Sequence[float]) -> str:
    return _ratio(geometric_mean(values) if values else None)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _plain(minutes: float) -> str:
    return f"{minutes:g}"
