"""The Markdown table of a record of counts, and which figures it misses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read
from tvm_fusion.errors import UserError

from .figures import CPU, GPU, MODELS
from .graphs import GRAPHS

#: Changes when a field of the JSON file changes its meaning or goes.
SCHEMA = 1
HERE = Path(__file__).parent
COUNTS = HERE / "results" / "counts.json.xz"
README = HERE / "README.md"
_MISSED = "**missed**"
_INTRODUCTION = f"""\
# Kernels and intermediate results

Generated from `results/counts.json.xz` by `python -m benchmarks.fusion`; edits are lost.

Stock TVM and this project are counted by the same code (`tvm_fusion.deploy.count`). A kernel is one
launch on `{GPU}`, and on a CPU one loop nest over full tensors. Intermediates are tensors between
kernels and buffers larger than a tile inside a PrimFunc; inputs, weights and outputs are not among
them. Stock is DecomposeOpsForInference and then TVM's default pipeline for the target. Floors must
be met; a stretch is the aim; what is missed says so.
"""


def load(path: Path = COUNTS) -> dict[str, Any]:
    """Read a record of counts.

    Raises
    ------
    UserError
        When the file is missing or has another schema.
    """
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}", "counts", "run it without --table")
    record = read(path)
    if record.get("schema") != SCHEMA:
        raise UserError(
            f"{path.name} has schema {record.get('schema')}", str(SCHEMA), "count again"
        )
    return record


def render(record: dict[str, Any]) -> str:
    """Return the page for a record."""
    missed = list(misses(record))
    summary = [f"* {line}" for line in missed] or ["None."]
    return "\n".join(
        [
            _INTRODUCTION,
            "## Floors missed\n",
            *summary,
            *_launches(record["models"]),
            *_bytes(record["models"]),
            *_graphs(record["graphs"]),
            *_not_counted(record),
            *_source(record["environment"]),
            "",
        ]
    )


def misses(record: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for every floor that a record misses."""
    for name, counts in record["models"].items():
        figures = MODELS[name]
        stock, ours = _counted(counts, GPU)
        if not stock or not ours:
            yield f"{name}: not counted"
            continue
        floor = figures.launch_floor(stock["kernels"])
        if ours["kernels"] > floor:
            yield f"{name}: {ours['kernels']} launches; the floor is {floor}"
        for target in (GPU, CPU):
            ratio, most = _ratio(counts, target), figures.bytes_floor(target)
            if ratio is None or ratio > most:
                found = "uncounted" if ratio is None else f"{ratio:.3f} of stock TVM's"
                yield f"{name}: intermediates on {target} {found}; the floor is {most}"
    for name, sizes in record["graphs"].items():
        for size, counts in sizes.items():
            for target in (GPU, CPU):
                ours = _counted(counts, target)[1]
                if not ours or ours["kernels"] > GRAPHS[name].most:
                    found = ours["kernels"] if ours else "uncounted"
                    yield f"{name} at {size} on {target}: {found} kernels; the floor is 1"


def _launches(models: dict[str, Any]) -> list[str]:
    rows = []
    for name, counts in models.items():
        figures, (stock, ours) = MODELS[name], _counted(counts, GPU)
        if stock and ours:
            floor = figures.launch_floor(stock["kernels"])
            numbers = [stock["kernels"], ours["kernels"], floor, figures.stretch or ""]
            verdict = _verdict(ours["kernels"], floor, figures.stretch)
            rows.append([name, *(str(number) for number in numbers), verdict])
    return [
        f"\n## Launches on `{GPU}`\n",
        "One inference, batch 1.\n",
        *table(["model", "stock", "ours", "floor", "stretch", "floor is"], rows),
    ]


def _verdict(found: float, floor: float, stretch: float | None = None) -> str:
    if found > floor:
        return _MISSED
    if stretch is None:
        return "met"
    return "met, the stretch too" if found <= stretch else "met, the stretch missed"


def _bytes(models: dict[str, Any]) -> list[str]:
    rows = []
    for name, counts in models.items():
        for target in (GPU, CPU):
            floor, aim = MODELS[name].bytes_floor(target), MODELS[name].bytes_ratio
            stretch = aim if aim < floor else None
            (stock, ours), ratio = _counted(counts, target), _ratio(counts, target)
            if stock and ours and ratio is not None:
                sizes = [f"{side['intermediate_bytes'] / 1e6:.1f}" for side in (stock, ours)]
                asked = [str(floor), str(stretch or "")]
                verdict = _verdict(ratio, floor, stretch)
                rows.append([name, target, *sizes, f"{ratio:.3f}", *asked, verdict])
    headings = ["model", "target", "stock, MB", "ours, MB", "ratio", "floor", "stretch", "floor is"]
    return ["\n## Intermediates\n", *table(headings, rows)]


def _graphs(graphs: dict[str, Any]) -> list[str]:
    rows = []
    for name, sizes in graphs.items():
        most = GRAPHS[name].most
        for size, counts in sizes.items():
            counted = [side for target in (GPU, CPU) for side in _counted(counts, target)]
            kernels = [side["kernels"] for side in counted if side]
            if len(kernels) == len(counted):
                right = kernels[1] <= most and kernels[3] <= most
                cells = [str(number) for number in kernels]
                rows.append([name, size, *cells, "met" if right else _MISSED])
    columns = [f"{side}, {target}" for target in (GPU, CPU) for side in ("stock", "ours")]
    return [
        "\n## Small graphs\n",
        "Kernels; rows x columns, n symbolic. The floor is one.\n",
        *table(["graph", "size", *columns, "floor is"], rows),
    ]


def _not_counted(record: dict[str, Any]) -> list[str]:
    named = dict(record["models"])
    for graph, sizes in record["graphs"].items():
        named |= {f"{graph} at {size}": counts for size, counts in sizes.items()}
    lines = [
        f"* {name}, {side}, {target}: {key.replace('_', ' ')}: {facts[key]}"
        for name, counts in named.items()
        for side in ("stock", "ours")
        for target, facts in counts[side].items()
        for key in ("not_counted", "caveats")
        if key in facts
    ]
    return ["\n## Not counted\n", *lines] if lines else []


def _source(environment: dict[str, Any]) -> list[str]:
    commit = (environment["commit"] or "unknown")[:12]
    changes = " with changes" if environment["dirty"] else ""
    versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items())
    return [f"\nCounted on {environment['date']}, commit {commit}{changes}; {versions}."]


def _counted(counts: dict[str, Any], target: str) -> tuple[dict | None, dict | None]:
    """Return stock TVM's and our counts, None for what could not be counted."""
    both = (counts[side].get(target, {}) for side in ("stock", "ours"))
    stock, ours = (facts if "kernels" in facts else None for facts in both)
    return stock, ours


def _ratio(counts: dict[str, Any], target: str) -> float | None:
    stock, ours = _counted(counts, target)
    if not stock or not ours:
        return None
    return ours["intermediate_bytes"] / stock["intermediate_bytes"]
