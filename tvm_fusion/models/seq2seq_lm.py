"""Encoder, prefill and decode of an encoder and decoder of transformers, over caches of fixed size.

The keys and values of cross-attention are caches, too: ``encode`` writes them, once for a source.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from .programs import Programs, check, exported
from .static_cache import State, is_counted, name_of_cache, static_cache, with_buffers


def seq2seq_lm(
    model: Any,
    max_length: int,
    source_length: int | None = None,
    *,
    batch: int = 1,
    chunk: int | None = None,
    strict: bool = False,
) -> Programs:
    """Export an encoder and decoder of transformers for :func:`tvm_fusion.compile` and sessions.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Such as T5ForConditionalGeneration, in evaluation mode, on the CPU.
    max_length
        Positions of the decoder.
    source_length
        Tokens of the encoder, those that ``attention_mask`` leaves out included. Of a model of
        audio, the configuration says how many frames there are.
    batch, chunk, strict
        As of :func:`tvm_fusion.models.causal_lm`.

    Returns
    -------
    Programs
        ``encode``, of ``input_ids`` and ``attention_mask`` of ``(batch, source_length)``, or of
        ``input_features``; ``prefill`` and ``decode`` of the decoder's ``input_ids``, as those of
        :func:`tvm_fusion.models.causal_lm`.

    Raises
    ------
    UserError
        For a model without an encoder, and sizes that it does not have.
    """
    sizes = {"max_length": (max_length, 3), "batch": (batch, 1), "chunk": (chunk, 3)}
    check(model, True, {**sizes, "source_length": (source_length, 1)})
    given = _given(model, source_length, batch)
    decoder = _Decoder(model, max_length, given)
    programs = {
        "encode": exported(_Encoder(decoder), {**given, "source": decoder.source}, strict),
        "prefill": decoder.program(3, strict, up_to=min(chunk or 512, max_length)),
        "decode": decoder.program(1, strict),
    }
    of_source = [f"source_{name}" for name in decoder.source]
    return Programs(programs, (*decoder.names, *of_source))


def _given(model: Any, length: int | None, batch: int) -> dict[str, Tensor]:
    """Make an example of what the encoder takes."""
    config = model.config
    if model.main_input_name == "input_features":
        frames = 2 * config.max_source_positions
        return {"input_features": torch.zeros(batch, config.num_mel_bins, frames)}
    ids = torch.zeros(batch, length or 512, dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class _Decoder(nn.Module):
    """The decoder over tokens at positions; its caches are buffers, those of the source inputs.

    Parameters
    ----------
    given
        An example of what the encoder takes.

    Attributes
    ----------
    names : tuple of str
        Of the buffers.
    source : dict of str to Tensor
        Empty caches of the source.
    """

    def __init__(self, model: Any, max_length: int, given: dict[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        self._batch = next(iter(given.values())).shape[0]
        layers = getattr(model.get_decoder(), "layers", None) or model.get_decoder().block
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = len(layers)
        self._cache = EncoderDecoderCache(static_cache(model, config, max_length), DynamicCache())
        with torch.no_grad():  # makes the tensors, in the shapes and types that the model has
            hidden = model.get_encoder()(**given).last_hidden_state
            self.step(torch.zeros(self._batch, 1, dtype=torch.int64), self._cache, hidden)
        self._hidden = tuple(hidden.shape)
        self._own = with_buffers(self, self._cache.self_attention_cache)
        self.names = tuple(state.name for state in self._own)
        self._of_source = states_of_source(self._cache)
        self.source = {s.name: torch.zeros_like(s.read()) for s in self._of_source}
        if "attention_mask" in given:
            self.source["mask"] = torch.zeros_like(given["attention_mask"])

    def step(self, input_ids: Tensor, cache: Any, hidden: Tensor, mask: Any = None) -> Any:
        """Call the model."""
        return self.model(
            decoder_input_ids=input_ids,
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            use_cache=True,
            **{name_of_cache(self.model): cache},
            **({} if mask is None else {"attention_mask": mask}),
        )

    def forward(
        self, input_ids: Tensor, position: Tensor, source: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the logits of the last token; the caches hold all tokens then."""
        for state in self._own:
            state.write(getattr(self, state.name))
        for state in self._of_source:
            state.write(source[state.name])
        for layer in filter(is_counted, self._cache.self_attention_cache.layers):
            vars(layer)["cumulative_length"] = position[0].clone()
        # The shape of what the encoder returned alone counts: keys and values are there.
        hidden = source["keys_0"].new_zeros(self._hidden)
        outputs = self.step(input_ids, self._cache, hidden, source.get("mask"))
        return {"logits": outputs.logits[:, -1]}

    def program(self, tokens: int, strict: bool, up_to: int = 0) -> ExportedProgram:
        """Export the step of so many tokens, or of 2 to another number of them."""
        inputs: dict[str, Any] = {"input_ids": torch.zeros(self._batch, tokens, dtype=torch.int64)}
        inputs |= {"position": torch.zeros(1, dtype=torch.int64), "source": self.source}
        return exported(self, inputs, strict, tokens=up_to)


def states_of_source(cache: EncoderDecoderCache) -> list[State]:
    """List the keys and values that a decoder's layers made of an encoder's states."""
    return [
        State(f"{kind}_{number}", layer, kind)
        for number, layer in enumerate(cache.cross_attention_cache.layers)
        for kind in ("keys", "values")
    ]


class _Encoder(nn.Module):
    """The encoder, and the keys and values that the decoder's layers make of what it returns."""

    def __init__(self, decoder: _Decoder) -> None:
        super().__init__()
        self._steps = decoder
        self.model = decoder.model

    def forward(
        self,
        source: dict[str, Tensor],
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_features: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Write the caches of a source; return what the encoder returns."""
        given = {"input_features": input_features}
        if input_features is None:
            given = {"input_ids": input_ids, "attention_mask": attention_mask}
        hidden = self.model.get_encoder()(**given).last_hidden_state
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        first = torch.zeros(hidden.shape[0], 1, dtype=torch.int64)
        self._steps.step(first, cache, hidden, attention_mask)
        for state in states_of_source(cache):
            source[state.name].copy_(state.read())
        if attention_mask is not None:
            source["mask"].copy_(attention_mask)
        return {"encoder_states": hidden}
