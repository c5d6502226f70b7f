"""Entries with a float64 reference in numpy: the mapping table's cells and the small graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import ir

from benchmarks.fusion import cells
from benchmarks.fusion.case import Case, compile_case
from benchmarks.fusion.graphs import GRAPHS, SIZES
from tvm_fusion.config import FusionConfig
from tvm_fusion.ecg.mapping_types.table import TABLE, Relation
from tvm_fusion.frontend import import_model

from .drawing import NORMAL, draw, tensor
from .entry import Entry, LeftOut, relative

_INDEX: Mapping[str, Any] = {"kind": "integers", "low": 0, "high": 3}  # no axis is shorter
_HALF_TOLERANCE = 5e-3  # of the largest magnitude, over two operators in float16


def cases() -> Iterator[tuple[str, Case]]:
    """Yield every case with its kind.

    All pairs of the cells that are not red, the first of each with a symbolic extent and in half
    precision as well; the small graphs at all of their sizes.
    """
    for (first, second), cell in TABLE.items():
        if cell.relation is Relation.BREAK:
            continue
        pairs = cells.PAIRS[first.value, second.value]
        for pair in pairs:
            yield "cell", cells.case(*pair)
        yield "cell", cells.case(*pairs[0], symbolic=True)
        yield "half cell", _half(cells.case(*pairs[0]))
    for graph in GRAPHS.values():
        for size in SIZES:
            yield "graph", graph.case(size)


def collect(target: str, seed: int) -> Iterator[Entry | LeftOut]:
    """Yield an entry for every case."""
    for kind, case in cases():
        yield entry(kind, case, target, seed)


def entry(kind: str, case: Case, target: str, seed: int) -> Entry | LeftOut:
    """Make the entry of a case, or say why there is none."""
    name = f"{kind} {case.name}"
    try:
        built = case.build()
        compiled = compile_case(case, target)
    # guard: becomes a line of the report; the other cases are checked all the same
    except Exception as error:
        return LeftOut.because(name, kind, "plan", error)
    arguments = [_argument(param, case.dims) for param in built["main"].params]
    wide = [_wide(array) for array in draw(arguments, seed)]
    with np.errstate(all="ignore"):
        exact = case.reference(*wide)
    exact = exact if isinstance(exact, list) else [exact]
    types = built["main"].ret_ty
    fields = list(types.fields) if hasattr(types, "fields") else [types]
    stored = relative(exact, [str(field.dtype) for field in fields], case.tolerance)
    count = compiled.count
    launches = count.kernels - count.copies - count.library_calls
    about = {"extents": dict(case.dims)}
    return Entry(
        name, kind, compiled.mod, arguments, seed, stored, launches, "float64", about=about
    )


def _half(case: Case) -> Case:
    def build() -> tvm.IRModule:
        return import_model(case.build(), FusionConfig(precision="fp16", half_io=True)).mod

    return Case(case.name, build, case.reference, case.dims, _HALF_TOLERANCE)


def _argument(param: Any, dims: Mapping[str, int]) -> dict[str, Any]:
    shape = [dims[e.name] if isinstance(e, ir.Var) else int(e) for e in param.ty.shape]
    dtype = str(param.ty.dtype)
    return tensor(shape, dtype, NORMAL if "float" in dtype else _INDEX)


def _wide(array: Any) -> np.ndarray:
    return array.astype("float64") if array.dtype.kind == "f" else array
