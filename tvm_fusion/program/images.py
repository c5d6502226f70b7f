"""Which tensors of a graph are images: those that convolutions read or write, and what follows."""

from ..ecg.graph import Graph, Operator, Value
from .layouts import is_image


def convolved_rank(op: Operator) -> int:
    """Return the rank of the images of a convolution; 0 for any other operator."""
    record = op.record
    if record is None or not record.name.startswith("relax.nn.conv"):
        return 0
    is_first = str(record.attrs.get("data_layout", "NC")).startswith("NC")
    return len(op.results[0].shape) if is_first else 0


def convolution_groups(op: Operator) -> int:
    """Return the number of groups of a convolution; 0 for any other operator."""
    record = op.record
    if record is None or not record.name.startswith("relax.nn.conv"):
        return 0
    return int(record.attrs.get("groups", 1))


def images_of(graph: Graph) -> frozenset[Value]:
    """List the images around the convolutions of a graph, through operators that keep the rank."""
    found: set[Value] = set()
    frontier: list[tuple[Operator, int]] = []
    for op in graph.operators:
        if rank := convolved_rank(op):
            frontier.append((op, rank))
    seen = set(frontier)
    while frontier:
        op, rank = frontier.pop()
        for value in (*op.tensors, *op.results):
            if value in found or value.is_parameter or not _is_image(value, rank):
                continue
            found.add(value)
            for other in (*value.consumers, *([value.producer] if value.producer else [])):
                if (other, rank) not in seen and not other.is_opaque:
                    seen.add((other, rank))
                    frontier.append((other, rank))
    return frozenset(found)


def _is_image(value: Value, rank: int) -> bool:
    shape = getattr(value.type, "shape", None)
    return shape is not None and len(value.shape) == rank and is_image(value.shape)
