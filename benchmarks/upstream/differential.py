"""Modules that tests show, built by stock TVM and by this package and run on the same inputs."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.target import Target

from tvm_fusion import pipeline
from tvm_fusion.core.tir.expressions import substitute

SECONDS = 60
_EXTENTS = (3, 5, 4, 7, 6, 2, 9, 8)


class Observed:
    """The modules of one test that are not judged yet; each is judged once."""

    def __init__(self) -> None:
        self._waiting: list[tvm.IRModule] = []
        self._known: set[int] = set()

    def add(self, mod: Any) -> None:
        """Note a module or function with Relax functions that was not seen before."""
        if isinstance(mod, relax.Function):
            mod = tvm.IRModule({"main": mod.with_attr("global_symbol", "main")})
        if not isinstance(mod, tvm.IRModule):
            return
        if not any(isinstance(func, relax.Function) for func in mod.functions.values()):
            return
        key = tvm_ffi.structural_hash(mod, map_free_vars=True)
        if key not in self._known:
            self._known.add(key)
            self._waiting.append(mod)

    def judge(self) -> Iterator[tuple[str, str]]:
        """Yield the verdicts of the public functions, with their reasons."""
        waiting, self._waiting = self._waiting, []
        for mod in waiting:
            for name, func in list(mod.functions.items()):
                if isinstance(func, relax.Function) and "global_symbol" in (func.attrs or {}):
                    yield in_child(mod, name.name_hint)


def observe(observed: Observed) -> None:
    """Watch importers and comparisons of modules."""
    from tvm.relax.frontend import onnx, torch

    for room, name in ((onnx, "from_onnx"), (torch, "from_exported_program"), (torch, "from_fx")):
        setattr(room, name, _results(getattr(room, name), observed))
    tvm.ir.assert_structural_equal = _arguments(tvm.ir.assert_structural_equal, observed)


def _results(importer: Any, observed: Observed) -> Any:
    @functools.wraps(importer)
    def run(*args: Any, **options: Any) -> Any:
        mod = importer(*args, **options)
        observed.add(mod)
        return mod

    return run


def _arguments(check: Any, observed: Observed) -> Any:
    @functools.wraps(check)
    def run(lhs: Any, rhs: Any, *args: Any, **options: Any) -> Any:
        observed.add(lhs)
        observed.add(rhs)
        return check(lhs, rhs, *args, **options)

    return run


def in_child(mod: tvm.IRModule, name: str) -> tuple[str, str]:
    """Judge a function in a forked process: a crash or a hang costs this function alone."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(SECONDS)
        with os.fdopen(writing, "wb") as out:

            def tell(verdict: tuple[str, str]) -> None:
                pickle.dump(verdict, out)
                out.flush()

            try:
                compare(mod, name, tell)
            except BaseException:  # guard: the child must end here
                tell(("error", _short(traceback.format_exc().strip().splitlines()[-1])))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        content = told.read()
    _, status = os.waitpid(child, 0)
    verdicts = list(_unpickled(content))
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = "hang" if number == signal.SIGALRM else f"crash (signal {number})"
        if not verdicts:
            return "stock fails", how
        return how.split()[0], f"{how} in function {name}"
    return verdicts[-1]


def _unpickled(content: bytes) -> Iterator[tuple[str, str]]:
    import io

    stream = io.BytesIO(content)
    while stream.tell() < len(content):
        yield pickle.load(stream)


def compare(mod: tvm.IRModule, name: str, tell: Any) -> None:
    """Build by both, run on the same inputs, tell the verdict; ``stock ran`` comes first."""
    target = Target("llvm")
    try:
        arguments = inputs(mod[name])
        expected = _run(relax.build(mod, target), name, arguments)
    except Exception as error:  # guard: the reason is the verdict
        tell(("stock fails", _short(f"{type(error).__name__}: {error}")))
        return
    tell(("stock ran", ""))
    try:
        built = relax.build(
            mod, target, relax_pipeline=pipeline.PIPELINE, tir_pipeline=pipeline.PIPELINE
        )
        found = _run(built, name, arguments)
    except Exception as error:  # guard: the reason is the verdict
        tell(("failed", _short(f"{type(error).__name__}: {error}")))
        return
    difference = differs(found, expected)
    tell(("differs", difference) if difference else ("passed", ""))


def inputs(func: relax.Function) -> list[Any]:
    """Draw arguments of a function's types, with extents for its symbolic variables."""
    rng = np.random.default_rng(21)
    analyzer = tvm.sym.Analyzer()
    extents: dict[ir.Var, ir.Expr] = {}

    def extent(value: ir.Expr) -> int:
        for var in tirx.analysis.undefined_vars(value):
            number = _EXTENTS[len(extents) % len(_EXTENTS)]
            extents.setdefault(var, tirx.IntImm(str(var.ty.dtype), number))
        return int(analyzer.simplify(substitute(value, extents)))

    def draw(ty: Any) -> Any:
        if isinstance(ty, relax.TupleType):
            return tuple(draw(field) for field in ty.fields)
        if isinstance(ty, relax.ShapeType):
            return tvm_ffi.Shape([extent(value) for value in ty.values])
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            raise TypeError(f"no arguments are drawn for {ty}")
        shape = [extent(value) for value in ty.shape.values]
        dtype = str(ty.dtype.dtype)
        if dtype == "bool":
            values = rng.random(shape) < 0.5
        elif "int" in dtype:
            values = rng.integers(0, 2, shape)
        else:
            values = rng.standard_normal(shape)
        return tvm.runtime.tensor(np.asarray(values).astype(dtype))

    return [draw(param.ty) for param in func.params]


def _run(built: Any, name: str, arguments: list[Any]) -> Any:
    return _numpy(relax.VirtualMachine(built, tvm.cpu())[name](*map(_copied, arguments)))


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return tvm.runtime.tensor(value.numpy()) if isinstance(value, tvm.runtime.Tensor) else value


def _numpy(value: Any) -> Any:
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    if isinstance(value, tuple | list | tvm_ffi.Array | tvm_ffi.Shape):
        return [_numpy(field) for field in value]
    return value


def differs(found: Any, expected: Any) -> str:
    """Say how results differ, empty where they do not."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return "another structure"
        return next(filter(None, map(differs, found, expected)), "")
    if not isinstance(expected, np.ndarray):
        return "" if type(found) is type(expected) else "another type"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    rtol = 1e-2 if found.dtype.itemsize <= 2 and found.dtype.kind in "fV" else 1e-4
    close = np.isclose(
        found.astype("float64"), expected.astype("float64"), rtol, rtol, equal_nan=True
    )
    return "" if close.all() else f"{(~close).sum()} of {close.size} values differ"


def _short(text: str) -> str:
    return " ".join(text.split())[:300]
