"""Prefill and decode of a decoder of transformers, exported over caches of fixed size."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from transformers.cache_utils import LinearAttentionLayer

from ..errors import UserError
from .byte_cache import LARGEST
from .latent_attention import absorbed
from .programs import Programs, check, exported
from .static_cache import is_counted, name_of_cache, static_cache, with_buffers
from .window import WindowLayer

_RECURRENT_CHUNK = 16
_SUITED = "a model that transformers computes with a StaticCache as without one"
_MOST_ERROR = 0.2  # of logits, of their range: half types may choose other experts


def causal_lm(
    model: Any,
    max_length: int,
    *,
    batch: int = 1,
    chunk: int | None = None,
    strict: bool = False,
    cache_dtype: str | None = None,
    greedy: bool = False,
) -> Programs:
    """Export a decoder of transformers for :func:`tvm_fusion.compile` and sessions.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        One for causal language modelling, in evaluation mode, on the CPU.
    max_length
        Positions of the caches: prompt and generated tokens together. Layers of sliding-window
        attention keep the window alone, and recurrent layers their state.
    batch
        Sequences that advance together. Sequences of lengths of their own have sessions of their
        own.
    chunk
        Most tokens of one call of ``prefill``, by default 512; sessions split longer prompts. With
        recurrent layers, which transformers unrolls over time, it is the number of tokens of each
        call, by default 16, and sessions decode what is left.
    strict
        As of ``torch.export.export``.
    cache_dtype : {"int8", "float8_e4m3fn"}, optional
        Type of keys and values in the caches, with a scale of each position and head; by default
        the model's. Layers that keep a sliding window of fewer positions have the model's.
    greedy
        Whether programs return the most likely ``token`` instead of ``logits``.

    Returns
    -------
    Programs
        ``prefill``, of ``input_ids`` of ``(batch, tokens)`` from 2 to ``chunk`` tokens, and
        ``decode``, of one. Both take ``position``, that of the first token, where the model has
        positions, and return ``logits`` of the last token, or ``token`` of ``(batch, 1)``.

    Raises
    ------
    UserError
        For a model that is no decoder, sizes that it does not have, layers whose caches have no
        fixed size, and models that transformers computes wrongly with caches of fixed size.

    Examples
    --------
    >>> lm = tvm_fusion.models.causal_lm(model, max_length=2048)
    >>> artifact = tvm_fusion.compile(lm, in_place=lm.caches)
    >>> session = tvm_fusion.load(artifact).session()
    >>> logits = session.prefill(ids)["logits"]
    >>> logits = session.decode(logits.argmax(-1)[:, None])["logits"]
    """
    sizes = {"max_length": (max_length, 3), "batch": (batch, 1), "chunk": (chunk, 3)}
    check(model, False, sizes)
    if cache_dtype not in (None, *LARGEST):
        raise UserError(f"cache_dtype {cache_dtype!r}", f"one of {', '.join(LARGEST)}, or None")
    with _refused(model):
        step = _Step(model, max_length, batch, cache_dtype, greedy)
        windows = [layer.max_cache_len for layer in step.layers if isinstance(layer, WindowLayer)]
        most = min([chunk or 512, max_length, *windows])
        if any(isinstance(layer, LinearAttentionLayer) for layer in step.layers):
            prefill = step.program(min(most, chunk or _RECURRENT_CHUNK), strict)
        else:
            prefill = step.program(3, strict, up_to=most)
        with _few_experts(model, batch), absorbed(model):
            decode = step.program(1, strict)
    return Programs({"prefill": prefill, "decode": decode}, step.names)


@contextlib.contextmanager
def _refused(model: Any) -> Iterator[None]:
    """Tell in a sentence what a model of transformers raises over a cache of fixed size."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise UserError(
            f"{type(model).__name__} fails with a cache of fixed size ({reason})", _SUITED
        ) from error


@contextlib.contextmanager
def _few_experts(model: Any, tokens: int) -> Iterator[None]:
    """Let so few tokens that experts have one each multiply the matrices of theirs.

    More are sorted by their experts, which takes several kernels, and each matrix is read once.
    """
    config = model.config.get_text_config()
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((count for n in names if (count := getattr(config, n, None))), 0)
    before = getattr(config, "_experts_implementation", None)
    if before is None or tokens * getattr(config, "num_experts_per_tok", 1) > experts:
        yield
        return
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


class _Step(nn.Module):
    """A model over tokens at positions, whose caches are buffers of this module."""

    def __init__(
        self, model: Any, max_length: int, batch: int, cache_dtype: str | None, greedy: bool
    ) -> None:
        super().__init__()
        self.model, self._batch, self._greedy = model, batch, greedy
        self._takes = inspect.signature(model.forward).parameters
        # Positions whose bias is a sum with the mask (ALiBi) are those that the mask has.
        has_bias = getattr(model.config, "alibi", False)
        self._mask = torch.ones(batch, max_length) if has_bias else None
        self._cache = static_cache(model, model.config, max_length)
        with torch.no_grad():
            self._compare()
        self._cache = static_cache(model, model.config, max_length, cache_dtype)
        self.layers = self._cache.layers
        self._has_positions = "position_ids" in self._takes or any(map(is_counted, self.layers))
        first = torch.zeros(batch, 1, dtype=torch.int64)
        with torch.no_grad():  # makes the tensors, in the shapes and types that the model has
            model(**self._arguments(first, torch.zeros(1, dtype=torch.int64)))
        self._states = with_buffers(self, self._cache)
        self.names = tuple(state.name for state in self._states)

    def _compare(self) -> None:
        """Refuse a model whose logits depend on the kind of its cache, or on more than that."""
        model, size = self.model, self.model.config.get_text_config().vocab_size
        ids = (torch.arange(3 * self._batch) % size).reshape(self._batch, 3)
        want = model(input_ids=ids, use_cache=False).logits[:, -1]
        before = _kept(model)
        model(**self._arguments(ids[:, :2], torch.tensor([0])))
        found = model(**self._arguments(ids[:, 2:], torch.tensor([2]))).logits[:, -1]
        name = type(model).__name__
        if changed := sorted(set(_kept(model) - before)):
            raise UserError(f"{name} keeps states in its modules ({changed[0][0]})", _SUITED)
        error = (found - want).abs().max() / (want.max() - want.min())
        if error > _MOST_ERROR:
            raise UserError(
                f"logits of {name} with a cache of fixed size are off by {error:.0%} of their "
                "range",
                _SUITED,
            )

    def forward(self, input_ids: Tensor, position: Tensor | None = None) -> dict[str, Tensor]:
        """Return the logits of the last token, or the next; the caches hold all tokens then."""
        for state in self._states:
            state.write(getattr(self, state.name))
        if position is not None:
            for layer in filter(is_counted, self.layers):
                layer.cumulative_length = position[0].clone()
        logits = self.model(**self._arguments(input_ids, position)).logits[:, -1]
        return {"token": logits.argmax(-1, keepdim=True)} if self._greedy else {"logits": logits}

    def _arguments(self, input_ids: Tensor, position: Tensor | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"input_ids": input_ids, "use_cache": True}
        arguments[name_of_cache(self.model)] = self._cache
        if "position_ids" in self._takes and position is not None:
            numbers = position + torch.arange(input_ids.shape[1], device=position.device)
            arguments["position_ids"] = numbers[None].expand(self._batch, -1)
        if self._mask is not None:
            arguments["attention_mask"] = self._mask
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        return arguments

    def program(self, tokens: int, strict: bool, up_to: int = 0) -> ExportedProgram:
        """Export the step of so many tokens, or of 2 to another number of them."""
        inputs = {"input_ids": torch.zeros(self._batch, tokens, dtype=torch.int64)}
        if self._has_positions:
            inputs["position"] = torch.zeros(1, dtype=torch.int64)
        return exported(self, inputs, strict, tokens=up_to)


def _kept(model: nn.Module) -> set[tuple[str, int]]:
    """Identify the tensors that modules have beside their parameters and buffers."""
    return {
        (f"{path}.{name}", id(value))
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    }
