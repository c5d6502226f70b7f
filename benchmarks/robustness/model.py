"""A module and its example inputs, with tensors alone on both sides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Example = tuple[nn.Module, dict[str, Tensor]]

#: Sizes that most configurations of transformers know; the others ignore them.
SIZES: Mapping[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 76,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}


class Tensors(nn.Module):
    """A model called with its arguments in order, which returns the tensors of its output."""

    def __init__(self, module: nn.Module, names: list[str]):
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the model with its arguments by name."""
        result = self.module(**dict(zip(self.names, tensors, strict=True)))
        return tuple(x for x in pytree.tree_leaves(result) if isinstance(x, Tensor))


@dataclass(frozen=True)
class Spec:
    """How a model is made."""

    build: Callable[[], Example]  # returns the module and its inputs by name
    parts: tuple[str, ...] = ()  # outputs to compare, by name; all of them when empty
    # Whether ``torch.export.draft_export`` makes the program, as torch advises where a model tests
    # values: the program has the branch that the example inputs take.
    is_draft: bool = False


class Parts(nn.Module):
    """A model of which some outputs are returned.

    Parameters
    ----------
    names
        Attributes of its output.
    """

    def __init__(self, module: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.module, self.names = module, names

    def forward(self, **inputs: Tensor) -> tuple[Any, ...]:
        """Call the model."""
        result = self.module(**inputs)
        return tuple(getattr(result, name) for name in self.names)


def pretrained(
    model: str, inputs: Callable[[], dict[str, Tensor]], *parts: str, **sizes: Any
) -> Spec:
    """Describe a model of transformers by the name of its class, and sizes of its configuration.

    A size that is ``None`` is left out.
    """

    def build() -> Example:
        kind = getattr(transformers, model)
        given = {**SIZES, **sizes}
        return kind(
            kind.config_class(**{k: v for k, v in given.items() if v is not None})
        ), inputs()

    return Spec(build, parts)


def ids(*shape: int, vocabulary: int = 99) -> Tensor:
    """Draw token identifiers, none of them special."""
    return torch.randint(3, vocabulary, shape)


def tokens() -> dict[str, Tensor]:
    """Draw two sequences of 13 tokens."""
    return {"input_ids": ids(2, 13)}


def masked() -> dict[str, Tensor]:
    """Draw two sequences of 13 tokens, the second one padded."""
    mask = torch.ones(2, 13, dtype=torch.int64)
    mask[1, 9:] = 0
    return {**tokens(), "attention_mask": mask}


def pixels(*shape: int) -> Callable[[], dict[str, Tensor]]:
    """Return a function that draws images."""
    return lambda: {"pixel_values": torch.randn(*shape)}
