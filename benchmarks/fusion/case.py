"""A small Relax graph with its float64 reference: built, compiled, counted and run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.core.decisions import Decision, recording
from tvm_fusion.deploy.count import Count, count
from tvm_fusion.device import parse

#: Where kernels are counted: no device and no CUDA compiler is needed for either.
TARGETS = ("cpu", "cuda:sm_90a")
_INTEGERS_BELOW = 3  # no indexed axis of a case is shorter


@dataclass(frozen=True, eq=False, repr=False)
class Case:
    """A graph, what it computes, and the extents to count and run it at."""

    name: str  # unique among its kind
    build: Callable[[], tvm.IRModule]  # makes the ``tvm.IRModule`` with one function ``main``
    # From the inputs, floats widened to float64, to the output or the list of outputs.
    reference: Callable[..., Any]
    dims: Mapping[str, int] = field(default_factory=dict)  # extents of symbolic dimensions
    tolerance: float = 1e-5  # largest max|a-b| / max|b| of an output

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, repr=False)
class Compiled:
    """What the whole pipeline makes of a case: module, counts and decisions."""

    target: Any
    mod: tvm.IRModule
    count: Count
    decisions: tuple[Decision, ...]

    def __repr__(self) -> str:
        """Tell the kernels and, one a line, what was decided."""
        launches = self.count.launches
        kernels = [f"  {one.primfunc}: {one.kernel} x {one.calls}" for one in launches]
        decided = [
            f"  {d.verdict} {d.code}: {d.producer} -> {d.consumer or '-'}: {d.sentence}"
            for d in self.decisions
        ]
        return "\n".join([f"{self.count.kernels} kernels:", *kernels, "decisions:", *decided])


def tensor(name: str, *shape: Any, dtype: str = "float32") -> relax.Var:
    """Make a parameter."""
    return relax.Var(name, relax.TensorType(shape, dtype))


def module(
    params: Sequence[relax.Var],
    body: Callable[..., Any],
    *,
    dataflow: bool = True,
) -> tvm.IRModule:
    """Build a function ``main``.

    Parameters
    ----------
    body
        From the ``BlockBuilder`` and the parameters to an expression or a list of expressions,
        which are the outputs.
    dataflow
        Whether the bindings stand in a dataflow block.
    """
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        if dataflow:
            with builder.dataflow():
                output = builder.emit_output(_value(builder, body(builder, *params)))
        else:
            output = builder.emit(_value(builder, body(builder, *params)))
        builder.emit_func_output(output)
    return builder.get()


def _value(builder: relax.BlockBuilder, result: Any) -> relax.Expr:
    if isinstance(result, list):
        return relax.Tuple([builder.emit(item) for item in result])
    return result


def draw(mod: tvm.IRModule, dims: Mapping[str, int], seed: int) -> list[np.ndarray]:
    """Draw inputs: floats from a normal distribution, integers that index any axis."""
    stream = np.random.default_rng(seed)
    arrays = []
    for param in mod["main"].params:
        shape = [_extent(extent, dims) for extent in param.ty.shape]
        dtype = np.dtype(str(param.ty.dtype))
        if dtype.kind == "f":
            arrays.append(stream.standard_normal(shape).astype(dtype))
        else:
            arrays.append(stream.integers(0, _INTEGERS_BELOW, shape).astype(dtype))
    return arrays


def _extent(extent: Any, dims: Mapping[str, int]) -> int:
    return dims[extent.name] if isinstance(extent, ir.Var) else int(extent)


def compile_case(case: Case, target: str) -> Compiled:
    """Run the whole pipeline and count what is left."""
    tvm_target = parse(target).tvm_target()
    with recording() as decisions:
        mod = relax.get_pipeline(PIPELINE, target=tvm_target)(case.build())
    counted = count(mod, tvm_target, dims=case.dims, tir_pipeline=PIPELINE)
    return Compiled(tvm_target, mod, counted, tuple(decisions))


def runnable(target: str) -> str:
    """Return the named CPU where this machine has its instructions, else this machine."""
    here, named = parse("cpu").device, parse(target).device
    has_all = here.kind == named.kind and set(named.features) <= set(here.features)
    return target if has_all and named.features else "cpu"


def errors(case: Case, compiled: Compiled, seed: int = 0) -> list[float]:
    """Run on this machine's CPU; return max|a-b| / max|b| of every output against float64."""
    executable = tvm.compile(
        compiled.mod, compiled.target, relax_pipeline=None, tir_pipeline=PIPELINE
    )
    arrays = draw(case.build(), case.dims, seed)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](
        *(tvm.runtime.tensor(array) for array in arrays)
    )
    actual = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    expected = case.reference(*wide)
    expected = expected if isinstance(expected, list) else [expected]
    return [_error(a.numpy(), b) for a, b in zip(actual, expected, strict=True)]


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return float("inf")
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
