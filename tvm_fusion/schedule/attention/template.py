"""The template for attention: FlashAttention in one launch, flash-decoding in two."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tvm.target import Target

from ...core.contract.forms import Form
from ...core.contract.kernel_work import NO_WORK, KernelWork
from ...core.contract.template import Claim, Config, Emission, Refusal, Template
from ...core.tir.expressions import loads
from ...core.tir.loops import constant
from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.work import at
from ...program.group import Group
from ...program.stage import Unstructured
from ..contraction.cpu.tile_product import SPEEDUP
from ..index.design_space import member
from ..index.estimate import operations, points, too_many_parameters, traffic
from ..index.inline import inlined
from ..instructions.nvidia import HALF_TYPES
from ..instructions.table import find_of_fragments
from .cpu.config import CpuConfig
from .cpu.kernel import attention_cpu
from .cpu.query_lanes import query_lanes_cpu
from .cpu.query_lanes_config import KERNELS as CPU_KERNELS
from .cpu.query_lanes_config import QueryLanesConfig
from .cpu.query_lanes_config import configs as cpu_configs
from .cpu.query_lanes_config import default as cpu_default
from .cpu.tile_config import TileAttentionConfig
from .cpu.visible_keys import VisibleKeys
from .cuda_cores.config import GpuConfig
from .cuda_cores.kernel import attention_gpu
from .decode.config import FlashDecodeConfig
from .decode.reduce import flash_decode
from .flash.config import FlashMmaConfig
from .flash.kernel import dispatch_on_queries, flash_mma_kernel
from .flash.model import cycles
from .flash.problem import flash_problem
from .flash.prologue_cost import computed_operations, element_loads
from .flash.tma.config import FlashTmaConfig
from .forms import choose, weighed
from .problem.constants import read_group
from .problem.match import FLOATS
from .problem.pattern import FLOAT, Pattern
from .problem.propose import attention_proposals
from .space import KERNELS, configs, estimates
from .space import Config as AnyConfig

QUERIES_PER_TASK = 64  # on a CPU, roughly
EXP_OPERATIONS = 20  # of one exponential
# A row of a key or a value stays in registers and shared memory. DeepSeek's latents have 512
# elements, and 64 that are rotated.
MAX_HEAD_DIM = 576


@dataclass(frozen=True, eq=False)
class AttentionDetails:
    """What a claim remembers until its kernels are made."""

    config: AnyConfig | CpuConfig  # which kernels, and their tiles
    many: tuple[int, FlashMmaConfig] | None = None  # another kernel for so many queries or more


class Attention(Template):
    """``softmax(score(q @ k)) @ v``, with maps around it.

    Scores are mapped at their own position (scale, mask, bias), weights may be guarded and masked,
    the epilogue is any maps at their own position.
    """

    name = "attention"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        # CPUs have no vectors of bfloat16 to pack keys from.
        self._floats = (*FLOATS, "bfloat16") if is_gpu else FLOATS
        self._kernels = KERNELS if is_gpu else CPU_KERNELS

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim a program that matches attention."""
        if len(group) < 3:
            return Refusal("not_mine", "Attention is at least three operators.")
        try:
            pattern = read_group(group, self._floats)
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        if isinstance(pattern, Refusal):
            return pattern
        refusal = too_many_parameters(group.program) or _too_large(pattern)
        if refusal is not None:
            return refusal
        rows, queries = _rows(pattern)
        config: AnyConfig | CpuConfig | None
        many = None
        if self._is_gpu:
            found = choose(pattern, device)
            if isinstance(found, Refusal):
                return found
            config, many = found.config, found.many(device)
        else:
            config = cpu_default(pattern, device)
        if config is None:
            return _symbolic_head()
        if isinstance(config, FlashDecodeConfig):
            return _claim_flash_decode(self, group, pattern, config)
        block_m = QUERIES_PER_TASK if isinstance(config, CpuConfig) else config.block_m
        return Claim(
            self,
            group,
            launches=1,
            bytes=_traffic(group, pattern),
            flops=_flops(pattern, rows, queries, config),
            parallelism=rows * math.ceil(queries / block_m) * _products(config),
            shared_bytes=0 if isinstance(config, CpuConfig) else config.shared_bytes,
            registers=0 if isinstance(config, CpuConfig) else config.registers,
            matrix_dtype=_matrix_dtype(config, pattern),
            work=_work(config, pattern, device),
            details=AttentionDetails(config, many),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernels of the claimed configuration."""
        details, program = claim.details_as(AttentionDetails), claim.group.program
        config, many = details.config, details.many
        pattern = read_group(claim.group, self._floats)
        if isinstance(pattern, Refusal):
            raise RuntimeError(pattern.sentence)
        if isinstance(config, FlashDecodeConfig):
            return flash_decode(claim.group, config.of(pattern))
        if isinstance(config, FlashMmaConfig):
            problem = flash_problem(pattern)
            if problem is None:
                raise RuntimeError("the group is not the one that was claimed")
            if many is None:
                func = flash_mma_kernel(program, problem, config)
            else:
                func = dispatch_on_queries(program, problem, config, *many)
        elif isinstance(config, QueryLanesConfig):
            func = query_lanes_cpu(program, pattern, config)
        elif isinstance(config, CpuConfig):
            func = attention_cpu(program, pattern, config)
        else:
            func = attention_gpu(program, pattern, config)
        return Emission.one(func, claim.group)

    def forms(self, claim: Claim, device: Device) -> tuple[Form, ...]:
        """Tell the forms of a GPU's kernels: see :mod:`.forms`."""
        pattern = read_group(claim.group, self._floats)
        if not self._is_gpu or isinstance(pattern, Refusal):
            return ()
        return weighed(pattern, device)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate the kernels of a GPU, or tiles and tasks of a CPU."""
        return map(self._kernels.plain, self._designs(claim, device))

    def estimates(self, claim: Claim, device: Device) -> Iterator[tuple[Config, float]]:
        """Estimate FlashAttention on tensor cores, which alone has a model."""
        pattern = read_group(claim.group, self._floats)
        if not self._is_gpu or isinstance(pattern, Refusal):
            return
        for config, clocks in estimates(pattern, device):
            yield self._kernels.plain(config), clocks

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claimed attention."""
        chosen = member(claim, config, self._designs(claim, device), self._kernels.plain)
        if isinstance(chosen, Refusal):
            return chosen
        pattern = read_group(claim.group, self._floats)
        assert not isinstance(pattern, Refusal)
        if isinstance(chosen, CpuConfig):
            return replace(
                claim,
                flops=_flops(pattern, *_rows(pattern), chosen),
                matrix_dtype=_matrix_dtype(chosen, pattern),
                details=AttentionDetails(chosen),
            )
        if isinstance(chosen, FlashDecodeConfig):
            return _claim_flash_decode(self, claim.group, pattern, chosen)
        return replace(
            claim,
            launches=1,
            shared_bytes=chosen.shared_bytes,
            registers=chosen.registers,
            details=replace(claim.details_as(AttentionDetails), config=chosen),
        )

    def _designs(self, claim: Claim, device: Device) -> Iterator[AnyConfig | CpuConfig]:
        pattern = read_group(claim.group, self._floats)
        if isinstance(pattern, Refusal):
            return iter(())
        return configs(pattern, device) if self._is_gpu else cpu_configs(pattern, device)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name the operators of every attention in a graph, in a few nested sets."""
        has_copies = find_of_fragments(device, HALF_TYPES[0], HALF_TYPES[0]) is not None
        return attention_proposals(graph, self._is_gpu and has_copies)


def _claim_flash_decode(
    template: Attention, group: Group, pattern: Pattern, config: FlashDecodeConfig
) -> Claim:
    """Estimate flash-decoding: keys and values are read once, partial results written and read."""
    rows = at(config.kv_batch) * config.query_group.size
    partials = rows * config.splits * (config.head_dim_v + 2)
    stored = 0 if config.is_one_kernel else partials
    return Claim(
        template,
        group,
        launches=config.launches,
        bytes=_traffic(group, pattern) + 2 * 4 * stored,
        flops=_flops(pattern, rows, 1, config) + 2 * partials,
        parallelism=at(config.blocks),
        shared_bytes=config.shared_bytes,
        registers=config.registers,
        details=AttentionDetails(config),
    )


def _work(config: AnyConfig | CpuConfig, pattern: Pattern, device: Device) -> KernelWork:
    """Tell the clocks of FlashAttention, and how often it computes its operands."""
    problem = flash_problem(pattern) if isinstance(config, FlashMmaConfig) else None
    if problem is None or not isinstance(config, FlashMmaConfig):
        return NO_WORK
    single = element_loads(problem, config)
    heads = math.prod(at(a.extent) for a in pattern.batch)
    blocks = heads * math.ceil(at(problem.query.extent) / config.block_m)
    waves = math.ceil(blocks / ((device.sm_count or 1) * config.min_blocks))
    return KernelWork(
        cycles(config, problem, device),
        element_loads=single,
        thread_loads=waves * single / (blocks * config.threads),
        operand_operations=computed_operations(problem, config),
    )


def _matrix_dtype(config: AnyConfig | CpuConfig, pattern: Pattern) -> str:
    """Name the type of the matrix units, where operands alone do not say which multiply."""
    if isinstance(config, TileAttentionConfig):
        return pattern.operand_dtypes[0]
    return FLOAT if isinstance(config, GpuConfig) else ""  # whatever tensor cores could do


def _products(config: GpuConfig | FlashMmaConfig | CpuConfig) -> int:
    """Count the products of a block that run side by side: tiles of rows of its consumers.

    On a multiprocessor of its own, each of two consumers takes as long as one in a block: as the
    other has the tensor cores, it computes weights.
    """
    return config.consumers if isinstance(config, FlashTmaConfig) else 1


def _traffic(group: Group, pattern: Pattern) -> int:
    """Count bytes; what is known of constants is not read."""
    program = group.program
    exprs = [pattern.q, pattern.k, pattern.v, pattern.score, pattern.weight]
    exprs += [x for r in pattern.product.results for x in (r.value, *r.indices)]
    exprs += [x for x in (pattern.masked_weight, pattern.sink) if x is not None]
    read = {load.source for expr in exprs for load in loads(expr)}
    unread = {
        buffer
        for buffer, value in zip(program.inputs, group.inputs, strict=True)
        if value.closed_form is not None and buffer not in read
    }
    return traffic(group, inlined(program), unread)


def _too_large(pattern: Pattern) -> Refusal | None:
    sizes = [constant(axis.extent) for axis in (pattern.depth, pattern.column)]
    if any(size is None for size in sizes):
        return _symbolic_head()
    if max(size or 0 for size in sizes) > MAX_HEAD_DIM:
        return Refusal(
            "head_too_large",
            f"The head dimension is {max(size or 0 for size in sizes)}; the limit is "
            f"{MAX_HEAD_DIM}.",
        )
    return None


def _symbolic_head() -> Refusal:
    return Refusal("symbolic_head", "The head dimension (of keys or of values) is symbolic.")


def _rows(pattern: Pattern) -> tuple[int, int]:
    """Count the heads of all batches, and the queries of one."""
    heads = math.prod(at(a.extent) for a in pattern.batch)
    return heads, 1 if pattern.query is None else at(pattern.query.extent)


def _flops(pattern: Pattern, rows: int, queries: int, config: AnyConfig | CpuConfig) -> int:
    keys = at(pattern.key.extent)
    if isinstance(config, CpuConfig) and VisibleKeys(pattern, config).skips:
        keys = math.ceil(keys / 2)  # as many as rows see on average, or positions of a cache
    depth, columns = at(pattern.depth.extent), at(pattern.column.extent)
    products = 2 * rows * queries * keys * (depth + columns)
    softmax = rows * queries * keys * (operations(pattern.score, pattern.weight) + EXP_OPERATIONS)
    packing = operations(pattern.k) * depth + operations(pattern.v) * columns
    blocks = math.ceil(queries / QUERIES_PER_TASK)
    vectors = (
        softmax
        + rows * (blocks * keys * packing + queries * depth * operations(pattern.q))
        + sum(points(pattern.product.stage) * operations(r.value) for r in pattern.product.results)
    )
    # The price of all is that of products, which is far below that of vectors on tile registers.
    return products + vectors * (SPEEDUP if isinstance(config, TileAttentionConfig) else 1)
