"""Convert sequences of known length, which are tuples in Relax, and optional values."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..registry import Unsupported
from .node import Node
from .registry import register


@register("SequenceInsert")
def insert(node: Node) -> Any:
    """Convert SequenceInsert; -1 inserts before the last element, to TVM's converter after it."""
    sequence = node.inputs[0]
    if not isinstance(sequence, relax.Tuple):
        return None
    elements = list(sequence)
    position = len(elements)
    if node.has(2):
        position = int(node.required_constant(2, "position").reshape(-1)[0])
    if not -len(elements) <= position <= len(elements):
        raise Unsupported(
            f"at position {position} of a sequence of {len(elements)}", "correct the position"
        )
    elements.insert(position, node.inputs[1])
    return [relax.Tuple(elements)]


@register("OptionalHasElement", takes_extents=True)
def has_element(node: Node) -> Any:
    """Convert OptionalHasElement without an input, which is false; others are left to TVM."""
    return None if node.has(0) else relax.const(False, "bool")
