"""Programs of one model, as :func:`tvm_fusion.compile` takes them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_map

from ..errors import UserError, whole_number


@dataclass(frozen=True)
class Programs(Mapping[str, ExportedProgram]):
    """Programs of one model by name, as :func:`tvm_fusion.compile` takes them."""

    programs: Mapping[str, ExportedProgram]  # over the same weights and caches
    # Inputs that the programs write to: ``in_place`` of :func:`tvm_fusion.compile`.
    caches: tuple[str, ...]

    def __getitem__(self, name: str) -> ExportedProgram:
        """Return a program."""
        return self.programs[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the programs' names."""
        return iter(self.programs)

    def __len__(self) -> int:
        """Count the programs."""
        return len(self.programs)


def exported(
    module: nn.Module, inputs: dict[str, Any], strict: bool, tokens: int = 0
) -> ExportedProgram:
    """Export a module by the names of its inputs.

    Parameters
    ----------
    tokens
        The most of ``input_ids``, of which there are 2 at least; 0 for as many as are given.
    """
    shapes = tree_map(lambda _: {}, inputs)
    if tokens:
        shapes["input_ids"][1] = Dim("tokens", min=2, max=tokens)
    with torch.no_grad():
        return torch.export.export(
            module,
            (),
            inputs,
            dynamic_shapes=shapes,
            strict=strict,
            # Guards that hold for all sizes, but that torch cannot prove.
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def check(model: Any, is_encoder_decoder: bool, sizes: dict[str, tuple[int | None, int]]) -> None:
    """Check a model and the sizes that it is exported for.

    Parameters
    ----------
    sizes
        By name, a size or None, and the least one.

    Raises
    ------
    UserError
        For a model of another kind or in training mode, and for sizes that it does not have.
    """
    if not isinstance(model, transformers.PreTrainedModel) or not model.can_generate():
        raise UserError(
            f"a model of type {type(model).__name__}",
            "a model of transformers that generates text, such as LlamaForCausalLM",
        )
    if model.config.is_encoder_decoder != is_encoder_decoder:
        kinds = ("a decoder alone", "an encoder and a decoder")
        instead = ("causal_lm", "seq2seq_lm")[not is_encoder_decoder]
        raise UserError(
            f"{type(model).__name__}, which has {kinds[not is_encoder_decoder]}",
            kinds[is_encoder_decoder],
            f"use tvm_fusion.models.{instead}",
        )
    if model.training:
        raise UserError("a model in training mode", "evaluation mode", "call model.eval()")
    for name, (value, least) in sizes.items():
        if value is not None:
            whole_number(name, value, least)
    config = model.config.get_text_config(decoder=True)
    names = ("max_target_positions", "max_position_embeddings")
    max_length, _ = sizes["max_length"]
    for name in names:
        most = getattr(config, name, None)
        if most is not None:
            if max_length is not None and max_length > most:
                raise UserError(
                    f"max_length {max_length} of a model of {most} positions ({name})",
                    f"at most {most}",
                )
            return
