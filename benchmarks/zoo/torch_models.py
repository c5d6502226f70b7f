"""The zoo's exported models as PyTorch modules: configurations of transformers and diffusers.

Needs the extra ``zoo``. Nothing is downloaded; weights are random, yet scaled so that activations
neither vanish nor explode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Build = Callable[[], tuple[nn.Module, dict[str, Tensor]]]


@dataclass(frozen=True)
class TorchModel:
    """A module with what an exporter needs to know."""

    # In evaluation mode; returns one tensor, wrapped in the library's output class.
    module: nn.Module
    inputs: dict[str, Tensor]  # example keyword arguments, batch 1
    output: str  # name of the output
    # Names of the symbolic dimensions per input, in the format of ``torch.onnx.export``.
    dynamic_shapes: dict[str, dict[int, str]] | None = None


@dataclass(frozen=True)
class _Spec:
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    output: str = "logits"
    dynamic_shapes: dict[str, dict[int, str]] | None = field(default=None)


def _ids(vocabulary: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(vocabulary, (1, 128))}


def _masked_ids() -> dict[str, Tensor]:
    mask = torch.ones(1, 128, dtype=torch.int64)
    mask[:, 112:] = 0
    return {**_ids(30522), "attention_mask": mask}


def image() -> dict[str, Tensor]:
    """Draw what such a classifier takes."""
    return {"pixel_values": torch.randn(1, 3, 224, 224)}


def _sample() -> dict[str, Tensor]:
    return {"sample": torch.randn(1, 3, 32, 32), "timestep": torch.tensor([10])}


def _bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)


def _gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def _efficientnet() -> nn.Module:
    # B0's widths. The pooler is an AvgPool2d as wide as hidden_dim, far wider than its input.
    config = transformers.EfficientNetConfig(
        width_coefficient=1.0,
        depth_coefficient=1.0,
        image_size=224,
        hidden_dim=1280,
    )
    config.num_labels = 1000
    return transformers.EfficientNetForImageClassification(config)


def classifier(architecture: str) -> Callable[[], nn.Module]:
    """Make an image classifier of transformers' with 1,000 labels and its default sizes."""

    def build() -> nn.Module:
        config = getattr(transformers, f"{architecture}Config")(num_labels=1000)
        return getattr(transformers, f"{architecture}ForImageClassification")(config)

    return build


def _unet2d() -> nn.Module:
    import diffusers  # a heavy package that one model needs

    return diffusers.UNet2DModel(
        sample_size=32,
        layers_per_block=1,
        block_out_channels=(64, 128, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )


_HIDDEN = "last_hidden_state"
_SPECS = {
    "bert_base": _Spec(_bert, _masked_ids, _HIDDEN),
    "bert_base_dyn": _Spec(
        _bert, _masked_ids, _HIDDEN, {"input_ids": {1: "seq"}, "attention_mask": {1: "seq"}}
    ),
    "convnext_tiny": _Spec(classifier("ConvNext"), image),
    "efficientnet_b0": _Spec(_efficientnet, image),
    "gpt2": _Spec(_gpt2, lambda: _ids(50257)),
    "llama_4l": _Spec(_llama, lambda: _ids(32000)),
    "mobilenet_v2": _Spec(classifier("MobileNetV2"), image),
    "resnet50": _Spec(classifier("ResNet"), image),
    "segformer_b0": _Spec(classifier("Segformer"), image),
    "swin_tiny": _Spec(classifier("Swin"), image),
    "t5_small_enc": _Spec(
        lambda: transformers.T5EncoderModel(transformers.T5Config()), lambda: _ids(32128), _HIDDEN
    ),
    "unet2d": _Spec(_unet2d, _sample, "sample_out"),
    "vit_b16": _Spec(classifier("ViT"), image),
}
NAMES = tuple(_SPECS)


def build(name: str, seed: int = 0) -> TorchModel:
    """Build a module with seeded weights and example inputs.

    Parameters
    ----------
    name
        One of :data:`NAMES`.
    seed
        Seeds torch's generator, and so weights and inputs.

    Returns
    -------
    TorchModel
        Its parameters need no gradient: with gradients, exporting T5 fails on a view of transposed
        attention output.
    """
    spec = _SPECS[name]
    torch.manual_seed(seed)
    module = spec.build().eval().requires_grad_(False)
    inputs = spec.inputs()
    _seed_vectors(module)
    _unit_variance(module, inputs)
    return TorchModel(module, inputs, spec.output, spec.dynamic_shapes)


def _seed_vectors(module: nn.Module) -> None:
    """Set everything that is not a weight matrix to values other than the neutral ones."""
    tensors: dict[str, Any] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in tensors.items():
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "running_var":
            tensor.uniform_(0.5, 1.5)
        elif leaf in ("bias", "running_mean", "relative_position_bias_table"):
            tensor.normal_(0.0, 0.1)
        elif tensor.ndim == 1 and leaf in ("weight", "layer_scale_parameter"):
            tensor.normal_(1.0, 0.1)


@torch.no_grad()
def _unit_variance(module: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Scale each layer's weight so that its output has unit variance on the example.

    Layer-sequential unit variance (Mishkin and Matas 2016), in a single forward pass.
    """

    def rescale(layer: nn.Module, args: Any, out: Tensor) -> Tensor:
        std = out.std()
        for parameter in layer.parameters():
            parameter /= std
        return out / std

    shared = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    layers = [
        layer
        for layer in module.modules()
        if isinstance(weight := getattr(layer, "weight", None), Tensor)
        and weight.ndim > 1
        and id(weight) not in shared
    ]
    hooks = [layer.register_forward_hook(rescale) for layer in layers]
    module(**inputs)
    for hook in hooks:
        hook.remove()
