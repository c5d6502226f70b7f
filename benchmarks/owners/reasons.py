"""Why special cases stay that no planned model uses, with the benchmark that has them."""

from typing import NamedTuple


class Reason(NamedTuple):
    """Where a special case is measured, or asked for, instead."""

    benchmark: str  # path of a file with rows that need it
    sentence: str  # what they are


_OPERATORS = "benchmarks/operators_onnx/README.md"
_TORCH = "benchmarks/operators_torch/README.md"
_WORKS = "benchmarks/gpu/works.py"
_FUSED = "benchmarks/gpu/FUSED_GEMMS.md"
_RECOMPOSE = "benchmarks/robustness/README.md"
_EXPERTS = "benchmarks/gpu/experts.py"
_DECODER = "benchmarks/gpu/decoder.py"
_CONVOLUTIONS = "benchmarks/gpu/convolutions.py"
_LITERATURE = "benchmarks/literature/README.md"

#: By kind and name. Laws have none: the page says of each whether it was applied.
REASONS: dict[str, dict[str, Reason]] = {
    "templates": {
        **{
            f"{kind}: {name}": Reason(benchmark, sentence)
            for name, benchmark, sentence in (
                ("prefix_sum", _OPERATORS, "CumSum and other scans"),
                ("recurrent", _OPERATORS, "LSTM, GRU and RNN"),
                ("rank_sort", _OPERATORS, "TopK and sorts"),
                ("single", _TORCH, "the fallback: operators that no other template claims"),
            )
            for kind in ("CPU", "GPU")
        },
        "CPU: grouped_gemm": Reason(_EXPERTS, "mixtures of experts: rows in groups"),
        "GPU: split_rows": Reason(_WORKS, "few long rows: group norm of images"),
        "GPU: row_contraction": Reason(_FUSED, "a norm and the product behind it"),
    },
    "forms": {
        "product: ragged rows": Reason(_EXPERTS, "mixtures of experts: rows in groups"),
        "product: grouped convolution": Reason(_CONVOLUTIONS, "grouped convolutions"),
        "product: weight along K": Reason(
            "benchmarks/robustness/README.md", "constant weights of products on AMD's matrix cores"
        ),
        "product: packed weight": Reason(
            _CONVOLUTIONS, "implicit GEMMs whose weight is packed first"
        ),
        "product: windows of pixels": Reason(_CONVOLUTIONS, "pooling behind a convolution"),
        "rows: extremum, then its index": Reason(_WORKS, "argmax and argmin"),
        "rows: a thread a row": Reason(_WORKS, "short rows"),
        "rows: groups of rows": Reason(_WORKS, "layer norms of rows that share vectors"),
        "rows: two blocks, read again": Reason(_WORKS, "rows beyond a block's registers"),
        "rows: a block, read again": Reason(_WORKS, "rows beyond registers and shared memory"),
        "rows: two launches, by pixels": Reason(_WORKS, "group norms of images"),
        "rows: two launches, by rows": Reason(_WORKS, "few long rows"),
        "attention: flash-decoding": Reason(_DECODER, "few queries: a decoder's step"),
        "attention: CUDA cores": Reason(_TORCH, "attention of float32"),
    },
    "patterns": {
        "log_softmax": Reason(_OPERATORS, "LogSoftmax as exporters write it"),
        "late_softmax": Reason(_LITERATURE, "attention that divides behind its second product"),
        "mish": Reason(_OPERATORS, "Mish"),
        "hard_swish": Reason(_OPERATORS, "HardSwish"),
        "instance_norm": Reason(_OPERATORS, "InstanceNormalization"),
        "softmax": Reason(_RECOMPOSE, "softmax that an exporter wrote out"),
        "shifted_softmax": Reason(_OPERATORS, "softmax with an attention sink, of GPT-OSS"),
        "layer_norm": Reason(_RECOMPOSE, "layer norm that an exporter wrote out"),
    },
    "passes": {
        "GreedyEquivalents": Reason(
            "benchmarks/rewriting/README.md", "the published search, which ours is compared with"
        ),
        "ByteProducts": Reason(
            "benchmarks/convolutions/LOW_PRECISION.md", "products of quantised tensors"
        ),
        "BatchMatmuls": Reason("benchmarks/rewriting/README.md", "independent products"),
        "NormStatistics": Reason(
            "benchmarks/gpu/FUSED_GEMMS.md", "norms of models that are exported in a half type"
        ),
        "SkipUnreadParts": Reason(
            "benchmarks/literature/README.md",
            "classifiers: one token of the last layer",
        ),
        "PeerSums": Reason("benchmarks/parallel/README.md", "sums over the workers of a decoder"),
        "TransposedConvByPhases": Reason(_OPERATORS, "ConvTranspose, on CPUs"),
        "RoundedActivations": Reason(
            "benchmarks/nbits/README.md", "activations of int8 with packed weights, on CPUs"
        ),
    },
}
