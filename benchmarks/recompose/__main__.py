"""The command line: count kinds in models, write ``results/recompose.json.xz``, ``README.md``."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import Sequential

from benchmarks import zoo
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.markdown import table
from benchmarks.records import read, write
from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.decisions import Decision, recording
from tvm_fusion.core.untouched import on_rewritable
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.estimate import Estimator

from .expected import DECIDED, EXPECTED, OPERATORS

HERE = Path(__file__).parent
RECORD = HERE / "results" / "recompose.json.xz"
IMPORTERS = ("onnx", "export")
TARGET = "cpu"


def main() -> int:
    """Measure and render; returns 1 if something is not found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recompose", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(EXPECTED))
    parser.add_argument("--importer", choices=IMPORTERS, help="one of them alone")
    parser.add_argument("--render", action="store_true", help="write the tables again, no more")
    options = parser.parse_args()
    if unknown := set(options.models) - set(EXPECTED):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    record: dict[str, Any] = read(RECORD) if RECORD.exists() else {}
    if not options.render:
        record["environment"] = environment.describe(ROOT)
        for name in options.models or EXPECTED:
            for importer in [options.importer] if options.importer else IMPORTERS:
                rows = record.setdefault("models", {}).setdefault(name, {})
                rows[importer] = measure(name, importer)
                write(RECORD, record)
    (HERE / "README.md").write_text(render(record))
    return 0 if is_complete(record) else 1


def measure(name: str, importer: str) -> dict[str, Any]:
    """Count what is found in a model, and what its plan costs with and without.

    Parameters
    ----------
    name
        Of the zoo.
    importer : {"onnx", "export"}
        Way of the model into Relax.

    Returns
    -------
    dict
        Operators by kind, before and after; of each plan kernels and bytes; seconds of the pass.
    """
    mod = import_model(zoo.load(name, 0) if importer == "onnx" else _exported(name), FusionConfig())
    with parse(TARGET).tvm_target() as target:
        before = Sequential([transform.NormalizeImport(), _simplified()])(mod.mod)
        start = time.process_time()
        with recording() as log:
            after = Sequential([transform.Recompose()])(before)
        seconds = time.process_time() - start
        estimator = Estimator(target)
        plans = [
            estimator.estimate(Sequential([transform.JoinMatmuls()])(m)["main"])
            for m in (before, after)
        ]
    return {
        "seconds": seconds,
        "operators": [sum(_operators(m).values()) for m in (before, after)],
        "found": [_kinds(before), {**_kinds(after), **_decided(log)}],
        "kernels": [plan.kernels for plan in plans],
        "bytes": [plan.bytes for plan in plans],
    }


def _simplified() -> tvm.transform.Pass:
    """Return what of the rewriting stage comes before recomposition."""
    return on_rewritable(
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.EliminateCommonSubexpr(),
        relax.transform.DeadCodeElimination(),
    )


def _exported(name: str) -> Any:
    """Export a model with torch.export; needs the extra ``zoo``."""
    import torch

    from benchmarks.zoo import torch_models

    class First(torch.nn.Module):
        """The model's first output, without the class that its library wraps it in."""

        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
            return self.module(**inputs)[0]

    model = torch_models.build(name)
    with torch.no_grad():
        return torch.export.export(First(model.module).eval(), (), dict(model.inputs))


def _operators(mod: tvm.IRModule) -> Counter[str]:
    return Counter(
        str(binding.value.op.name)
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.Op)
    )


def _kinds(mod: tvm.IRModule) -> dict[str, int]:
    found = _operators(mod)
    return {kind: found[name] for kind, name in OPERATORS.items() if found[name]}


def _decided(log: list[Decision]) -> dict[str, int]:
    """Count what stays several operators."""
    found = Counter(d.consumer for d in log if d.verdict == "accepted")
    return {kind: found[kind] for kind in DECIDED if found[kind]}


def is_complete(record: dict[str, Any]) -> bool:
    """Whether everything is found."""
    return all(
        row["found"][1] == EXPECTED[name]
        for name, rows in record["models"].items()
        for row in rows.values()
    )


def render(record: dict[str, Any]) -> str:
    """Write the tables of a record."""
    lines = [
        "# What is found again",
        "",
        "Generated from `results/recompose.json.xz` by `python -m benchmarks.recompose`; edits are"
        " lost.",
        "",
        "Operators of each kind in the zoo's graphs after recomposition, over those that the"
        " architecture has; in brackets how many the importer left written out. `onnx` is a graph"
        " of torch.onnx, `export` the same model through torch.export.",
        "",
    ]
    kinds = [k for k in (*OPERATORS, *DECIDED) if any(k in counts for counts in EXPECTED.values())]
    rows = [
        (name, i) for name in EXPECTED for i in IMPORTERS if i in record["models"].get(name, {})
    ]
    lines += table(
        ["model", "importer", *kinds],
        ([n, i, *(_share(record["models"][n][i], n, k) for k in kinds)] for n, i in rows),
    )
    lines += [
        "",
        "## With and without",
        "",
        f"Of the plan for `{TARGET}`; seconds of one core for the pass.",
        "",
    ]
    lines += table(
        ["model", "importer", "operators", "kernels", "MB moved", "seconds"],
        ([n, i, *_plan(record["models"][n][i])] for n, i in rows),
    )
    return "\n".join(lines) + "\n"


def _share(row: dict[str, Any], name: str, kind: str) -> str:
    before, after = (counts.get(kind, 0) for counts in row["found"])
    expected = EXPECTED[name].get(kind, 0)
    return f"{after}/{expected} ({expected - before})" if expected or after else ""


def _plan(row: dict[str, Any]) -> list[str]:
    return [
        " to ".join(map(str, row["operators"])),
        " to ".join(map(str, row["kernels"])),
        " to ".join(f"{count / 1e6:.1f}" for count in row["bytes"]),
        f"{row['seconds']:.1f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
