"""Models that prices were not fitted to, at their published widths.

Depths are those of the published model in models of stages; of equal layers there are twelve.
"""

import torch
from torch import Tensor, nn

from benchmarks.prices.models import MODELS as PRICED
from benchmarks.prices.models import Spec, decoder, encoder, vision
from benchmarks.robustness.model import Tensors

LAYERS = 12
_TABLE = (
    "qwen2 gemma2 gpt_neox opt bloom olmo2 starcoder2 electra albert esm squeezebert deit beit"
    " clip_vision siglip_vision swinv2 convnext efficientnet poolformer pvt hubert ast"
)
_WIDE = {"hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32000}

MODELS: dict[str, Spec] = {
    **{name: PRICED[name] for name in _TABLE.split()},
    "phi": decoder("Phi", **_WIDE, intermediate_size=4096),
    "gptj": decoder("GPTJ", 256, n_embd=1024, n_head=16, n_layer=LAYERS, vocab_size=32000),
    "cohere": decoder("Cohere", **_WIDE, intermediate_size=4096),
    "glm": decoder("Glm", **_WIDE, intermediate_size=4096, num_key_value_heads=2, head_dim=64),
    "convbert": encoder("ConvBert"),
    "layoutlm": encoder("LayoutLM"),
    "focalnet": vision("FocalNet", layers=""),
    "hiera": vision("Hiera", layers=""),
    "yolos": vision("Yolos", 512, image_size=[512, 512]),
    "mobilenet_v1": vision("MobileNetV1", layers=""),
}


def made(name: str, seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Build a model with seeded weights in float16, called with its inputs in order."""
    torch.manual_seed(seed)
    module, inputs = MODELS[name].build(LAYERS)
    wrapped = Tensors(module.eval().requires_grad_(False), list(inputs)).half()
    return wrapped, tuple(x.half() if x.is_floating_point() else x for x in inputs.values())
