"""One graph through every stage, compiled, run and compared."""

import contextlib
import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import Pass, Sequential

from .coverage import Coverage
from .graph import Graph, to_module
from .reference import Value, evaluate

SWALLOWED = "numbers in the place of NaN or infinity: "


@dataclass(frozen=True)
class Failure:
    """What went wrong."""

    # The stage that failed or left the module malformed, or claim_broken, build, run, result,
    # swallowed (a number where the graph has NaN or infinity), mutated input.
    kind: str
    sentence: str


@dataclass
class Times:
    """Seconds by phase, summed over graphs."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Add what the ``with`` block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            self.seconds[phase] = self.seconds.get(phase, 0.0) + taken


class Check:
    """Checks graphs for one target, and gathers coverage and times over them."""

    def __init__(self, target: str = "cpu"):
        from tvm_fusion.device import parse

        self.target = parse(target).tvm_target()
        self.coverage, self.times = Coverage(), Times()

    def __call__(self, graph: Graph) -> Failure | None:
        """Compile a graph and, for a CPU, run it at all of its instantiations.

        Laws keep results where the original is finite: ``x - x`` may become 0 though ``x`` is
        infinite. What swallows NaN or infinity must not do so without them.
        """
        failure = self._check(graph)
        if failure is not None and failure.kind == "swallowed":
            failure = self._check(graph, rewriting=False)
            self.coverage.decisions["swallowed by a law"] += failure is None
        return failure

    def _check(self, graph: Graph, rewriting: bool = True) -> Failure | None:
        from tvm_fusion import pipeline, transform
        from tvm_fusion.core.decisions import recording

        with self.times.of("relax"):
            try:
                mod = to_module(graph)
                relax.analysis.well_formed(mod)
            # guard: whatever Relax has against the graph is the generator's failure
            except Exception as error:
                return Failure("generator", _first_line(error))
        stages: list[tuple[str, Any]] = [("normalize", transform.NormalizeImport)]
        stages += [*pipeline.STAGES, ("vm", transform.LowerToVM)]
        with recording() as decisions:
            for name, stage in stages:
                with self.times.of(name):
                    try:
                        with self.target:
                            make = stage if rewriting or name != "rewrite" else _no_rewriting
                            mod = make()(mod)
                        relax.analysis.well_formed(mod)
                    # guard: any exception of a pass is the finding
                    except Exception as error:
                        return Failure(name, _first_line(error))
                if name == "fusion":
                    self.coverage.add(mod)
        self.coverage.add_decisions(decisions)
        broken = [d.sentence for d in decisions if d.code == "claim_broken"]
        if broken:
            return Failure("claim_broken", broken[0])
        with self.times.of("build"):
            try:
                executable = tvm.compile(
                    mod, self.target, relax_pipeline=_nothing(), tir_pipeline="tvm_fusion"
                )
            # guard: any exception of the build is the finding
            except Exception as error:
                return Failure("build", _first_line(error))
        return self._run(graph, executable) if self.target.kind.name == "llvm" else None

    def _run(self, graph: Graph, executable: Any) -> Failure | None:
        machine = relax.VirtualMachine(executable, tvm.cpu())
        for index, env in enumerate(graph.envs):
            arrays = [leaf.at(index) for leaf in graph.parameters]
            with self.times.of("run"):
                inputs = [tvm.runtime.tensor(array) for array in arrays]
                try:
                    with poisoned_memory():
                        result = machine["main"](*inputs)
                # guard: any exception while running is the finding
                except Exception as error:
                    return Failure("run", f"at {dict(env)}: {_first_line(error)}")
                outputs = [result] if len(graph.outputs) == 1 else list(result)
                actual = [output.numpy() for output in outputs]
            for leaf, array, tensor in zip(graph.parameters, arrays, inputs, strict=True):
                if tensor.numpy().tobytes() != array.tobytes():
                    return Failure("mutated input", f"v{leaf.value} at {dict(env)}")
            with self.times.of("reference"):
                values = evaluate(graph, index)
            for value, array in zip(graph.outputs, actual, strict=True):
                wrong = difference(array, values[value], graph.types[value][1])
                if wrong:
                    kind = "swallowed" if wrong.startswith(SWALLOWED) else "result"
                    return Failure(kind, f"v{value} at {dict(env)}: {wrong}")
        return None


def difference(actual: np.ndarray, expected: Value, dtype: str) -> str | None:
    """Say how a result differs by more than its tolerance, or None."""
    exact = expected.exact
    if str(actual.dtype) != dtype or actual.shape != exact.shape:
        return f"{actual.dtype}{actual.shape} instead of {dtype}{exact.shape}"
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype("float64") - exact.astype("float64"))
        wrong = ~(error <= expected.tolerance(dtype))  # a NaN is wrong
    if not expected.is_finite:
        # Laws promise results where the original is finite; elsewhere something that shows it.
        wrong &= np.isfinite(exact) | np.isfinite(actual.astype("float64"))
        error = np.where(wrong, error, 0)
    if not wrong.any():
        return None
    swallowed = "" if (wrong & np.isfinite(exact)).any() else SWALLOWED
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    place = [int(i) for i in worst]
    return swallowed + (
        f"{int(wrong.sum())} of {wrong.size} elements, at {place} {actual[worst]} instead of "
        f"{exact[worst]}, tolerance {expected.tolerance(dtype)[worst]:.3g}"
    )


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill what is allocated with 0xFE bytes, NaNs or huge numbers, where the C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    perturb = -6  # M_PERTURB; memory gets the complement of the byte
    mallopt(perturb, 0x01)
    try:
        yield
    finally:
        mallopt(perturb, 0)


def _no_rewriting() -> Pass:
    from tvm_fusion import transform

    return transform.Rewrite("none")


def _nothing() -> Pass:
    return Sequential([])


def _first_line(error: Exception) -> str:
    """Return the message of an error in a line, without the stacks that TVM puts around it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    messages = [
        line for line in lines if not line.startswith(("Error in pass", "File ", "Traceback"))
    ]
    useful = [line for line in messages if "Error" in line or "Check failed" in line] or messages
    return f"{type(error).__name__}: {(useful or lines or [''])[-1][:300]}"
