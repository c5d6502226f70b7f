"""Steps of language models that are timed on a GPU, the most important first."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm_fusion.core.tir.expressions import loads


@dataclass(frozen=True)
class Step:
    """One call of a model."""

    name: str  # in the record
    model: str  # of :data:`.models.SHAPES`
    # The model's when omitted.
    layers: int | None = None
    vocabulary: int | None = None
    length: int = 2048  # positions of the caches
    position: int = 1500  # of the first token
    # Tokens of each sequence, and sequences.
    tokens: int = 1
    batch: int = 1
    is_symbolic: bool = False  # whether the number of tokens is symbolic
    has_int4: bool = False  # whether layers have weights of four bits
    variant: str = ""  # of :data:`VARIANTS`; empty for what the compiler chooses
    has_rival: bool = True  # whether PyTorch's compiler is timed, too


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

    emit.GpuContractionConfig.loads_early = property(lambda _: False)


def _along_n() -> None:
    from tvm_fusion.rewrite.products import weight_layout

    weight_layout._reads_along_k = lambda *_: False


def _along_k(columns: int, slices: int, threads: int, stages: int) -> Callable[[], None]:
    """Let GEMVs along K have so many columns of a tile, slices, tiles of a block and loads."""

    def patch() -> None:
        from tvm_fusion.schedule.contraction.skinny.gemv import default
        from tvm_fusion.schedule.contraction.skinny.gemv.thread_tile import fewer_columns

        choose = default._of_least_time

        def forced(start: Any, device: Any) -> Any:
            tile = next((t for t in fewer_columns(start.tile) if t.n == columns), start.tile)
            given = {"slices_k": slices, "threads_n": threads}
            most = max(1, int(start.k_tiles) // slices)
            made = replace(start, tile=tile, stages=min(stages, most), **given)
            return made if made.holds_heads(device.clusters) else choose(start, device)

        default._of_least_time = forced

    return patch


_ALONG_K = {
    "k_1_32": (1, 32, 8, 8), "k_2_32": (2, 32, 8, 4), "k_4_32": (4, 32, 8, 2),
    "k_1_64": (1, 64, 4, 8), "k_2_128": (2, 128, 2, 2), "k_4_256": (4, 256, 1, 1),
    "k_4_512": (4, 512, 1, 2),
}  # fmt: skip


def _heads_apart() -> None:
    from tvm_fusion.schedule.contraction.problem.epilogue import proposals

    proposals.is_head_sum = lambda _: False


# What the compiler is made to choose, to see that it chooses well.
VARIANTS: dict[str, Callable[[], None]] = {
    "two_kernels": _two_kernels,
    "prefetch": _prefetch,
    "late_weights": _late_weights,
    "heads_apart": _heads_apart,
    "along_n": _along_n,
    **{name: _along_k(*sizes) for name, sizes in _ALONG_K.items()},
}

_LLAMA, _QWEN, _LARGE = "Llama-3.2-1B", "Qwen3-0.6B", "Llama-3-8B"
_EXPERTS = "Qwen3Moe-30B-A3B"
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
    Step("few_llama_1b_along_n", _LLAMA, **_FEW, variant="along_n"),
    Step("few_qwen3_along_n", _QWEN, **_FEW, variant="along_n"),
    *(Step(f"few_llama_1b_{name}", _LLAMA, **_FEW, variant=name) for name in _ALONG_K),
    Step("few_qwen3_k_1_32", _QWEN, **_FEW, variant="k_1_32"),
    *(
        Step(f"few_llama_8b_int4_{name or 'chosen'}", _LARGE, **_FEW, has_int4=True, variant=name)
        for name in ("", "late_weights")
    ),
    Step("decode_qwen3_30b_a3b", _EXPERTS, layers=4, vocabulary=8192),
    Step("decode_llama_8b", _LARGE, layers=8),
    Step("decode_llama_8b_16384", _LARGE, layers=8, length=16384, position=16000),
    Step("decode_llama_8b_int4", _LARGE, layers=8, has_int4=True),
    Step("decode_llama_1b_batch_8", _LLAMA, batch=8),
    Step("decode_llama_1b_batch_32", _LLAMA, batch=32),
    Step("prefill_llama_1b_512", _LLAMA, position=0, tokens=512),
    Step("prefill_llama_1b_512_symbolic", _LLAMA, position=0, tokens=512, is_symbolic=True),
    Step("prefill_llama_1b_4096", _LLAMA, length=4096, position=0, tokens=4096),
)
