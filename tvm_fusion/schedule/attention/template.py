"""The template for attention: two products with softmax between them, in one or two launches."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tvm.target import Target

from ...core.loops import constant
from ...core.template import Claim, Emission, Refusal, Template
from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.work import at
from ...program.group import Group
from ...program.stage import Unstructured
from ..estimate import operations, points, too_many_parameters, traffic
from ..inline import inlined
from .cpu import attention_cpu
from .decode import Decode, decode
from .decode_emit import decode_gpu
from .gpu import attention_gpu
from .match import FLOATS, read
from .pattern import Pattern
from .propose import attention_proposals
from .tiles_gpu import Tiles

TASK = 64  # queries of one task, roughly
EXPONENTIAL = 20  # operations of one
LARGEST = 512  # elements of a key or a value: a row of them stays in registers and shared memory


class Attention(Template):
    """Softmax of scores, which are products of queries and keys, weighs values.

    Scores are mapped at their own position (scale, mask, bias), weights may be guarded and masked,
    results are any maps at their own position.
    """

    name = "attention"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        # CPUs have no vectors of bfloat16 to pack keys from.
        self._floats = (*FLOATS, "bfloat16") if is_gpu else FLOATS

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim a program that reads as attention."""
        if len(group) < 3:
            return Refusal("not_mine", "Attention is at least three operators.")
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        pattern = read(program, self._floats)
        if isinstance(pattern, Refusal):
            return pattern
        refusal = too_many_parameters(program) or _too_large(pattern)
        if refusal is not None:
            return refusal
        rows = math.prod(at(a.extent) for a in pattern.batch)
        queries = 1 if pattern.query is None else at(pattern.query.extent)
        cut = decode(pattern, device) if self._is_gpu else None
        if cut is not None:
            return _decoding(self, group, pattern, cut)
        tiles = Tiles.of(pattern) if self._is_gpu else None
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, inlined(program)),
            flops=_flops(pattern, rows, queries),
            parallelism=rows * math.ceil(queries / (tiles.rows if tiles else TASK)),
            shared_bytes=tiles.shared_bytes if tiles else 0,
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel."""
        program = claim.group.program
        pattern = read(program, self._floats)
        if isinstance(pattern, Refusal):
            raise RuntimeError(pattern.sentence)
        cut = decode(pattern, target) if self._is_gpu else None
        if cut is not None:
            return decode_gpu(claim.group, cut)
        if self._is_gpu:
            func = attention_gpu(program, pattern)
        else:
            func = attention_cpu(program, pattern, target)
        return Emission.one(func, claim.group)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name the operators of every attention in a graph, in a few nested sets."""
        return attention_proposals(graph)


def _decoding(template: Attention, group: Group, pattern: Pattern, cut: Decode) -> Claim:
    """Estimate attention of few rows: keys and values are read once, splits are combined."""
    rows = at(cut.pairs) * cut.sharing.count
    combined = rows * cut.splits * (cut.columns + 2)
    return Claim(
        template,
        group,
        launches=2,
        bytes=traffic(group, inlined(group.program)) + 2 * 4 * combined,
        flops=_flops(pattern, rows, 1) + 2 * combined,
        parallelism=at(cut.blocks),
        shared_bytes=cut.shared_bytes,
    )


def _too_large(pattern: Pattern) -> Refusal | None:
    sizes = [constant(axis.extent) for axis in (pattern.depth, pattern.column)]
    if any(size is None for size in sizes):
        return Refusal("symbolic_head", "The head dimension is symbolic.")
    if max(size or 0 for size in sizes) > LARGEST:
        return Refusal("head_too_large", f"A key or a value has more than {LARGEST} elements.")
    return None


def _flops(pattern: Pattern, rows: int, queries: int) -> int:
    keys = at(pattern.key.extent)
    depth, columns = at(pattern.depth.extent), at(pattern.column.extent)
    products = 2 * rows * queries * keys * (depth + columns)
    softmax = rows * queries * keys * (operations(pattern.score, pattern.weight) + EXPONENTIAL)
    packing = operations(pattern.k) * depth + operations(pattern.v) * columns
    blocks = math.ceil(queries / TASK)
    return (
        products
        + softmax
        + rows * (blocks * keys * packing + queries * depth * operations(pattern.q))
        + sum(points(pattern.product.stage) * operations(r.value) for r in pattern.product.results)
    )
