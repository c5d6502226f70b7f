"""The shapes that are swept: GEMMs and attention of models, narrow types, drawn ones, convolutions.

The models of GEMMs were fitted to some of them; ``HELD_OUT`` are of other models, and no fit saw
them.
"""

from benchmarks.gpu.attention import (
    ATTENTION,
    attention,
    causal_attention,
    gqa_attention,
    heads,
)
from benchmarks.gpu.catalog import works
from benchmarks.gpu.products import SHAPES, gemm
from benchmarks.gpu.works import Work

INDEX = "sweep.json"
SEED, COUNT = 6, 30  # of the catalog
LEAST_ROWS = 128  # fewer are those of skinny GEMM
OTHERS = (
    "float8_linear_512x4096x14336",
    "float8_linear_4096x4096x4096",
    "int8_linear_512x4096x14336",
    "drawn_gemm_30x3905x436_linear_bfloat16",
    "drawn_gemm_1980x92x2410_residual",
    "conv_1x128x28_128x3_relu",
    "conv_1x256x14_256x3_relu",
    "conv_1x512x7_512x3_relu",
    "conv_8x512x7_512x3_relu",
    "conv_2x1280x16_1280x3_residual",
    "conv_2x1280x8_1280x3",
)
# T5, CLIP's text, Whisper's encoder, GPT-2 medium, a small Mistral, Swin, and some that were drawn
# from another seed: rows, terms, columns.
HELD_OUT = tuple(
    gemm(*shape)
    for shape in (
        (128, 512, 2048, "gelu"),
        (128, 2048, 512, "residual"),
        (77, 512, 2048, "gelu"),
        (77, 2048, 512, "residual"),
        (1500, 768, 768, "bias"),
        (1500, 768, 3072, "gelu"),
        (1500, 3072, 768, "residual"),
        (256, 1024, 4096, "gelu"),
        (256, 4096, 1024, "residual"),
        (320, 1024, 1024, "residual"),
        (512, 2048, 7168, "linear"),
        (512, 7168, 2048, "residual"),
        (784, 192, 768, "gelu"),
        (196, 1536, 384, "residual"),
        (640, 640, 5120, "bias"),
        (2048, 1280, 1280, "residual"),
        (2294, 104, 1193, "bias"),
        (2964, 100, 1905, "gelu"),
        (1647, 22, 1290, "gelu"),
        (4945, 2306, 46, "residual"),
        (2317, 6074, 147, "residual", "bfloat16"),
    )
)


HEADS = (
    *(heads(2, 16, 2048, width, attention) for width in (64, 96, 256)),
    heads(1, 12, 1500, 64, attention),
    heads(4, 16, 1024, 128, attention),
    heads(4, 16, 1024, 64, causal_attention),
    heads(8, 16, 512, 128, causal_attention),
    heads(1, 32, 1024, 128, gqa_attention, kv_heads=8),
    heads(1, 32, 512, 128, gqa_attention, kv_heads=8),
    heads(1, 12, 512, 64, attention),
    heads(16, 12, 512, 64, attention),
    heads(1, 12, 1024, 64, causal_attention),
    heads(1, 16, 577, 80, attention),
)


def swept() -> dict[str, Work]:
    """List the works that are swept, by name."""
    known = {work.name: work for work in works(SEED, COUNT)}
    gemms = [gemm(*shape) for shape in SHAPES if shape[0] >= LEAST_ROWS]
    found = [*gemms, *ATTENTION, *HEADS, *(known[name] for name in OTHERS), *HELD_OUT]
    return {work.name: work for work in found}
