"""The models: published widths and depths, float32 weights that are drawn, batch 1."""

import torch
from torch import Tensor, nn

from benchmarks.prices.models import MODELS as PRICED
from benchmarks.prices.models import Spec, encoder, text
from benchmarks.robustness.model import Example, Tensors
from benchmarks.zoo.torch_models import build

LAYERS = 12


def _unet(_layers: int) -> Example:
    model = build("unet2d")
    return model.module, model.inputs


_TABLE = "bert resnet50 swin regnet distilbert vit convnext mobilenet_v2"
MODELS: dict[str, Spec] = {
    **{name: PRICED[name] for name in _TABLE.split()},
    "bert_512": encoder("Bert", text(512)),
    "unet": Spec(_unet),
}


def built(name: str, seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Build a model with seeded weights, called with its inputs in order."""
    torch.manual_seed(seed)
    module, inputs = MODELS[name].build(6 if name == "distilbert" else LAYERS)
    wrapped = Tensors(module.eval().requires_grad_(False), list(inputs))
    return wrapped, tuple(inputs.values())
