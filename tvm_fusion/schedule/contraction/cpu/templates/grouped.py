"""The template of grouped GEMM on CPUs: products of different operands in one launch.

    tasks in parallel, those of one product after those of another, then those of other maps:
      a task of that product's GEMM: its panels of B, its rows, its epilogue              (kernel)

For small products: waking the threads and waiting for the last one takes as long as they do.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.target import Target

from .....core.contract.template import Claim, Emission, Refusal, Template
from .....core.tir.expressions import loads
from .....core.tir.loops import Body, add, choose, find, index, sequence, tasks
from .....device import Device
from .....ecg.graph import Graph, Operator
from .....program.group import Group
from ....cpu.schedule import VectorRegisters
from ....elementwise.cpu.kernel import ElementwiseCpuConfig, maps_cpu
from ....index.estimate import flops, points, traffic
from ...problem.functions.packing import packed_kernel
from ...problem.grouped_products import GroupedProducts, concat_proposals, products_of
from ...problem.template import constants_of
from ..config import CpuGemmConfig, default
from ..kernel import gemm_tasks, operand_b, packed_of
from ..tile_product import TileProduct
from .gemm import SMALL, TILE, scattered


@dataclass(frozen=True, eq=False)
class GroupedGemmDetails:
    """What a claim remembers until its kernel is made."""

    gemms: tuple[CpuGemmConfig, ...]  # the products
    maps: ElementwiseCpuConfig  # what else the kernel computes; it may have no stages


class GroupedGemm(Template):
    """Small products that need nothing of each other, each with its own operands and epilogue."""

    name = "grouped_gemm"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim GEMMs whose results are maps of one of them each, or concatenations of such."""
        if device.kind != "llvm":
            return Refusal("not_mine", "This template is for CPUs.")
        found = products_of(group)
        if isinstance(found, Refusal):
            return found
        if any(flops(part) > SMALL for part in found.stages):
            return Refusal("large_products", "The products take far longer than a launch.")
        constants = constants_of(group)
        gemms = [default(x, device, constants) for x in found.contractions]
        whole = [x for x in gemms if x is not None and isinstance(x.dot, TileProduct | None)]
        if len(whole) < len(gemms):
            return Refusal("no_gemm", "Some of the products are not floating-point GEMMs.")
        packed = [one.source for b in map(operand_b, whole) for one in packed_of(b)]
        if any(_readers(found, source) > 1 for source in packed):
            return Refusal("shared_weight", "Two of the products would pack the same constant.")
        maps = ElementwiseCpuConfig.of(found.others, VectorRegisters.of(device))
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, found.everything),
            flops=flops(found.everything)
            + sum(scattered(x, x.stage.axes[-1:]) for x in found.contractions),
            parallelism=sum(math.ceil(points(x.stage) / TILE) for x in found.contractions),
            details=GroupedGemmDetails(tuple(whole), maps),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel: one loop over the tasks of all products, and of maps next to them."""
        group, program, details = (
            claim.group,
            claim.group.program,
            claim.details_as(GroupedGemmDetails),
        )
        maps, made = details.maps, [gemm_tasks(gemm, target) for gemm in details.gemms]
        packed = [one for _, b in made for one in packed_of(b)]
        loops: list[tirx.Stmt] = [one for one, _ in made]
        if maps.stages:
            loops.append(maps_cpu(maps))
        func, packing = packed_kernel(program, _one_after_another(loops), packed)
        return Emission(Emission.one(func, group).kernels, (), packing)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name concatenations with the small products that they alone read."""
        return concat_proposals(graph, SMALL) if device.kind == "llvm" else ()


def _readers(found: GroupedProducts, source: ir.Var) -> int:
    """Count the products and maps that read a buffer."""
    parts = (*found.stages, found.others)
    values = [[v for s in part for v in s.values] for part in parts]
    return sum(any(x.source.same_as(source) for v in part for x in loads(v)) for part in values)


def _one_after_another(loops: list[tirx.Stmt]) -> tirx.For:
    """Run the tasks of all loops in one."""

    def piece(one: tirx.Stmt) -> tuple[ir.Expr, Body]:
        if isinstance(one, tirx.IfThenElse) and one.else_case is not None:  # few and many rows
            (few, do_few), (many, do_many) = piece(one.then_case), piece(one.else_case)
            count = tirx.Select(one.condition, few, many)
            return count, lambda t: tirx.IfThenElse(one.condition, do_few(t), do_many(t))
        if not isinstance(one, tirx.For):
            return index(1), lambda task: one
        return one.extent, lambda task: sequence([tirx.Bind(one.loop_var, task), one.body])

    pieces = [piece(one) for one in loops]
    every = (loop for one in loops for loop in find(one, tirx.For))
    is_parallel = any(loop.kind == tirx.ForKind.PARALLEL for loop in every)
    return tasks(add(count for count, _ in pieces), lambda task: choose(task, pieces), is_parallel)
