"""Compile cases, then run them in the emulator; a process of its own, for what it installs."""

import ctypes
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tvm_fusion
from tvm_fusion.deploy.toolchain.host import require_compiler

from .cases import CASES, Case

ARCHS = ("gfx90a", "gfx942", "gfx1100")
DTYPES = ("float32", "float16", "bfloat16")


def run(
    names: Iterable[str] = CASES,
    archs: Iterable[str] = ARCHS,
    dtypes: Iterable[str] = DTYPES,
    reverse: bool = False,
) -> Iterator[dict[str, Any]]:
    """Run cases, all compiled before the first one runs.

    Parameters
    ----------
    names, archs, dtypes
        What to run.
    reverse
        Whether the waves of a block run from the last to the first.

    Yields
    ------
    dict
        ``case``, ``arch``, ``dtype``, ``error`` (the largest difference to float64, in units of the
        dtype's epsilon times the largest result), ``right``, ``kernels``, ``seconds``; or
        ``failed``, the reason.
    """
    from .runtime import install

    with tempfile.TemporaryDirectory() as folder:
        made = []
        for number, (name, arch, dtype) in enumerate(
            (n, a, d)
            for n in names
            for a in archs
            for d in dtypes
            if d != "bfloat16" or CASES[n].has_bfloat16
        ):
            one = {"case": name, "arch": arch, "dtype": dtype}
            try:
                path = _compile(CASES[name], arch, dtype, Path(folder, str(number)), one)
            except Exception as error:  # guard: the reason is the row's result
                one["failed"] = _sentence(error)
                yield one
                continue
            made.append((one, path))
        launched = install(require_compiler(), reverse)
        for one, path in made:
            launched.clear()
            start = time.perf_counter()
            try:
                _compare(CASES[one["case"]], one, path)
            except Exception as error:  # guard: the reason is the row's result
                one["failed"] = _sentence(error)
            one["kernels"] = len(launched)
            one["seconds"] = round(time.perf_counter() - start, 1)
            yield one


def _compile(case: Case, arch: str, dtype: str, folder: Path, one: dict[str, Any]) -> Path:
    options = {"dims": {d: tvm_fusion.DimRange(1, 4096) for d in case.dims}} if case.dims else {}
    artifact = tvm_fusion.compile(case.module(dtype), f"rocm:{arch}", **options)
    lost = [d for d in artifact.manifest["decisions"] if d["verdict"] == "fallback"]
    one["fallbacks"] = [f"{d['code']}: {d['sentence']}" for d in lost]
    slow = [d for d in artifact.manifest["decisions"] if d["code"] == "out_of_registers"]
    one["out_of_registers"] = [d["sentence"] for d in slow]
    return artifact.export(folder)


def _compare(case: Case, one: dict[str, Any], path: Path) -> None:
    inputs = case.arrays(one["dtype"], np.random.default_rng())
    (result,) = tvm_fusion.load(path).run(inputs).values()
    got = _host(result)
    wide = [x.astype("float64") if _is_float(x) else x for x in inputs.values()]
    want = case.reference(*wide)
    if got.shape != want.shape:
        raise ValueError(f"shape {got.shape} instead of {want.shape}")
    difference = np.abs(got.astype("float64") - want).max()
    epsilon = float(ml_dtypes.finfo(one["dtype"]).eps)
    unit = epsilon * np.abs(want).max() if _is_float(got) else 1.0
    one["error"] = float(f"{difference / unit:.3g}")
    one["right"] = bool(difference <= unit * (case.tolerance if _is_float(got) else 0))


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind in "fV"  # numpy calls bfloat16 a void type


def _host(tensor: Any) -> np.ndarray:
    """Copy a tensor whose device's memory is this process's."""
    dtype, shape = np.dtype(str(tensor.dtype)), tuple(tensor.shape)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(tensor.data_ptr(), size), dtype).reshape(shape)


def _sentence(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
