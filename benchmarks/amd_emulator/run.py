"""Compile cases, then run them in the emulator; a process of its own, for what it installs."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tvm_fusion
from tvm_fusion.deploy.toolchain.host import require_compiler

from .case import DTYPES, FORMS, Case
from .cases import CASES

ARCHS = ("gfx90a", "gfx942", "gfx1100")
Key = tuple[str, str, str, str]


def keys(
    names: Iterable[str] = CASES,
    archs: Iterable[str] = ARCHS,
    dtypes: Iterable[str] = DTYPES,
    forms: Iterable[str] = FORMS,
) -> list[Key]:
    """List what there is of these cases: (case, architecture, precision, form)."""
    archs, dtypes, forms = tuple(archs), tuple(dtypes), tuple(forms)
    return [
        (name, arch, dtype, form)
        for name in names
        for arch in archs
        for dtype in dtypes
        if dtype in CASES[name].dtypes
        for form in forms
        if form in CASES[name].forms
    ]


def key_of(one: Mapping[str, Any]) -> Key:
    """Return the key of a run."""
    return one["case"], one["arch"], one["dtype"], one.get("form", "")


def run(chosen: Iterable[Key], reverse: bool = False) -> Iterator[dict[str, Any]]:
    """Run cases, all compiled before the first one runs.

    Parameters
    ----------
    chosen : iterable of Key
        Of :func:`keys`.
    reverse : bool
        Whether the waves of a block run from the last to the first.

    Yields
    ------
    dict
        ``case``, ``arch``, ``dtype``, ``form``, ``error`` (the largest difference to float64, in
        units of the dtype's epsilon times the largest result, or of an integer), ``right``,
        ``kernels``, ``seconds``; or ``failed``, the reason.
    """
    from .runtime import install

    rng = np.random.default_rng()
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for number, (name, arch, dtype, form) in enumerate(chosen):
            one: dict[str, Any] = {"case": name, "arch": arch, "dtype": dtype, "form": form}
            inputs = CASES[name].arrays(dtype, rng)
            want, step = CASES[name].expected(dtype, inputs)
            try:
                path = _compile(CASES[name], one, step, Path(folder, str(number)))
            except Exception as error:  # guard: the reason is the row's result
                one["failed"] = _sentence(error)
                yield one
                continue
            made.append((one, path, inputs, want))
        launched = install(require_compiler(), reverse)
        for one, path, inputs, want in made:
            launched.clear()
            start = time.perf_counter()
            try:
                _compare(one, path, inputs, want)
            except Exception as error:  # guard: the reason is the row's result
                one["failed"] = _sentence(error)
            one["kernels"] = len(launched)
            one["seconds"] = round(time.perf_counter() - start, 1)
            yield one


def _compile(case: Case, one: dict[str, Any], step: float, folder: Path) -> Path:
    is_symbolic = one["form"] == "symbolic"
    options = {"dims": {d: tvm_fusion.DimRange(1, 4096) for d in case.dims}} if is_symbolic else {}
    module = case.module(one["dtype"], one["form"], step)
    artifact = tvm_fusion.compile(module, f"rocm:{one['arch']}", **options)
    lost = [d for d in artifact.manifest["decisions"] if d["verdict"] == "fallback"]
    one["fallbacks"] = [f"{d['code']}: {d['sentence']}" for d in lost]
    slow = [d for d in artifact.manifest["decisions"] if d["code"] == "out_of_registers"]
    one["out_of_registers"] = [d["sentence"] for d in slow]
    return artifact.export(folder)


def _compare(
    one: dict[str, Any], path: Path, inputs: Mapping[str, np.ndarray], want: np.ndarray
) -> None:
    (result,) = tvm_fusion.load(path).run(inputs).values()
    got = _host(result)
    if got.shape != want.shape:
        raise ValueError(f"shape {got.shape} instead of {want.shape}")
    difference = np.abs(got.astype("float64") - want).max()
    unit, most = 1.0, float(want.dtype.kind == "f")  # a quantised result may round to its neighbour
    if got.dtype.kind in "fV":  # numpy calls bfloat16 a void type
        unit = float(ml_dtypes.finfo(got.dtype).eps) * np.abs(want).max()
        most = CASES[one["case"]].tolerance
    one["error"] = float(f"{difference / unit:.3g}")
    one["right"] = bool(difference <= unit * most)


def _host(tensor: Any) -> np.ndarray:
    """Copy a tensor whose device's memory is this process's."""
    dtype, shape = np.dtype(str(tensor.dtype)), tuple(tensor.shape)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(tensor.data_ptr(), size), dtype).reshape(shape)


def _sentence(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
