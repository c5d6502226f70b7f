"""Convert sequences of known length, which are tuples in Relax, and optional values.

An optional value is the value itself, or nothing: which of both is known at compile time.
"""

from typing import Any

from tvm import relax

from ...registry import Unsupported
from ..node import Node
from ..registry import register

op = relax.op


def _elements(node: Node) -> list[Any]:
    sequence = node.inputs[0]
    if isinstance(sequence, relax.Tuple):
        return list(sequence.fields)
    raise Unsupported("of a sequence whose length is not known", "give it a fixed length")


def _position(node: Node, index: int, elements: list[Any], last: int) -> int:
    """Return a position, negative ones counted from the end, that has to be known."""
    if not node.has(index):
        return last
    position = int(node.required_constant(index, "position").reshape(-1)[0])
    length = len(elements)
    if not -length <= position <= last:
        raise Unsupported(
            f"at position {position} of a sequence of {length}", "correct the position"
        )
    return position % length if position < 0 else position


@register("SequenceEmpty")
def empty(node: Node) -> Any:
    """Convert SequenceEmpty; the type of its elements is that of what is inserted."""
    node.attribute("dtype")
    return [relax.Tuple([])]


@register("SequenceInsert")
def insert(node: Node) -> Any:
    """Convert SequenceInsert; -1 inserts before the last element, to TVM's converter after it."""
    elements = _elements(node)
    elements.insert(_position(node, 2, elements, len(elements)), node.inputs[1])
    return [relax.Tuple(elements)]


@register("SequenceErase")
def erase(node: Node) -> Any:
    """Convert SequenceErase."""
    elements = _elements(node)
    del elements[_position(node, 1, elements, len(elements) - 1)]
    return [relax.Tuple(elements)]


@register("SequenceAt")
def at(node: Node) -> Any:
    """Convert SequenceAt."""
    elements = _elements(node)
    return elements[_position(node, 1, elements, len(elements) - 1)]


@register("SequenceLength")
def length(node: Node) -> Any:
    """Convert SequenceLength to a constant."""
    return relax.const(len(_elements(node)), "int64")


@register("ConcatFromSequence")
def concat(node: Node) -> Any:
    """Convert ConcatFromSequence, along an axis of the elements or a new one."""
    elements, axis = _elements(node), node.attribute("axis")
    if not elements:
        raise Unsupported("of an empty sequence", "leave it out")
    if node.attribute("new_axis", 0):
        elements = [node.emit(op.expand_dims(element, axis)) for element in elements]
    return op.concat(elements, axis=axis)


@register("SplitToSequence")
def split(node: Node) -> Any:
    """Convert SplitToSequence: into single slices, chunks of one size or parts of given sizes."""
    shape, axis = node.shape(), node.attribute("axis", 0)
    axis %= len(shape)
    extent, keeps = shape[axis], node.attribute("keepdims", 1)
    if not isinstance(extent, int):
        raise Unsupported("along a symbolic extent", "bind it with --dim NAME=VALUE, or dims={...}")
    sizes = [1] * extent
    if node.has(1):
        given = node.required_constant(1, "split")
        keeps = 1  # the standard ignores the attribute then
        if given.ndim:
            sizes = [int(size) for size in given]
        else:
            chunk = max(int(given), 1)
            sizes = [min(chunk, extent - start) for start in range(0, extent, chunk)]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise Unsupported(f"of {extent} slices into {sizes}", "correct the sizes")
    parts, start = [], 0
    for size in sizes:
        part = node.emit(op.strided_slice(node.inputs[0], [axis], [start], [start + size]))
        parts.append(part if keeps else node.emit(op.squeeze(part, [axis])))
        start += size
    return [relax.Tuple(parts)]


@register("OptionalHasElement", takes_extents=True)
def has_element(node: Node) -> Any:
    """Convert OptionalHasElement without an input, which is false; others are left to TVM."""
    return None if node.has(0) else relax.const(False, "bool")
