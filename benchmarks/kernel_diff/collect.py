"""Write the kernels that the checkout in the working directory generates: one file a graph.

Run as a script inside either of the two checkouts, so it uses only names that stay: the pipeline's
stages, targets, the frontend, and the graphs of ``benchmarks.fusion``, ``benchmarks.gpu`` (matrix
products of few rows, decoding attention, norms, in half precision) and ``benchmarks.zoo``.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from benchmarks import zoo
from benchmarks.fusion import cells
from benchmarks.fusion.graphs import GRAPHS, SIZES
from tvm_fusion.device import parse
from tvm_fusion.ecg.mapping_types.table import TABLE, Relation
from tvm_fusion.frontend import import_model
from tvm_fusion.pipeline import stages


def graphs(models: list[str], kinds: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and builder of each graph: cells, small graphs, functions, models."""
    sources = {"cell": _cells, "graph": _small_graphs, "work": _works}
    for kind, source in sources.items():
        if kind in kinds:
            yield from source()
    for name in models if "model" in kinds else []:
        yield f"model-{name}", lambda name=name: import_model(zoo.load(name)).mod


def _cells() -> Iterator[tuple[str, Any]]:
    for (first, second), cell in TABLE.items():
        if cell.relation is not Relation.BREAK:
            for number, pair in enumerate(cells.PAIRS[first.value, second.value]):
                case = cells.case(*pair)
                yield f"cell-{case.name}", case.build
                if number == 0:
                    symbolic = cells.case(*pair, symbolic=True)
                    yield f"cell-{symbolic.name}-symbolic", symbolic.build


def _small_graphs() -> Iterator[tuple[str, Any]]:
    for graph in GRAPHS.values():
        for size in SIZES:
            case = graph.case(size)
            yield f"graph-{case.name}", case.build


def _works() -> Iterator[tuple[str, Any]]:
    from benchmarks.gpu.catalog import works  # in PyTorch

    for work in works(seed=0, count=6):
        yield f"work-{work.name}", lambda work=work: import_model(work.exported()).mod


def kernels(mod: tvm.IRModule, target: str) -> list[str]:
    """Return the TVMScript of all scheduled PrimFuncs of a module, sorted; their names left out."""
    with parse(target).tvm_target():
        mod = tvm.ir.transform.Sequential(stages())(mod)
    functions = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    # The functions' own names are labels: two commits may number equal kernels differently.
    return sorted(f.without_attr("global_symbol").script(show_meta=True) for f in functions)


def collect(
    folder: Path, target: str, models: list[str], kinds: list[str], match: str = ""
) -> None:
    """Write ``<target>/<graph>.txt`` for every graph below ``folder``."""
    below = folder / re.sub(r"\W", "_", target)
    below.mkdir(parents=True, exist_ok=True)
    for name, build in graphs(models, kinds):
        if not re.search(match, name):
            continue
        try:
            text = "\n\n".join(kernels(build(), target))
        # guard: a graph that fails in one of the commits is a difference like any other
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
        file_name = re.sub(r"[^\w.-]", "_", name)
        (below / f"{file_name}.txt").write_text(text + "\n")


if __name__ == "__main__":
    _, out, target, models, kinds, match = sys.argv
    collect(Path(out), target, models.split(), kinds.split(), match)
