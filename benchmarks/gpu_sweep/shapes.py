"""The shapes that are swept: GEMMs and attention of models, narrow types, some drawn ones."""

from __future__ import annotations

from benchmarks.gpu.attention import HEADS, WINDOWS
from benchmarks.gpu.products import SHAPES

INDEX = "sweep.json"
SEED, COUNT = 6, 30  # of the catalog
LEAST_ROWS = 128  # fewer are those of skinny GEMM
OTHERS = (
    "float8_linear_512x4096x14336",
    "float8_linear_4096x4096x4096",
    "int8_linear_512x4096x14336",
    "drawn_gemm_30x3905x436_linear_bfloat16",
    "drawn_gemm_1980x92x2410_residual",
)


def names() -> list[str]:
    """List the works of :mod:`benchmarks.gpu.catalog` that are swept."""
    gemms = [f"gemm_{m}x{k}x{n}_{how}" for m, k, n, how in SHAPES if m >= LEAST_ROWS]
    heads = [f"{how.__name__}_{b}x{h}x{n}x{d}" for b, h, n, d, how in HEADS]
    return [*gemms, *heads, WINDOWS.name, *OTHERS]
