"""The page of a record."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read

from .cases import cases
from .reasons import REASONS

RESULT = Path(__file__).parent / "results" / "owners.json.xz"
SUITE = "expressions with a known optimum"  # a run of the record that is no model
APPLIED = "Applied, but in no form that was the cheapest"
LAW_ROWS = "tests/rewrite/laws/test_law_owners.py"
UNMATCHED = "Nothing that was planned has what they are about"
_COUNTS = {
    "templates": ("Templates", "launches"),
    "forms": ("Forms of products, attention and rows on GPUs", "groups"),
    "patterns": ("Recomposition patterns", "operators"),
    "passes": ("Passes that not every model needs", "runs"),
    "laws": ("Laws", "changes"),
}


def owners(record: Mapping[str, Any], kind: str, name: str) -> dict[str, int]:
    """List the runs that make use of a special case, with how often, the most first."""
    found = {run: counts.get(kind, {}).get(name, 0) for run, counts in record.items()}
    return dict(sorted(((r, n) for r, n in found.items() if n), key=lambda item: -item[1]))


def without_owner(record: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """List the special cases of a kind that no run makes use of."""
    return tuple(name for name in cases()[kind] if not owners(record, kind, name))


def stored() -> dict[str, Any]:
    """Read the record: counts by run."""
    return read(RESULT) if RESULT.exists() else {}


def page() -> str:
    """Write the page of the record, as the site has it."""
    return render(stored())


def render(record: Mapping[str, Any]) -> str:
    """Write the page."""
    lines = [
        "# Who needs each special case",
        "",
        "By `python -m benchmarks.owners`.",
        "",
        "Counted over plans of models of the zoo: launches of a template's claims, groups of which",
        "a form is the chosen one, changes of the graph that a law or a pattern made, runs of a",
        "pass that changed a function. Shown is the run with most, and in how many it occurs.",
        "What none of them needs stays for the benchmark that is named, which is not counted here.",
        "",
        f"Runs: {'; '.join(record)}.",
    ]
    for kind, (title, what) in _COUNTS.items():
        rows = _laws(record) if kind == "laws" else _rows(record, kind)
        lines += ["", f"## {title}", "", *table(["", "needed by", what, "runs"], rows)]
    for title, names in unused_laws(record).items():
        lines += ["", f"{title}: {len(names)} laws."]
    lines += ["", f"They are needed by rows of their own, or derived by others: `{LAW_ROWS}`."]
    return "\n".join(lines) + "\n"


def unused_laws(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Part the laws that no run makes use of by whether they were applied at all."""
    unused = without_owner(record, "laws")
    applied = {name for counts in record.values() for name in counts["applied"]}
    return {
        APPLIED: tuple(name for name in unused if name in applied),
        UNMATCHED: tuple(name for name in unused if name not in applied),
    }


def _rows(record: Mapping[str, Any], kind: str) -> Iterator[list[str]]:
    for name in cases()[kind]:
        found = owners(record, kind, name)
        if found:
            yield _row(name, found)
        else:
            reason = REASONS[kind][name]
            yield [name, f"none of these: {reason.sentence} (`{reason.benchmark}`)", "0", "0"]


def _laws(record: Mapping[str, Any]) -> Iterator[list[str]]:
    for name in cases()["laws"]:
        found = owners(record, "laws", name)
        if found:
            yield _row(name, found)


def _row(name: str, found: Mapping[str, int]) -> list[str]:
    first = next(iter(found))
    return [name, first, str(found[first]), str(len(found))]
