"""Code of an older architecture on a newer device, to check and time kernels whose card is missing.

build   schedules for the target (sm_80: mma.sync, cp.async); CUDA source to PTX of its virtual
        architecture (compute_80), which ptxas assembles for the device (sm_90)
run     loads the artifact there, which the loader refuses otherwise: no user's artifact has PTX of
        another architecture

It has the instructions, tiles and pipelines of the older architecture, but not its speed: neither
its multiprocessors, caches and memory, nor its occupancy, which the model of the schedule assumed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from benchmarks.markdown import table

NAMES = (
    "gemm_4096x4096x4096_linear",
    "gemm_4096x4096x4096_gelu_residual",
    "gemm_512x4096x14336_linear",
    "gemm_128x768x3072_gelu",
    "gemm_128x3072x768_residual",
    "gemm_16x4096x14336_linear",
    "linear_8_rows_4096x14336",
    "drawn_gemm_2285x2727x340_gelu",
    "drawn_gemm_276x1476x6602_linear",
    "drawn_gemm_77x7207x4210_residual_bfloat16",
    "attention_1x16x1024x64",
    "causal_attention_4x32x4096x128",
    "biased_attention_64x3x49x32",
    "packed_attention_16x4096x64",
    "packed_causal_attention_16x4096x128",
    "conv_8x128x28_128x3_relu",
    "conv_2x640x32_640x3_residual",
    "softmax_8192x4096",
    "layer_norm_gelu_8192x4096",
)


@contextmanager
def assembled_for(device: str | None) -> Iterator[None]:
    """Compile for another architecture than the one that kernels are scheduled for.

    Parameters
    ----------
    device
        As in ``sm_90``; ``None``: for their own.
    """
    if device is None:
        yield
        return
    from tvm_fusion.deploy.toolchain import cuda, nvcc

    path = nvcc.find_nvcc()
    if path is None:
        raise RuntimeError("only nvcc assembles code of another architecture, and it was not found")
    compile_source = functools.partial(nvcc.compile_with_nvcc, path, real=device)

    def choose(_archs: Sequence[str]) -> tuple[str, cuda.Compile]:
        return "nvcc", compile_source

    with mock.patch.object(cuda, "choose_compiler", choose):
        yield


@contextmanager
def loading(index: Mapping[str, Any]) -> Iterator[None]:
    """Load artifacts that were assembled for this device, as an index has it."""
    assembled = index.get("assembled_for")
    if assembled is None:
        yield
        return
    from tvm_fusion.deploy.runtime import load
    from tvm_fusion.device.architecture import runs_on

    def choose(archs: Sequence[str], device: str) -> str | None:
        return archs[0] if runs_on(assembled, device) else None

    with mock.patch.object(load, "choose_arch", choose):
        yield


def section(record: Mapping[str, Any]) -> list[str]:
    """Write the part of the page about one architecture's code."""
    about, rows = record["about"], record["rows"]
    arch = about["target"].removeprefix("cuda:")
    command = f"--assemble {about['assembled_for']} build --target {about['target']} --out DIR"
    cells = [_cells(row) for row in rows]
    return [
        "",
        f"## {arch} code on this card",
        "",
        f"Kernels scheduled for {arch}, their PTX assembled for {about['assembled_for']}"
        f" (`python -m benchmarks.gpu {command}`), on one {about['device']}: right, and how far"
        " from what PyTorch's compiler, cuBLAS, cuDNN and FlashAttention do there with all of the"
        f" card's own instructions. It is not the speed of an {arch} device.",
        "",
        *table(["workload", "ours", "PyTorch", "faster", "TFLOP/s", "of copy", "error"], cells),
        *[f"* {name}: {reason}" for name, reason in about["failed"].items()],
        *[f"* {row['name']}: {row['wrong']}" for row in rows if row["wrong"]],
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["wrong"]:
        return [row["name"], *["wrong"] * 6]
    us = row["us"]
    rival = us.get("inductor")
    return [
        row["name"],
        f"{us['ours']:.2f}",
        f"{rival:.2f}" if rival else "not measured",
        f"{rival / us['ours']:.2f}" if rival else "",
        f"{row['flops'] / us['ours'] / 1e6:.0f}" if row.get("flops") else "",
        f"{100 * row['of_copy']:.0f} %",
        f"{row['error']:.2f}",
    ]
