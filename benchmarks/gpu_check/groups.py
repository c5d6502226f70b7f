"""Groups of several members out of a plan, each with what its members give one by one.

There is no float64 reference for an arbitrary group. Its members run unscheduled on this machine's
CPU instead, one function each and in float32: other code than the fused kernel in every way but
for the operators' definitions. Groups in half precision have no such reference and are left out;
whole graphs in half precision, with references in float64, are another source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx

from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.deploy.count import count
from tvm_fusion.device import parse

from . import variants
from .cases import Case, cases
from .drawing import NORMAL, POSITIVE, draw, tensor
from .entry import Entry, LeftOut, relative

ELEMENTS = 32 << 20  # of all inputs and outputs of a group
TOLERANCE = 1e-4  # of the largest magnitude: both sides compute in float32
_KEPT_BYTES = 4096  # larger constants are drawn anew on the other machine
_FEW = 8
_ODD = (7, 5, 11, 13, 3)  # extents of symbolic dimensions, in order of appearance
_INDEXING = ("gather", "take", "scatter")


class Distinct:
    """Tells groups that were not met before, over several modules."""

    def __init__(self, target: str) -> None:
        self._device = parse(target).device
        self._met: set[tuple[str, str, str]] = set()

    def __call__(self, mod: tvm.IRModule) -> Iterator[Case]:
        """Yield the groups of a planned module with several members that are new."""
        for case in cases(mod):
            if len(case.group) > 1:
                key = case.key(self._device)
                known = (key.structure, key.shapes, case.template)
                if known not in self._met:
                    self._met.add(known)
                    yield case


def entry(
    name: str, kind: str, case: Case, target: str, seed: int, extents: Mapping[str, int]
) -> Entry | LeftOut:
    """Make the entry of a group, or say why there is none.

    Parameters
    ----------
    name, kind
        See :class:`~.entry.Entry`.
    case
        The group.
    target
        What to compile it for.
    seed
        Of its inputs.
    extents
        Of symbolic dimensions, as far as known; others are odd.
    """
    group, sizes = case.group, dict(extents)
    values = [*group.inputs, *group.outputs]
    shapes = [[extent(e, sizes) for e in value.shape] for value in values]
    dtypes = [value.dtype for value in values]
    total = sum(int(np.prod(shape)) for shape in shapes)
    if total > ELEMENTS:
        return LeftOut(name, kind, "limit", f"{total} elements; the limit is {ELEMENTS}")
    if "float16" in dtypes or "bfloat16" in dtypes:
        return LeftOut(name, kind, "limit", "half precision: its members are no reference")
    small = {i: c for i, c in case.constants.items() if c.value.numpy().nbytes <= _KEPT_BYTES}
    # What indexes an axis of one element must be zero.
    gathers = any(word in op.title for op in group.members for word in _INDEXING)
    ones = any(1 in shape for shape in shapes[: len(group.inputs)])
    indices = {"kind": "integers", "low": 0, "high": 1 if gathers and ones else 2}
    recipes = [
        _recipe(dtypes[i], case.constants.get(i), indices)
        for i in range(len(group.inputs))
        if i not in small
    ]
    kept = [i for i in range(len(group.inputs)) if i not in small]
    scalars = [extent(scalar, sizes) for scalar in group.scalars]
    case = replace(case, constants=small)
    try:
        tvm_target = parse(target).tvm_target()
        mod = variants.fused(case, tvm_target)
        counted = count(mod, tvm_target, dims=sizes, tir_pipeline=PIPELINE)
    # guard: becomes a line of the report; the other groups are checked all the same
    except Exception as error:
        return LeftOut.because(name, kind, "plan", error)
    try:
        cpu = parse("cpu").tvm_target()
        machine = variants.load(variants.stock(case, cpu), cpu)
        for fallback in (NORMAL, POSITIVE):
            arguments: list[Any] = [
                tensor(shapes[i], dtypes[i], recipe or fallback)
                for i, recipe in zip(kept, recipes, strict=True)
            ]
            arguments += scalars
            exact = _run(machine, draw(arguments, seed))
            if all(np.isfinite(array).all() for array in exact):
                break
    # guard: as above
    except Exception as error:
        return LeftOut.because(name, kind, "reference", error)
    outputs = relative(
        [_wide(array) for array in exact], [str(array.dtype) for array in exact], TOLERANCE
    )
    about = {
        "members": [op.title for op in group.members],
        "template": case.template,
        "extents": sizes,
    }
    launches = counted.kernels - counted.copies - counted.library_calls
    return Entry(name, kind, mod, arguments, seed, outputs, launches, "unfused", 1, about)


def extent(expr: Any, sizes: dict[str, int]) -> int:
    """Evaluate an extent; variables without a size get the next odd one."""

    def value(var: ir.Var) -> tirx.IntImm:
        size = sizes.setdefault(var.name, _ODD[len(sizes) % len(_ODD)])
        return tirx.IntImm(str(var.ty.dtype), size)

    return int(sym.Analyzer().simplify(tvm_ffi.structural_map(expr, (ir.Var, value), order="post")))


def _recipe(dtype: str, constant: Any, indices: dict[str, Any]) -> dict[str, Any] | None:
    """Draw what a constant is replaced by alike; None for a float that the model computes."""
    if dtype == "bool":
        return {"kind": "bool"}
    if constant is None:
        return None if "float" in dtype else indices
    array = constant.value.numpy()
    distinct = np.unique(array)
    if len(distinct) <= _FEW:  # such as a mask, whose magnitudes say nothing
        return {"kind": "choice", "values": distinct.tolist()}
    if "float" not in dtype:
        return {"kind": "integers", "low": int(array.min()), "high": int(array.max()) + 1}
    if array.min() >= 0:
        return {"kind": "uniform", "low": float(array.min()), "high": float(array.max())}
    return {"kind": "normal", "mean": float(array.mean()), "deviation": float(array.std())}


def _run(machine: relax.VirtualMachine, arguments: list[Any]) -> list[np.ndarray]:
    passed = [a if isinstance(a, int) else tvm.runtime.tensor(a) for a in arguments]
    result = machine["main"](*passed)
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [value.numpy() for value in results]


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype("float64") if array.dtype.kind == "f" else array
