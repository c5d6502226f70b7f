"""What is asked of the counts: floors must be met, stretches are the aim."""

from dataclasses import dataclass

#: Launches are asked for here.
GPU = "cuda:sm_90a"
#: The floor under intermediates holds here: stock TVM's kernels for CPUs hide buffers in PrimFuncs,
#: those for GPUs hide none. What transformers keep on a GPU is mostly results of matrix products.
CPU = "cpu"
TRANSFORMER_BYTES = 0.4


@dataclass(frozen=True)
class Figures:
    """What is asked of one model of the zoo."""

    # Most launches, and loop nests on a CPU; without it, stock TVM's count of launches.
    launches: int | None = None
    stretch: int | None = None  # launches aimed at
    # Whether to be strictly below stock TVM's launches; otherwise not above them.
    fewer: bool = True
    # Most intermediate bytes on a CPU, as a part of stock TVM's; on a GPU the aim.
    bytes_ratio: float = 1.0

    def launch_floor(self, stock: int) -> int:
        """Return the most launches that meet the floor."""
        limit = stock - 1 if self.fewer else stock
        return limit if self.launches is None else min(limit, self.launches)

    def bytes_floor(self, target: str) -> float:
        """Return the largest ratio to stock TVM's intermediate bytes that meets the floor."""
        return self.bytes_ratio if target == CPU else 1.0


def _layers(launches: int) -> Figures:
    """Twelve layers of attention and two products; a norm inside a product would make it 63."""
    return Figures(launches=launches, stretch=63, bytes_ratio=TRANSFORMER_BYTES)


_TRANSFORMER = Figures(bytes_ratio=TRANSFORMER_BYTES)
#: By model of the zoo. In MobileNetV2 and ResNet-50 every kernel of stock TVM's is a convolution
#: with its epilogue, but for the head.
MODELS: dict[str, Figures] = {
    "bert_base": _layers(88),
    "gpt2": _layers(89),
    "vit_b16": _layers(90),
    "t5_small_enc": _TRANSFORMER,
    "llama_4l": _TRANSFORMER,
    "mobilenet_v2": Figures(fewer=False),
    "resnet50": Figures(fewer=False),
    "efficientnet_b0": Figures(),
    "convnext_tiny": Figures(),
    "unet2d": Figures(),
}
