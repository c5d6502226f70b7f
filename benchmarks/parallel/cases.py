"""Models that several GPUs run together, the most important first."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A language model of drawn weights, on one worker and on several."""

    name: str  # in the record
    model: str  # of :data:`benchmarks.llm.models.SHAPES`
    # The model's when omitted.
    layers: int | None = None
    vocabulary: int | None = None
    # Places of the caches; the place of the token that is timed.
    length: int = 4608
    position: int = 2048
    prompt: int = 4096  # tokens of a prefill; 0 for none
    has_int4: bool = False  # whether layers have weights of four bits
    sizes: tuple[int, ...] = (1, 2)  # numbers of workers
    has_peer: bool = True  # whether PyTorch's tensor parallel is timed, too

    @property
    def as_json(self) -> str:
        """The case in a line, as processes take it."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Case:
        """Read :attr:`as_json`."""
        given: dict[str, Any] = json.loads(text)
        return cls(**{**given, "sizes": tuple(given["sizes"])})


_LLAMA = "Llama-3-8B"
CASES = (
    Case("llama_8b", _LLAMA),
    Case("llama_8b_8_layers", _LLAMA, layers=8, has_peer=False),
    Case("llama_70b_int4_4_layers", "Llama-3-70B", layers=4, prompt=0, has_int4=True,
         sizes=(2,), has_peer=False),
    Case("llama_70b_int4", "Llama-3-70B", prompt=0, has_int4=True, sizes=(2,), has_peer=False),
    # Not for a device: they show here that all parts work.
    Case("tiny", "Llama-tiny", layers=2, length=64, position=32, prompt=16),
)  # fmt: skip
DEFAULT = ("llama_8b", "llama_8b_8_layers", "llama_70b_int4_4_layers")
