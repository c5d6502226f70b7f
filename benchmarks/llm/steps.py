"""Steps of language models that are timed on a GPU, the most important first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_fusion.core.tir.expressions import loads


@dataclass(frozen=True)
class Step:
    """One call of a model.

    Attributes
    ----------
    name : str
        In the record.
    model : str
        Of :data:`.models.SHAPES`.
    layers, vocabulary : int, optional
        The model's when omitted.
    length : int
        Positions of the caches.
    position : int
        Of the first token.
    tokens, batch : int
        Tokens of each sequence, and sequences.
    is_symbolic : bool
        Whether the number of tokens is symbolic.
    has_int4 : bool
        Whether layers have weights of four bits.
    variant : str
        Of :data:`VARIANTS`; empty for what the compiler chooses.
    has_rival : bool
        Whether PyTorch's compiler is timed, too.
    """

    name: str
    model: str
    layers: int | None = None
    vocabulary: int | None = None
    length: int = 2048
    position: int = 1500
    tokens: int = 1
    batch: int = 1
    is_symbolic: bool = False
    has_int4: bool = False
    variant: str = ""
    has_rival: bool = True


_PREFETCHED_BYTES = 4 << 20  # of a weight: what memory gives in a microsecond


def _two_kernels() -> None:
    from tvm_fusion.schedule.attention.decode import config

    config.MAX_CLUSTER = 1


def _prefetch() -> None:
    from tvm_fusion.deploy.cuda_graph import weight_prefetch
    from tvm_fusion.schedule.contraction.gpu import emit
    from tvm_fusion.schedule.gpu.launch import PREFETCHED

    made, whole = emit.skinny_gemm_gpu, weight_prefetch._bytes
    weight_prefetch._bytes = lambda tensor: min(whole(tensor), _PREFETCHED_BYTES)

    def prefetching(program: Any, config: Any, *rest: Any) -> Any:
        func = made(program, config, *rest)
        weights = {x.source for x in loads(config.b)}
        return func.with_attr(PREFETCHED, [n for n, p in enumerate(func.params) if p in weights])

    emit.skinny_gemm_gpu = prefetching


def _late_weights() -> None:
    from tvm_fusion.schedule.contraction.gpu import emit

    emit.is_weight = lambda *_: False


def _gemv(wide: dict[int, int], threads: int, stages: int) -> Callable[[], None]:
    """Let GEMVs over columns have other tiles in a block, fewer threads, more stages."""

    def patch() -> None:
        from tvm_fusion.schedule.contraction.skinny import gemv_default

        choose = gemv_default._n_contiguous_threads
        gemv_default.BLOCKS_OF_THREADS_N = wide
        gemv_default.CP_ASYNC_STAGES = stages
        gemv_default._n_contiguous_threads = lambda n, k, most: choose(n, k, min(most, threads))

    return patch


_GEMVS = {  # tiles along N where there are so many blocks; threads; stages
    "gemv_narrow": ({}, 1024, 3),
    "gemv_narrow_512": ({}, 512, 4),
    "gemv_512": ({8: 128, 4: 96}, 512, 4),
    "gemv_512_6": ({8: 128, 4: 96}, 512, 6),
    "gemv_256": ({8: 128, 4: 96}, 256, 6),
    "gemv_wide": ({8: 96, 4: 48}, 1024, 3),
    "gemv_wide_512": ({8: 96, 4: 48}, 512, 6),
}


def _heads_apart() -> None:
    from tvm_fusion.schedule.contraction.problem.epilogue import proposals

    proposals.is_head_sum = lambda _: False


# What the compiler is made to choose, to see that it chooses well.
VARIANTS: dict[str, Callable[[], None]] = {
    "two_kernels": _two_kernels,
    "prefetch": _prefetch,
    "late_weights": _late_weights,
    "heads_apart": _heads_apart,
    **{name: _gemv(*sizes) for name, sizes in _GEMVS.items()},
}

_LLAMA, _QWEN, _LARGE = "Llama-3.2-1B", "Qwen3-0.6B", "Llama-3-8B"
_FEW = {"layers": 4, "vocabulary": 8192, "has_rival": False}
CHECKS = tuple(
    Step(f"check_{model}", model, layers=2, vocabulary=8192, has_rival=False)
    for model in (_LLAMA, _QWEN)
)
STEPS = (
    *CHECKS,
    Step("decode_llama_1b", _LLAMA),
    Step("decode_qwen3_0.6b", _QWEN),
    Step("few_llama_1b", _LLAMA, **_FEW),
    Step("few_llama_1b_two_kernels", _LLAMA, **_FEW, variant="two_kernels"),
    Step("few_llama_1b_late_weights", _LLAMA, **_FEW, variant="late_weights"),
    Step("few_llama_1b_prefetch", _LLAMA, **_FEW, variant="prefetch"),
    Step("few_qwen3", _QWEN, **_FEW),
    Step("few_qwen3_two_kernels", _QWEN, **_FEW, variant="two_kernels"),
    Step("few_qwen3_heads_apart", _QWEN, **_FEW, variant="heads_apart"),
    Step("few_qwen3_prefetch", _QWEN, **_FEW, variant="prefetch"),
    *(Step(f"few_llama_1b_{name}", _LLAMA, **_FEW, variant=name) for name in _GEMVS),
    Step("decode_llama_8b", _LARGE, layers=8),
    Step("decode_llama_8b_16384", _LARGE, layers=8, length=16384, position=16000),
    Step("decode_llama_8b_int4", _LARGE, layers=8, has_int4=True),
    Step("decode_llama_1b_batch_8", _LLAMA, batch=8),
    Step("prefill_llama_1b_512", _LLAMA, position=0, tokens=512),
    Step("prefill_llama_1b_512_symbolic", _LLAMA, position=0, tokens=512, is_symbolic=True),
    Step("prefill_llama_1b_4096", _LLAMA, length=4096, position=0, tokens=4096),
)
