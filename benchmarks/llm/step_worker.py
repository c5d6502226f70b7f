"""One step of a language model in a process of its own: gets ready, waits for its turn, is timed.

Prints a line of JSON when it is ready, waits for a line, and prints another with the times.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import tvm_ffi
from torch import Tensor, nn

import tvm_fusion
from benchmarks.gpu.run import COPY_BYTES, captured, copies
from benchmarks.gpu.step import alternate
from benchmarks.gpu_models.profile import kernels
from benchmarks.gpu_models.worker import relative
from tvm_fusion.models.static_cache import name_of_cache, states_of, static_cache

from .models import drawn_on, pack_linear, touched
from .steps import STEPS, VARIANTS, Step

TARGET = "cuda:sm_90a"
OF_EAGER, LEAST = 3, 5e-3  # errors that half types explain
Side = Callable[[], Any]


class Ready:
    """A step compiled by us, and by PyTorch, over the same weights and caches.

    Attributes
    ----------
    sides : dict of str to callable
        What is timed.
    row : dict
        What is known before that: errors, kernels, seconds of compiling.
    """

    def __init__(self, step: Step, device: str = "cuda", target: str = TARGET) -> None:
        VARIANTS.get(step.variant, lambda: None)()
        self._step, self._device = step, device
        start = time.perf_counter()
        model = drawn_on(device, step.model, step.layers, step.vocabulary, step.length)
        if step.has_int4:
            pack_linear(model)
        self.row: dict[str, Any] = {
            "bytes": touched(model, step.position + step.tokens, step.batch)
        }
        self.row["draw_s"] = time.perf_counter() - start
        ours = self._ours(model, target)
        self._model = model.to(device)
        generator = torch.Generator(device).manual_seed(1)
        words, count = model.config.vocab_size, (step.batch, step.tokens)
        self._ids = torch.randint(3, words, count, generator=generator, device=device)
        self._position = torch.tensor([step.position], device=device)
        eager = _Eager(self._model, step)
        eager.call(self._ids, self._position)
        for cache in self._caches.values():
            cache.normal_(generator=generator)
        drawn = {name: cache.clone() for name, cache in self._caches.items()}
        self.sides: dict[str, Side] = {"ours": ours}
        for _ in range(3):  # results lie where these were
            torch.from_dlpack(ours()).fill_(float("nan"))
        found = self._results(torch.from_dlpack(ours()).clone(), self._caches)
        eager.fill(drawn)
        half = self._results(eager.call(self._ids, self._position), eager.caches)
        exact = _Eager(self._model.float(), step)
        exact.call(self._ids, self._position)
        exact.fill(drawn)
        wide = self._results(exact.call(self._ids, self._position), exact.caches)
        self._model.half()
        self.row["error"], self.row["of_eager"] = (
            {name: relative(some[name], wide[name].double()) for name in wide}
            for some in (found, half)
        )
        del exact, wide, half, found
        self.row["wrong"] = [
            f"{name}: an error of {error:.1e} against eager's {self.row['of_eager'][name]:.1e}"
            for name, error in self.row["error"].items()
            if not error <= max(LEAST, OF_EAGER * self.row["of_eager"][name])
        ]
        if step.has_rival and device != "cpu":
            self._compile(eager)

    def _ours(self, model: Any, target: str) -> Side:
        step, start = self._step, time.perf_counter()
        most = min(step.length, max(3, step.tokens))
        name = "decode" if step.tokens == 1 else "prefill"
        programs = tvm_fusion.models.causal_lm(model, step.length, batch=step.batch, chunk=most)
        self.row["export_s"] = time.perf_counter() - start
        start = time.perf_counter()
        bound = {"tokens": step.tokens} if step.tokens > 1 and not step.is_symbolic else {}
        artifact = tvm_fusion.compile(
            {name: programs[name]}, target, in_place=programs.caches, dims=bound
        )
        self.row["compile_s"] = time.perf_counter() - start
        entry = artifact.manifest["functions"][name]
        self.row["kernels"] = entry["kernels"]
        self.row["launches"] = [launch["kernel"] for launch in entry["launches"]]
        executable = tvm_fusion.load(artifact)
        specs = {s.name: s for s in executable.signatures[name].inputs}
        self._caches = {
            n: torch.zeros(*specs[n].shape, dtype=torch.float16, device=self._device)
            for n in programs.caches
        }
        function = executable.bind(self._caches, function=name)

        def call() -> Any:
            given = {"input_ids": self._ids, "position": self._position}
            with _stream(self._device):
                return function.run(given)["logits"]

        return call

    def _results(self, logits: Tensor, caches: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take the logits, and what was written into the first and the last caches."""
        step = self._step
        places = slice(step.position, step.position + step.tokens)
        last = (len(caches) - 1) // 2
        names = (f"{kind}_{n}" for kind in ("keys", "values") for n in (0, last))
        written = {n: caches[n][:, :, places].clone() for n in names}
        return {"logits": logits, **written}

    def _compile(self, eager: _Eager) -> None:
        """Compile by PyTorch, into a CUDA graph; its failure is told."""
        start = time.perf_counter()
        try:
            torch._dynamo.reset()
            compiled = torch.compile(eager, dynamic=False)
            graph = captured(compiled, [[self._ids, self._position]])
        # guard: what PyTorch's compiler does not take is no error of ours
        except Exception as error:
            self.row["refused"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return
        self._graph, self._eager = graph, eager  # which has the caches that the graph reads
        self.sides["inductor"] = graph.replay
        self.row["inductor_s"] = time.perf_counter() - start

    def timed(self) -> dict[str, Any]:
        """Time the sides in turns with a copy, then list the kernels of a call."""
        sides = {**self.sides, "copy": copies(2, COPY_BYTES).replay}
        us = alternate(sides)
        us["copy"] /= 2 * COPY_BYTES
        of_copy = self.row["bytes"] * us["copy"] / us["ours"]
        row = {"us": us, "of_copy": of_copy, "copy_tb_s": 1e-6 / us["copy"]}
        return row | {"profile": {name: kernels(side) for name, side in self.sides.items()}}


class _Eager(nn.Module):
    """The model as PyTorch runs it, over its static cache."""

    def __init__(self, model: Any, step: Step) -> None:
        super().__init__()
        self._model = model
        self._cache = static_cache(model, model.config, step.length)

    @property
    def caches(self) -> dict[str, Tensor]:
        """Keys and values by name."""
        return {state.name: state.read() for state in states_of(self._cache)}

    def fill(self, drawn: dict[str, Tensor]) -> None:
        """Let the caches hold something."""
        for name, cache in self.caches.items():
            cache.copy_(drawn[name])

    def call(self, ids: Tensor, position: Tensor) -> Tensor:
        """Run it once."""
        return self(ids, position).clone()

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        """Return the logits of the last token."""
        for layer in self._cache.layers:
            layer.cumulative_length = position[0].clone()
        places = position + torch.arange(ids.shape[1], device=ids.device)
        outputs = self._model(
            input_ids=ids,
            position_ids=places[None].expand(ids.shape[0], -1),
            use_cache=True,
            logits_to_keep=1,
            **{name_of_cache(self._model): self._cache},
        )
        return outputs.logits[:, -1]


def _stream(device: str) -> Any:
    if device == "cpu":
        return contextlib.nullcontext()
    return tvm_ffi.use_torch_stream(torch.cuda.stream(torch.cuda.current_stream()))


def main(name: str, alone: str = "") -> None:
    """Do it all for one step, without PyTorch's compiler if it is alone."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_grad_enabled(False)
    (step,) = (one for one in STEPS if one.name == name)
    ready = Ready(replace(step, has_rival=step.has_rival and not alone))
    print(json.dumps(ready.row), file=output, flush=True)
    sys.stdin.readline()
    print(json.dumps(ready.timed()), file=output, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
