"""What is asked of rewriting, and whether the record has it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FEWER = 0.18  # of GPT-2's kernels: DNNFusion (Niu et al., PLDI 2021, section 5) has 18 %
SLOWER = 0.03  # that a model may lose
SECONDS = 15.0  # of one core for BERT-base
MODEL = "gpt2"


@dataclass(frozen=True)
class Floor:
    """One thing that is asked."""

    # For the reader.
    asked: str
    found: str
    is_met: bool  # whether it is there


def floors(record: dict[str, Any]) -> Iterator[Floor]:
    """Judge what has been measured; what has not been is left out."""
    models = record["models"]
    counted = models.get(MODEL, {}).get("counts")
    if counted:
        before, after = counted["none"]["kernels"], counted["search"]["kernels"]
        yield Floor(
            f"{MODEL}: at least {FEWER:.0%} fewer kernels, as published",
            f"{before} to {after}: {1 - after / before:.0%} fewer",
            after <= before * (1 - FEWER),
        )
    ratios = {
        name: model["latency"]["search"]["ms"] / model["latency"]["none"]["ms"]
        for name, model in models.items()
        if "latency" in model
    }
    if ratios:
        worst = max(ratios, key=ratios.__getitem__)
        yield Floor(
            f"no model slower by more than {SLOWER:.0%}",
            f"the slowest is {worst}: {ratios[worst]:.2f} of its time",
            ratios[worst] <= 1 + SLOWER,
        )
    for frontend, seconds in _deepest(record):
        yield Floor(
            f"BERT-base through {frontend}: rewritten in {SECONDS:g} s of one core",
            f"{seconds:.1f} s",
            seconds <= SECONDS,
        )


def _deepest(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    depths = record["depths"]
    if "12" in depths:
        for frontend, row in depths["12"].items():
            yield frontend, row["seconds"]
