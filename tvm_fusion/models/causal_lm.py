"""Prefill and decode of a decoder of transformers, exported over caches of fixed size."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import (
    DummyLayer,
    LinearAttentionLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from ..errors import UserError
from .window import WindowLayer

_RECURRENT_CHUNK = 16


@dataclass(frozen=True)
class Programs(Mapping[str, ExportedProgram]):
    """Programs of one model by name, as :func:`tvm_fusion.compile` takes them.

    Attributes
    ----------
    programs : dict of str to ExportedProgram
        Over the same weights and caches.
    caches : tuple of str
        Inputs that the programs write to: ``in_place`` of :func:`tvm_fusion.compile`.
    """

    programs: Mapping[str, ExportedProgram]
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


def causal_lm(
    model: Any,
    max_length: int,
    *,
    batch: int = 1,
    chunk: int | None = None,
    strict: bool = False,
) -> Programs:
    """Export a decoder of transformers for :func:`tvm_fusion.compile` and sessions.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        One for causal language modelling, in evaluation mode, on the CPU.
    max_length : int
        Positions of the caches: prompt and generated tokens together. Layers of sliding-window
        attention keep the window alone, and recurrent layers their state.
    batch : int
        Sequences that advance together. Sequences of lengths of their own have sessions of their
        own.
    chunk : int, optional
        Most tokens of one call of ``prefill``, by default 512; sessions split longer prompts. With
        recurrent layers, which transformers unrolls over time, it is the number of tokens of each
        call, by default 16, and sessions decode what is left.
    strict : bool
        As of ``torch.export.export``.

    Returns
    -------
    Programs
        ``prefill``, of ``input_ids`` of ``(batch, tokens)`` from 2 to ``chunk`` tokens, and
        ``decode``, of one. Both take ``position``, that of the first token, where the model has
        positions, and return ``logits`` of the last token.

    Raises
    ------
    UserError
        For a model that is no decoder, sizes that it does not have, and layers whose caches have
        no fixed size.

    Examples
    --------
    >>> lm = tvm_fusion.models.causal_lm(model, max_length=2048)
    >>> artifact = tvm_fusion.compile(lm, in_place=lm.caches)
    >>> session = tvm_fusion.load(artifact).session()
    >>> logits = session.prefill(ids)["logits"]
    >>> logits = session.decode(logits.argmax(-1)[:, None])["logits"]
    """
    _check(model, max_length, batch, chunk)
    step = _Step(model, max_length, batch)
    windows = [layer.max_cache_len for layer in step.layers if isinstance(layer, WindowLayer)]
    most = min([chunk or 512, max_length, *windows])
    if any(isinstance(layer, LinearAttentionLayer) for layer in step.layers):
        prefill = step.exported(min(most, chunk or _RECURRENT_CHUNK), strict)
    else:
        prefill = step.exported(3, strict, up_to=most)
    return Programs({"prefill": prefill, "decode": step.exported(1, strict)}, step.names)


def _check(model: Any, max_length: int, batch: int, chunk: int | None) -> None:
    if not isinstance(model, transformers.PreTrainedModel) or not model.can_generate():
        raise UserError(
            f"a model of type {type(model).__name__}",
            "a model of transformers that generates text, such as LlamaForCausalLM",
        )
    if model.config.is_encoder_decoder:
        raise UserError(
            f"{type(model).__name__}, which has an encoder and a decoder", "a decoder alone"
        )
    if model.training:
        raise UserError("a model in training mode", "evaluation mode", "call model.eval()")
    sizes = {"max_length": (max_length, 3), "batch": (batch, 1), "chunk": (chunk, 3)}
    for name, (value, least) in sizes.items():
        if value is not None and (not isinstance(value, int) or value < least):
            raise UserError(f"{name} {value!r}", f"a whole number from {least}")
    config = model.config.get_text_config(decoder=True)
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and max_length > most:
        raise UserError(
            f"max_length {max_length} of a model of {most} positions (max_position_embeddings)",
            f"at most {most}",
        )


@dataclass(frozen=True)
class _State:
    """A tensor of the cache that is a buffer of the exported module.

    Attributes
    ----------
    name : str
        Of the buffer: ``keys_0``.
    holder, key : dict, Hashable
        Where the cache's layer reads it.
    """

    name: str
    holder: dict[Any, Any]
    key: Any


class _Step(nn.Module):
    """A model over tokens at positions, whose caches are buffers of this module."""

    def __init__(self, model: Any, max_length: int, batch: int) -> None:
        super().__init__()
        self.model, self._batch = model, batch
        self._takes = inspect.signature(model.forward).parameters
        self._cache = cache_of(model, max_length)
        first = torch.zeros(batch, 1, dtype=torch.int64)
        with torch.no_grad():  # makes the tensors, in the shapes and types that the model has
            model(**self._arguments(first, torch.zeros(1, dtype=torch.int64)))
        self._states = list(states_of(self._cache))
        for state in self._states:
            self.register_buffer(state.name, torch.zeros_like(state.holder[state.key]))
        self.layers = self._cache.layers
        self.names = tuple(state.name for state in self._states)
        self.has_positions = "position_ids" in self._takes or any(map(_counted, self._cache.layers))

    def forward(self, input_ids: Tensor, position: Tensor | None = None) -> dict[str, Tensor]:
        """Return the logits of the last token; the caches hold all tokens."""
        for state in self._states:
            state.holder[state.key] = getattr(self, state.name)
        if position is not None:
            for layer in filter(_counted, self._cache.layers):
                layer.cumulative_length = position[0].clone()
        return {"logits": self.model(**self._arguments(input_ids, position)).logits[:, -1]}

    def _arguments(self, input_ids: Tensor, position: Tensor | None) -> dict[str, Any]:
        cache = next(
            name for name in ("cache", "past_key_values", "cache_params") if name in self._takes
        )
        arguments = {"input_ids": input_ids, "use_cache": True, cache: self._cache}
        if "position_ids" in self._takes and position is not None:
            numbers = position + torch.arange(input_ids.shape[1], device=position.device)
            arguments["position_ids"] = numbers[None].expand(self._batch, -1)
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        return arguments

    def exported(self, tokens: int, strict: bool, up_to: int = 0) -> ExportedProgram:
        """Export the step of so many tokens, or of 2 to another number of them."""
        inputs = {"input_ids": torch.zeros(self._batch, tokens, dtype=torch.int64)}
        shapes: dict[str, Any] = {"input_ids": {}}
        if up_to:
            shapes["input_ids"][1] = Dim("tokens", min=2, max=up_to)
        if self.has_positions:
            inputs["position"] = torch.zeros(1, dtype=torch.int64)
            shapes["position"] = {}
        with torch.no_grad():
            return torch.export.export(
                self,
                (),
                inputs,
                dynamic_shapes=shapes,
                strict=strict,
                # Guards that hold for all sizes, but that torch cannot prove.
                prefer_deferred_runtime_asserts_over_guards=True,
            )


def cache_of(model: Any, max_length: int) -> Any:
    """Make a model's cache of fixed size.

    Raises
    ------
    UserError
        For a layer whose cache has none.
    """
    cache = transformers.StaticCache(config=model.config, max_cache_len=max_length)
    for number, layer in enumerate(cache.layers):
        if type(layer) is StaticSlidingWindowLayer:
            fits = layer.max_cache_len >= max_length
            cache.layers[number] = (StaticLayer if fits else WindowLayer)(layer.max_cache_len)
        elif not isinstance(layer, (StaticLayer, LinearAttentionLayer, DummyLayer)) or isinstance(
            layer, StaticSlidingWindowLayer
        ):
            raise UserError(
                f"layer {number} of {type(model).__name__} has a cache of type "
                f"{type(layer).__name__}",
                "attention, sliding-window attention, convolutions and recurrent states",
            )
    return cache


def states_of(cache: Any) -> Iterator[_State]:
    """Yield the tensors of a cache that has seen a token."""
    for number, layer in enumerate(cache.layers):
        if _counted(layer) and layer.is_initialized:
            yield _State(f"keys_{number}", vars(layer), "keys")
            yield _State(f"values_{number}", vars(layer), "values")
        for kind in ("conv_states", "recurrent_states"):
            tensors = getattr(layer, kind, {})
            for place, tensor in tensors.items():
                if tensor is not None:
                    behind = f"_{place}" if len(tensors) > 1 else ""
                    yield _State(f"{kind}_{number}{behind}", tensors, place)


def _counted(layer: Any) -> bool:
    """Whether a layer writes at positions, which it counts."""
    return isinstance(layer, StaticLayer)
