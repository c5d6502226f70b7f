"""Caches of fixed size for models of transformers, and the tensors in them."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import cache_utils
from transformers.cache_utils import LinearAttentionLayer, StaticLayer, StaticSlidingWindowLayer

from ..errors import UserError
from .byte_cache import ByteLayer
from .window import WindowLayer

_FIXED: tuple[type, ...] = (StaticLayer, LinearAttentionLayer)
# Of layers without a cache; transformers 5.17 has no class of that name.
if hasattr(cache_utils, "DummyLayer"):
    _FIXED = (*_FIXED, cache_utils.DummyLayer)


@dataclass(frozen=True)
class State:
    """A tensor of the cache that is a buffer of the exported module.

    Attributes
    ----------
    name
        Of the buffer: ``keys_0``.
    holder, key : object, str, or dict, int
        Where the cache's layer reads it: its attribute, or an entry of its states.
    """

    name: str
    holder: Any
    key: Any

    def read(self) -> Tensor:
        """Return the tensor that the cache has."""
        if isinstance(self.holder, dict):
            return self.holder[self.key]
        return getattr(self.holder, self.key)

    def write(self, tensor: Tensor) -> None:
        """Let the cache have another tensor."""
        if isinstance(self.holder, dict):
            self.holder[self.key] = tensor
        else:
            setattr(self.holder, self.key, tensor)


def static_cache(model: Any, config: Any, max_length: int, dtype: str | None = None) -> Any:
    """Make a model's cache of fixed size.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        What to call in errors.
    config : transformers.PretrainedConfig
        Of the layers that have a cache.
    dtype
        Of :data:`.byte_cache.LARGEST`, for layers that hold all positions.

    Raises
    ------
    UserError
        For a layer whose cache has none.
    """
    cache = transformers.StaticCache(config=config, max_cache_len=max_length)
    for number, layer in enumerate(cache.layers):
        if type(layer) is StaticSlidingWindowLayer:
            fits = layer.max_cache_len >= max_length
            cache.layers[number] = (StaticLayer if fits else WindowLayer)(layer.max_cache_len)
        elif not isinstance(layer, _FIXED) or isinstance(layer, StaticSlidingWindowLayer):
            raise UserError(
                f"layer {number} of {type(model).__name__} has a cache of type "
                f"{type(layer).__name__}",
                "attention, sliding-window attention, convolutions and recurrent states",
            )
        if dtype is not None and type(cache.layers[number]) is StaticLayer:
            cache.layers[number] = ByteLayer(layer.max_cache_len, dtype)
    return cache


def states_of(cache: Any) -> Iterator[State]:
    """Yield the tensors of a cache that has seen a token."""
    for number, layer in enumerate(cache.layers):
        if is_counted(layer) and layer.is_initialized:
            yield State(f"keys_{number}", layer, "keys")
            yield State(f"values_{number}", layer, "values")
            if isinstance(layer, ByteLayer):
                yield State(f"key_scales_{number}", layer, "key_scales")
                yield State(f"value_scales_{number}", layer, "value_scales")
        for kind in ("conv_states", "recurrent_states"):
            tensors = getattr(layer, kind, {})
            for place, tensor in tensors.items():
                if tensor is not None:
                    behind = f"_{place}" if len(tensors) > 1 else ""
                    yield State(f"{kind}_{number}{behind}", tensors, place)


def with_buffers(module: nn.Module, cache: Any) -> list[State]:
    """Register a module's buffers for the tensors of a cache that has seen a token."""
    states = list(states_of(cache))
    for state in states:
        module.register_buffer(state.name, torch.zeros_like(state.read()))
    return states


def is_counted(layer: Any) -> bool:
    """Whether a layer writes at positions, which it counts."""
    return isinstance(layer, StaticLayer)


def name_of_cache(model: Any) -> str:
    """Tell what a model calls its cache: releases of transformers differ."""
    takes = inspect.signature(model.forward).parameters
    return next(name for name in ("cache", "past_key_values", "cache_params") if name in takes)
