"""Prologues of FlashAttention: operands that are computed as they are loaded, and what that costs.

    copied     cp.async or TMA brings rows as they lie in memory, while tensor cores multiply
               (a concatenation of rows of whole vectors, too)
    computed   each element in registers of the block, from elements at other places (rotary
               embedding, halves of an odd size), between the products

Every block of queries loads all keys and values that it sees, for each query head of a GQA group
again. Computed once by a kernel before, they are written and read once more, and copied.
"""

import math

from tvm import ir, tirx

from ....core.contract.template import Refusal
from ....core.tir.expressions import choice, loads, variables
from ....core.tir.loops import find
from ....device import Device
from ....ecg.work import at
from ...index.address import known_step
from ...index.estimate import operations
from ..problem.pattern import Pattern
from ..problem.query_group import QueryGroup
from .config import FlashMmaConfig
from .problem import VECTOR, FlashProblem, Operand

LAUNCH_US = 2.0
# Time of an element over what its arithmetic and loads take at the peak of CUDA cores: nothing
# overlaps with it. A decoder layer of 4096 at 512 tokens, rotary in the prologue, took 101 us of
# attention at batch 1 and 457 at batch 8 on an H200; without it 27 and 116, and the product before,
# which rotates instead, 7 and 22 more (python -m benchmarks.gpu_models, profiled).
SLOWDOWN = 8
# Time of one vector of a thread, which waits for its loads before it loads the next. Queries and
# keys whose halves were chosen element by element, 4 heads of 256 over 512 tokens with a window of
# 256, took 86 us on an H200: a warp of 16 queries computed about 320 vectors a thread.
VECTOR_US = 0.24
# How many loads of a score one counts as whose place another one gives: on an H200, two of them for
# each of 196,608 scores took 14 us (DeBERTa), two others for each of 12.6 million 8 (SAM).
DEPENDENT = 16


def expensive_prologue(
    problem: FlashProblem, config: FlashMmaConfig, device: Device
) -> Refusal | None:
    """Refuse an attention whose operands are better computed by a kernel before.

    Parameters
    ----------
    config
        Its configuration, on tensor cores.
    """
    peak, bandwidth = device.peak_flops.get("float32"), device.memory_bandwidth
    computed = [x for x in (problem.q, problem.k, problem.v) if is_computed(x)]
    if not computed or not peak or not bandwidth:
        return None
    fused = 1e6 * SLOWDOWN * computed_operations(problem, config) / peak
    vectors = sum(_vectors(problem, x, config) for x in computed)
    fused = max(fused, VECTOR_US * vectors * _waves(problem, config, device))
    separate = LAUNCH_US
    for operand in computed:
        separate += 1e6 * 2 * 2 * _elements(problem, operand) / bandwidth
    if fused <= separate:
        return None
    return Refusal(
        "prologue_recomputed",
        f"Computing operands in the kernel would take about {fused:.1f} us, as each block of "
        f"queries computes all keys again; a kernel of its own takes about {separate:.1f}.",
    )


def computed_operations(problem: FlashProblem, config: FlashMmaConfig) -> float:
    """Count operations and loads of operands that blocks compute, as often as they are repeated."""
    found = 0.0
    for operand in (problem.q, problem.k, problem.v):
        if is_computed(operand):
            work = operations(operand.element) + len(loads(operand.element))
            times = 1 if operand is problem.q else _readers(problem, config)
            found += _elements(problem, operand) * times * work
    return found


def element_loads(problem: FlashProblem, config: FlashMmaConfig) -> float:
    """Count what is loaded one by one: elements of operands, and for each score.

    Masks and biases along the keys are loaded by neighbouring threads and do not count.
    """
    pattern = problem.pattern
    found = 0.0
    for operand in (problem.q, problem.k, problem.v):
        if not operand.loads:
            times = 1 if operand is problem.q else _readers(problem, config)
            found += _elements(problem, operand) * times * len(loads(operand.element))
    key = pattern.key.var
    axes = [a.var for a in (*pattern.batch, problem.query, pattern.key)]
    read = {(x.source, str(x.indices)): x for e in _of_scores(pattern) for x in loads(e)}
    each = 0
    for x in read.values():
        if any(loads(i) for i in x.indices):
            each += DEPENDENT
        elif any(key in variables(i) for i in x.indices):
            each += known_step(x.source, x.indices, key, axes) not in (0, 1)
    rows = math.prod(at(a.extent) for a in pattern.batch)
    return found + float(each * rows * at(problem.query.extent) * at(pattern.key.extent))


def _of_scores(pattern: Pattern) -> list[ir.Expr]:
    return [x for x in (pattern.score, pattern.weight, pattern.masked_weight) if x is not None]


def is_computed(operand: Operand) -> bool:
    """Whether vectors of an operand are neither copies nor single elements of one tensor."""
    if operand.loads:
        return False
    element = operand.element
    if isinstance(element, ir.TensorLoad):
        return False  # of other strides, or unaligned
    choices = [c for kind in (tirx.Select, ir.Call) for c in map(choice, find(element, kind)) if c]
    along = operand.along.var
    return operations(element) > 0 or any(along in variables(c[0]) for c in choices)


def _vectors(problem: FlashProblem, operand: Operand, config: FlashMmaConfig) -> float:
    """Count the vectors that a thread of an average block computes, one after the other."""
    per_row = operand.extent16 // VECTOR
    if operand is problem.q:
        return math.ceil(config.block_m * per_row / config.threads)
    tiles = math.ceil(at(problem.pattern.key.extent) / config.block_n)
    seen = (tiles + 1) / 2 if problem.skips else tiles
    return seen * math.ceil(config.block_n * per_row / config.threads)


def _waves(problem: FlashProblem, config: FlashMmaConfig, device: Device) -> int:
    """Count the blocks of a multiprocessor that run one after the other."""
    blocks = math.prod(at(a.extent) for a in problem.pattern.batch)
    blocks *= math.ceil(at(problem.query.extent) / config.block_m)
    return math.ceil(blocks / ((device.sm_count or 1) * config.min_blocks))


def _elements(problem: FlashProblem, operand: Operand) -> int:
    """Count the different elements of an operand."""
    pattern, used = problem.pattern, variables(operand.element)
    if operand is problem.q:
        axes = [*pattern.batch, problem.query, pattern.depth]
        return math.prod(at(a.extent) for a in axes if a.var in used)
    heads, group = [a.extent for a in pattern.batch if a.var in used], QueryGroup.of(pattern)
    if group is not None:
        heads = [extent for axis, extent in group.batch if axis.var in used]
    return math.prod(map(at, heads)) * at(pattern.key.extent) * operand.extent


def _readers(problem: FlashProblem, config: FlashMmaConfig) -> float:
    """Count the blocks that compute an element of keys; half of them where masks hide tiles."""
    pattern = problem.pattern
    blocks = math.prod(at(a.extent) for a in pattern.batch)
    group = QueryGroup.of(pattern)
    heads = blocks if group is None else math.prod(map(at, group.extents))
    of_head = math.ceil(at(problem.query.extent) / config.block_m)
    seen = (of_head + 1) / 2 if problem.skips else of_head
    return max(1.0, blocks / heads) * seen
