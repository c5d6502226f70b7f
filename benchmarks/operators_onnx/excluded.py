"""The cases of ``onnx.backend.test`` that the ONNX backend refuses, each with its reason.

``python -m benchmarks.operators_onnx --backend`` writes the list; tests fail when a case on it
passes, or one that is not on it fails.
"""

from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from benchmarks.records import read, write

from .pool import Verdict
from .record import HERE, shortened

RECORD = HERE / "results" / "excluded.json.xz"

#: Cases that are right, and that the tolerances of ``onnx.backend.test`` do not let pass.
NOISE = {
    name: "expected are 2e-7, the rounding of numpy's FFT in float32, where the exact value is 0"
    for name in ("node/dft_inverse", "node/dft_inverse_opset19")
}


def write_record(verdicts: Mapping[str, Verdict]) -> bool:
    """Write the list of refused cases by reason; tell whether every other case is right."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, (verdict, reason) in sorted(verdicts.items()):
        if verdict == "refused" or name in NOISE:
            by_reason[NOISE.get(name) or shortened(reason)].append(name)
    record: dict[str, Any] = {
        "onnx": version("onnx"),
        "cases": len(verdicts),
        "right": sum(v == "right" and name not in NOISE for name, (v, _) in verdicts.items()),
        "excluded": dict(sorted(by_reason.items())),
    }
    write(RECORD, record)
    return all(
        verdict in ("right", "refused") or name in NOISE for name, (verdict, _) in verdicts.items()
    )


def load() -> dict[str, Any]:
    """Read the record: ``cases``, how many of them are ``right``, ``excluded`` by reason."""
    found: dict[str, Any] = read(RECORD)
    return found


def excluded() -> dict[str, str]:
    """Return the reason of every excluded case, by ``kind/name``."""
    by_reason = load()["excluded"]
    return {name: reason for reason, names in by_reason.items() for name in names}
