"""The page: where the time of each compilation goes, and that of models of equal layers."""

from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read

from .sample import REST, STAGES, THREADS

RECORD = Path(__file__).parent / "results" / "compile_time.json.xz"
COUNTS = (2, 8, 32)
LAYERED = (("encoder", "cpu"), ("residual", "cpu"), ("decode_step", "cuda:sm_90a"))


def page() -> str:
    """Write the page of the record, as the site has it."""
    return render(read(RECORD))


def render(record: dict[str, Any]) -> str:
    """Write the table of a record."""
    layered = {f"{model}_{count} {target}" for model, target in LAYERED for count in COUNTS}
    every: dict[str, dict[str, Any]] = record["cases"]
    cases = {name: case for name, case in every.items() if name not in layered}

    def row(title: str, *keys: str) -> list[str]:
        cells = []
        for case in cases.values():
            value: Any = case
            for key in keys:
                value = value.get(key, 0.0)
            cells.append(f"{value:.2f}" if isinstance(value, float) else str(value))
        return [title, *cells]

    names = [_title(name) for name in cases]
    rows = [row("wall", "wall"), row("**processor, this process**", "cpu")]
    rows += [row(stage, "main", stage) for stage in (*(s[0] for s in STAGES), REST)]
    rows += [row(f"other threads: {s}", "threads", s) for s in (*(t[0] for t in THREADS), REST)]
    rows += [
        row("**other processes (linker, nvcc)**", "children"),
        row("of it in claims", "claims", "seconds"),
        row("questions for claims", "claims", "questions"),
        row("that templates were asked", "claims", "asked"),
        row("weights, MB", "weights_mb"),
        row("peak resident memory, MB", "peak_rss_mb"),
    ]
    cpus = record["environment"]["cpus"]
    return "\n".join(
        [
            "# Compile time",
            "",
            "By `python -m benchmarks.compile_time`.",
            "",
            f"Seconds of `tvm_fusion.compile(...).export(...)` in a fresh process on {cpus} cores,"
            " imports included.",
            "Wall time is that of a machine that may have other work; processor time is sampled,",
            "see `sample.py`. Questions that templates were not asked were answered from memory.",
            "PyTorch's programs are exported beforehand; the peak of memory includes the module.",
            "",
            *table(["", *names], rows),
            "",
            "## Equal layers",
            "",
            "Processor time with as many layers, of this process and of those that it starts, for",
            "models of equal layers with weights of their own (`layers.py`); weights of the decode",
            "step are inputs, since what is stored grows with them.",
            "",
            *table(*_layers(every)),
            "",
        ]
    )


def _layers(cases: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Write the head and the rows of the table of equal layers."""
    counts = [f"{count} layers" for count in COUNTS]
    rows = []
    for model, target in LAYERED:
        found = [cases.get(f"{model}_{count} {target}") for count in COUNTS]
        known = [case for case in found if case is not None]
        if len(known) == len(found):
            used = [case["cpu"] + case["children"] for case in known]
            asked = ", ".join(str(case["claims"]["asked"]) for case in known)
            ratio = f"{used[-1] / used[-2]:.2f}"
            rows.append([f"{model}, {target}", *(f"{u:.2f}" for u in used), ratio, asked])
    return ["", *counts, f"{COUNTS[-1]} / {COUNTS[-2]}", "structures asked about"], rows


def _title(name: str) -> str:
    model, _, target = name.partition(" ")
    return f"GPT-2 decoder, {model} layers, {target}" if model.isdigit() else f"{model}, {target}"
