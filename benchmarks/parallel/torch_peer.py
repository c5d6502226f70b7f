"""PyTorch's tensor parallel of a decoder: one rank, which is told by lines what to time.

``python -m benchmarks.parallel.torch_peer CASE RANK WORLD PORT DEVICE``

Each rank keeps its heads, its columns of the first and its rows of the second products; sums and
the gathered logits go over torch.distributed. torch.compile makes the kernels, and on a GPU a CUDA
graph has them.

    ready      -> {"compile_s": ...}           printed unasked
    logits     -> {"logits": [...], "tokens": [...]}   behind the prompt of these tokens
    decode N   -> {"queued_us": ..., "waiting_us": ...}
    prefill N  -> the same
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives

from benchmarks.llm.step_worker import _Eager
from benchmarks.llm.steps import Step

from .cases import Case
from .compile_worker import drawn

COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")


class Summed(nn.Module):
    """A linear layer of which each rank has some rows of the input's axis."""

    def __init__(self, linear: nn.Linear, group: Any) -> None:
        super().__init__()
        self.linear, self._group = linear, group

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, and add up over the ranks."""
        return collectives.all_reduce(self.linear(x), "sum", self._group)


class Gathered(nn.Module):
    """A head of which each rank has some columns."""

    def __init__(self, linear: nn.Linear, group: Any) -> None:
        super().__init__()
        self.linear, self._group = linear, group

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, and put the ranks' logits side by side."""
        logits = self.linear(x)
        return collectives.all_gather_tensor(logits, logits.ndim - 1, self._group)


def shard(model: Any, rank: int, world: int, group: Any) -> Any:
    """Let a rank keep its part of a Llama's layers and head."""
    config = model.config
    for name, module in list(model.named_modules()):
        own = name.rpartition(".")[2]
        if own in COLUMNS:
            module.weight = _part(module.weight, 0, rank, world)
        elif own in ROWS:
            module.weight = _part(module.weight, 1, rank, world)
            model.get_submodule(name.rpartition(".")[0]).__setattr__(own, Summed(module, group))
    head = nn.Linear(1, 1, bias=False)
    head.weight = _part(model.lm_head.weight, 0, rank, world)
    model.lm_head = Gathered(head, group)
    config.num_attention_heads //= world
    config.num_key_value_heads //= world
    return model


def _part(weight: Tensor, axis: int, rank: int, world: int) -> nn.Parameter:
    part = weight.data.chunk(world, axis)[rank].contiguous()
    return nn.Parameter(part, requires_grad=False)


class Rank:
    """One rank's steps, compiled."""

    def __init__(self, case: Case, rank: int, world: int, device: str) -> None:
        self._case, self._cuda = case, device != "cpu"
        start = time.perf_counter()
        generator = torch.Generator("cpu").manual_seed(1)
        model = drawn(case, device.partition(":")[0])
        words = model.config.vocab_size
        group = dist.group.WORLD
        model = shard(model, rank, world, group).to(device)
        step = Step(case.name, case.model, length=case.length, position=case.position)
        self._eager = _Eager(model, step)
        self._tokens = tokens = torch.randint(
            3, words, (1, max(1, case.prompt)), generator=generator
        )
        at = torch.tensor([case.position], device=device)
        first = torch.tensor([0], device=device)
        inputs = {"decode": (tokens[:, :1].to(device), at)}
        if case.prompt:
            inputs["prefill"] = (tokens.to(device), first)
        self._calls: dict[str, Callable[[], Any]] = {}
        self._outputs: dict[str, Callable[[], Tensor]] = {}
        for name in sorted(inputs, reverse=True):  # prefill fills the caches
            self._prepare(name, list(inputs[name]))
        self.row = {"compile_s": time.perf_counter() - start}

    def _prepare(self, name: str, arguments: list[Tensor]) -> None:
        torch._dynamo.reset()
        backend = "inductor" if self._cuda else "eager"  # a CPU shows that results are right
        compiled = torch.compile(self._eager, dynamic=False, backend=backend)
        if not self._cuda:
            self._calls[name] = lambda: compiled(*arguments)
            self._outputs[name] = self._calls[name]
            return
        from benchmarks.gpu.run import captured

        graph = captured(compiled, [arguments])
        self._calls[name] = graph.replay
        self._outputs[name] = lambda: graph.held[0]

    def logits(self) -> dict[str, Any]:
        """Fill the caches by a prefill, and give the logits of a token behind it."""
        for name in ("prefill", "decode"):
            if name in self._calls:
                self._calls[name]()
        logits = self._outputs["decode"]().flatten().float().cpu().tolist()
        return {"logits": logits, "tokens": self._tokens[0].tolist()}

    def timed(self, name: str, count: int) -> dict[str, float]:
        """Time calls that are launched one behind the other, and calls that are waited for."""
        call, outputs = self._calls[name], self._outputs[name]
        call()
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        self._wait()
        queued = time.perf_counter()
        for _ in range(count):
            result = call() if not self._cuda else (call(), outputs())[1]
            result.cpu()
        waiting = time.perf_counter()
        return {
            "queued_us": 1e6 * (queued - start) / count,
            "waiting_us": 1e6 * (waiting - queued) / count,
        }

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
        dist.barrier()


def main(case: str, rank: str, world: str, port: str, device: str) -> None:
    """Serve lines until there are none."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def send(row: dict[str, Any]) -> None:
        print(json.dumps(row), file=output, flush=True)

    torch.set_grad_enabled(False)
    place = f"{device}:{rank}" if device != "cpu" else device
    if device != "cpu":
        torch.cuda.set_device(int(rank))
    dist.init_process_group(
        "nccl" if device != "cpu" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=int(rank),
        world_size=int(world),
        **({"device_id": torch.device(place)} if device != "cpu" else {}),
    )
    try:
        found = Rank(Case.of_json(case), int(rank), int(world), place)
        send(found.row)
        for line in sys.stdin:
            name, _, count = line.strip().partition(" ")
            send(found.logits() if name == "logits" else found.timed(name, int(count)))
    except Exception as error:  # guard: what PyTorch does not take is told
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        send({"error": f"{type(error).__name__}: {'; '.join(lines[:4])}"[:800]})


if __name__ == "__main__":
    main(*sys.argv[1:])
