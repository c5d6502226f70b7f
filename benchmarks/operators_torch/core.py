"""Which of PyTorch's Core ATen operators can be converted."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tvm_fusion.frontend.torch_ops import CONVERTERS, complex_pairs
from tvm_fusion.frontend.torch_ops.arrays.creation import random

_WAYS = ("converter", "decomposed by torch", "random numbers", "refused")


def core_operators() -> Iterator[torch._ops.OpOverload]:
    """Yield the operators that PyTorch tags as core."""
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            overloads = (getattr(packet, overload) for overload in packet.overloads())
            yield from (o for o in overloads if torch.Tag.core in o.tags)


def way_of(operator: torch._ops.OpOverload) -> str:
    """Say how an operator is converted, or that it is not.

    Of what torch decomposes this asks for the decomposition only; the samples show the rest.
    """
    converter = CONVERTERS.get(operator.__name__)
    if operator.__name__ in complex_pairs.CONVERTERS:
        return "converter"
    if converter is not None:
        return "random numbers" if converter.convert is random else "converter"
    is_decomposed = operator in torch._decomp.decomposition_table
    return "decomposed by torch" if is_decomposed else "refused"


def summary() -> dict[str, Any]:
    """Count them, and name those that are refused.

    For the record: what torch decomposes depends on which of its modules are loaded.
    """
    ways = {operator: way_of(operator) for operator in core_operators()}
    counts = Counter(ways.values())
    refused = [o.__name__.removesuffix(".default") for o, w in ways.items() if w in _WAYS[2:]]
    return {"converter": counts[_WAYS[0]], "decomposed": counts[_WAYS[1]], "refused": refused}


def paragraph(stored: Mapping[str, Any]) -> str:
    """Write a summary as a sentence."""
    known = stored["converter"] + stored["decomposed"]
    names, total = stored["refused"], known + len(stored["refused"])
    return (
        f"Of the {total} operators that PyTorch tags as core, {stored['converter']} have a "
        f"converter and torch decomposes {stored['decomposed']}: {100 * known / total:.0f} %. "
        f"Refused are {', '.join(f'`{n}`' for n in names)}."
    )
