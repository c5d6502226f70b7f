"""The cases: of each family of kernels a small one with ragged edges, and what makes its family.

A case is a work and what is asked of the configuration of its kernel; the first of the design space
that has it is compiled. Grids are of several blocks, persistent ones of more tiles than a device
has multiprocessors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.attention import attention, causal_attention
from benchmarks.gpu.convolutions import convolution
from benchmarks.gpu.layer_pairs import layers
from benchmarks.gpu.narrow_products import float8_linear, int8_linear
from benchmarks.gpu.others import attended, running_sums
from benchmarks.gpu.packed import packed, packed_causal
from benchmarks.gpu.packed_products import int8_linear as int8_weight_linear
from benchmarks.gpu.products import linear_bias, linear_gelu, linear_residual
from benchmarks.gpu.works import (
    Work,
    gates,
    group_norm_silu,
    int4_linear,
    layer_norm_gelu,
    linear,
    softmax,
    transpose_cast,
)


@dataclass(frozen=True)
class Case:
    """A family, a work of it, and what its configuration has."""

    family: str  # for a reader
    work: Work  # what is compiled
    # Entries of the configuration; empty: the default, of templates without choices too.
    asked: Mapping[str, int | str] = field(default_factory=dict)


class _NormBetween(Work):
    """Two products with a layer norm between, whose statistics the kernel of the first adds up."""

    def module(self) -> torch.nn.Module:
        """Return the workload with constant weights, as models have them."""
        layers = (torch.nn.Linear(192, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 264))
        return torch.nn.Sequential(*layers).half().eval()


class _Packed(Work):
    """Attention of packed sequences: the last argument has their offsets."""

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw q, k and v; five sequences."""
        tokens = self.shapes[0][2]
        offsets = torch.tensor([0, 37, 101, 230, 385, tokens], device=device)
        return [*super().draw(seed, device), offsets]


def dual_gemm(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """Gate and up of SwiGLU."""
    return functional.silu(x @ gate) * (x @ up)


def column_sums(x: Tensor) -> Tensor:
    """Sum over rows."""
    return x.float().sum(0)


def _gemm(
    name: str,
    function: Callable[..., Tensor],
    m: int,
    k: int,
    n: int,
    dtype: str = "float16",
    allow: tuple[str, ...] = (),
) -> Work:
    shapes: tuple[tuple[int, ...], ...] = ((m, k), (n, k))
    shapes += ((n,),) if function in (linear_bias, linear_gelu, linear_residual) else ()
    shapes += ((m, n),) if function is linear_residual else ()
    return Work(name, function, shapes, dtype, allow=allow)


def _of(kernel: str, **others: int) -> dict[str, int | str]:
    return {"kernel": kernel, **others}


_WGMMA, _MMA = "wgmma", "mma.sync"
_ONE = {"split_k": 1, "is_ping_pong": 0}


def _heads(rows: int, width: int) -> tuple[tuple[int, ...], ...]:
    return ((2, 3, rows, width),) * 3


def _packed(name: str, function: Callable[..., Tensor]) -> Work:
    return _Packed(name, function, ((1, 2, 600, 64),) * 3)


_GQA = ((1, 16, 1, 128), (1, 4, 1000, 128), (1, 4, 1000, 128))
_MHA = ((1, 6, 1, 64), (1, 6, 1000, 64), (1, 6, 1000, 64))

CASES: tuple[Case, ...] = (
    Case(
        "wgmma", _gemm("wgmma", linear_residual, 1100, 200, 1096), _of(_WGMMA, consumers=2, **_ONE)
    ),
    Case(
        "wgmma, ping-pong",
        _gemm("wgmma_ping_pong", linear_gelu, 1100, 200, 1096),
        _of(_WGMMA, is_ping_pong=1),
    ),
    Case(
        "wgmma, staged epilogue",
        _gemm("wgmma_staged", linear_bias, 200, 192, 265),
        _of(_WGMMA, consumers=2, **_ONE),
    ),
    Case(
        "wgmma, split-K in clusters",
        _gemm("wgmma_split_k", linear_residual, 120, 1536, 136),
        _of(_WGMMA, split_k=4),
    ),
    Case(
        "wgmma of windows",
        convolution(2, 64, 15, 72, 3, 1, "residual_relu"),
        _of("wgmma of windows", **_ONE),
    ),
    Case(
        "wgmma of windows, split-K",
        convolution(1, 128, 7, 64, 3, 1, "relu"),
        _of("wgmma of windows", split_k=2),
    ),
    Case(
        "wgmma of windows, volumes",
        convolution(1, 64, 9, 72, 3, 1, "relu", rank=3),
        _of("wgmma of windows", **_ONE),
    ),
    Case(
        "GEMMs back to back",
        Work(
            "back_to_back",
            layers(functional.relu),
            ((70001, 72), (96, 72), (96,), (40, 96), (40,)),
        ),
    ),
    Case("dual GEMM", Work("dual_gemm", dual_gemm, ((200, 192), (192, 264), (192, 264)))),
    Case(
        "wgmma, float8",
        _gemm("wgmma_float8", float8_linear, 256, 256, 272, "float8_e4m3fn"),
        _of(_WGMMA),
    ),
    Case("wgmma, int8", _gemm("wgmma_int8", int8_linear, 256, 256, 272, "int8"), _of(_WGMMA)),
    Case(
        "wgmma, tfloat32",
        _gemm("wgmma_tf32", linear, 1100, 256, 2056, "float32", ("tf32",)),
        _of(_WGMMA),
    ),
    Case(
        "wgmma, int4 weights",
        Work("wgmma_int4", int4_linear, ((1100, 512), (1096, 256), (1096, 4)), packed=(1,)),
        _of(_WGMMA),
    ),
    Case(
        "wgmma, int8 weights",
        Work(
            "wgmma_int8_weight",
            int8_weight_linear,
            ((1100, 512), (1096, 512), (1096,)),
            packed=(1,),
        ),
        _of(_WGMMA),
    ),
    Case("wgmma, statistics of rows", _NormBetween("norm_between", linear, ((200, 192),))),
    Case(
        "mma.sync, cp.async",
        _gemm("mma", linear_residual, 200, 192, 264),
        _of(_MMA, warps_k=1, **_ONE),
    ),
    Case(
        "mma.sync, slice-K",
        _gemm("mma_slices", linear_residual, 200, 192, 264),
        _of(_MMA, warps_k=2, **_ONE),
    ),
    Case(
        "mma.sync, split-K", _gemm("mma_split_k", linear_gelu, 72, 1000, 136), _of(_MMA, split_k=4)
    ),
    Case(
        "mma.sync, shifted rows",
        _gemm("mma_shifted", linear_bias, 200, 191, 265),
        _of(_MMA, split_k=1),
    ),
    Case(
        "mma.sync, gathered operand", convolution(1, 20, 15, 40, 3, 1, "relu"), _of(_MMA, split_k=1)
    ),
    Case(
        "mma.sync, 3xTF32",
        _gemm("mma_3xtf32", linear, 200, 192, 264, "float32"),
        _of(_MMA, split_k=1),
    ),
    Case(
        "mma.sync, int8",
        _gemm("mma_int8", int8_linear, 200, 256, 264, "int8"),
        _of(_MMA, split_k=1),
    ),
    Case("grouped convolution", convolution(1, 64, 15, 64, 3, 1, "relu", groups=2)),
    Case("partial im2col", convolution(1, 3, 29, 32, 3, 2, "relu")),
    Case("depthwise convolution", convolution(1, 40, 15, 40, 3, 1, "relu6", groups=40)),
    Case("depthwise convolution, strided", convolution(2, 42, 15, 42, 5, 2, "", groups=42)),
    Case("GEMV", _gemm("gemv", linear, 1, 520, 264), _of("gemv")),
    Case(
        "GEMV, int4 weights",
        Work("gemv_int4", int4_linear, ((1, 512), (264, 256), (264, 4)), packed=(1,)),
    ),
    Case("skinny mma.sync", _gemm("skinny_mma", linear_gelu, 7, 512, 264), _of("skinny mma.sync")),
    Case(
        "FlashAttention, mma.sync",
        Work("flash_mma", attention, _heads(200, 64)),
        _of("flash mma", uses_wgmma=0, stages=2),
    ),
    Case(
        "FlashAttention, wgmma",
        Work("flash_wgmma", causal_attention, _heads(264, 64)),
        _of("flash mma", uses_wgmma=1, is_ping_pong=0, stages=2),
    ),
    Case(
        "FlashAttention, wgmma, ping-pong",
        Work("flash_ping_pong", causal_attention, _heads(392, 64)),
        _of("flash mma", uses_wgmma=1, is_ping_pong=1),
    ),
    Case(
        "FlashAttention, TMA",
        Work("flash_tma", causal_attention, _heads(392, 128)),
        _of("flash tma", is_ping_pong=1),
    ),
    Case(
        "FlashAttention, TMA, heads of 256",
        Work("flash_tma_256", causal_attention, _heads(264, 256)),
        _of("flash tma", is_ping_pong=1),
    ),
    Case("FlashAttention, TMA, packed", _packed("flash_tma_packed", packed), _of("flash tma")),
    Case(
        "FlashAttention, TMA, packed, causal",
        _packed("flash_tma_packed_causal", packed_causal),
        _of("flash tma", is_ping_pong=1),
    ),
    Case(
        "FlashAttention, CUDA cores",
        Work("flash_simt", attention, _heads(70, 64)),
        _of("CUDA cores"),
    ),
    Case("flash decoding", Work("flash_decoding", attended, _MHA), _of("flash decoding")),
    Case("flash decoding, GQA", Work("flash_decoding_gqa", attended, _GQA), _of("flash decoding")),
    Case("rows", Work("rows", layer_norm_gelu, ((61, 1000), (1000,), (1000,)))),
    Case("rows, unaligned", Work("rows_unaligned", softmax, ((61, 1001),))),
    Case("group norm", Work("group_norm", group_norm_silu, ((2, 64, 30, 30), (64,), (64,)))),
    Case("columns", Work("columns", column_sums, ((500, 200),))),
    Case("scan", Work("scan", running_sums, ((9, 3000),))),
    Case("elementwise", Work("elementwise", gates, ((61, 1001),))),
    Case("shared-memory transpose", Work("transpose", transpose_cast, ((203, 136),))),
)


def named(name: str) -> Case:
    """Find a case by its work."""
    return next(case for case in CASES if case.work.name == name)
