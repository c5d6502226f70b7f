"""The models: those of the zoo, and two architectures that once did not compile in bfloat16."""

from collections.abc import Callable, Mapping

import torch
import transformers
from torch import Tensor, nn

from benchmarks.zoo import torch_models

Example = tuple[nn.Module, dict[str, Tensor]]


class OneTensor(nn.Module):
    """A model that returns one tensor instead of its library's output class."""

    def __init__(self, module: nn.Module, names: list[str]):
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *tensors: Tensor) -> Tensor:
        """Call the model with its arguments by name."""
        result = self.module(**dict(zip(self.names, tensors, strict=True)))
        return result if isinstance(result, Tensor) else result[0]


def _qwen2() -> Example:
    config = transformers.Qwen2Config(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
    )
    ids = {"input_ids": torch.randint(config.vocab_size, (1, 64))}
    return transformers.Qwen2ForCausalLM(config), ids


def _classifier(architecture: str) -> Example:
    return torch_models.classifier(architecture)(), torch_models.image()


OTHERS: Mapping[str, Callable[[], Example]] = {
    "qwen2": _qwen2,
    "convnext_v2": lambda: _classifier("ConvNextV2"),
}
NAMES = (*(n for n in torch_models.NAMES if not n.endswith("_dyn")), *OTHERS)


def build(name: str) -> tuple[OneTensor, tuple[Tensor, ...]]:
    """Build a model in evaluation mode with seeded weights, and its example inputs, in float32.

    Parameters
    ----------
    name
        One of :data:`NAMES`.
    """
    if name in OTHERS:
        torch.manual_seed(0)
        module, inputs = OTHERS[name]()
    else:
        model = torch_models.build(name)
        module, inputs = model.module, model.inputs
    module.eval().requires_grad_(False)
    return OneTensor(module, list(inputs)), tuple(inputs.values())
