"""The template for groups without reductions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm.target import Target

from ...core.contract.template import Claim, Config, Emission, Refusal, Template
from ...core.tir.loops import constant
from ...device import Device
from ...program.group import Group
from ...program.lane_conditions import decide_for_blocks
from ...program.layouts import is_layout_map
from ...program.stage import Stage, Unstructured
from ..cpu.schedule import VectorRegisters
from ..index.design_space import member
from ..index.estimate import flops, points, too_many_parameters, traffic
from ..index.inline import inlined, inlined_size
from ..index.strides import strided_access_cost
from .concat import CONCAT, concat_of
from .cpu.kernel import KERNELS, ElementwiseCpuConfig, configs, elementwise_cpu
from .gpu.config import ElementwiseGpuConfig, elementwise_gpu_config
from .gpu.kernel import THREADS, elementwise_gpu
from .group_maps import in_registers

TASK = 4096  # elements of one CPU task, roughly


@dataclass(frozen=True, eq=False)
class ElementwiseDetails:
    """What a claim remembers until its kernel is made."""

    config: ElementwiseGpuConfig | ElementwiseCpuConfig  # of a GPU, or of a CPU


class Elementwise(Template):
    """Any maps in one launch: broadcasts, transposes, gathers, slices, several outputs.

    Outputs over equal extents share a loop nest; others get their own range of blocks (GPU) or of
    the parallel loop's tasks (CPU).
    """

    name = "elementwise"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim a program without reductions."""
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        reduction = next((s for s in program.stages if not s.is_map), None)
        if reduction is not None:
            return Refusal("not_mine", f"{reduction.title} is a reduction.")
        kept = in_registers(program)
        refusal = too_many_parameters(program) or inlined_size(program, kept)
        if refusal is not None:
            return refusal
        stages = inlined(program, kept)
        has_blocks = any(is_layout_map(op.func) for op in group.members)
        if has_blocks:
            stages = tuple(map(decide_for_blocks, stages))
        written = set(program.outputs)
        total = sum(points(stage) for stage in stages if stage.targets[0] in written)
        if self._is_gpu:
            config = elementwise_gpu_config(stages, kept)
            return Claim(
                self,
                group,
                launches=1,
                bytes=traffic(group, stages),
                flops=flops(stages) + config.strided_operations,
                parallelism=max(1, total // THREADS),
                shared_bytes=config.shared_bytes,
                registers=config.registers,
                work=config.work,
                details=ElementwiseDetails(config),
            )
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=flops(stages) + sum(map(_strided_cost, stages)),
            parallelism=max(1, total // TASK),
            details=ElementwiseDetails(
                ElementwiseCpuConfig.of(stages, VectorRegisters.of(device), kept, has_blocks)
            ),
        )

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate vectors and tasks of a CPU; a GPU has no choices."""
        return map(KERNELS.plain, self._designs(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure claimed maps with other vectors or tasks."""
        chosen = member(claim, config, self._designs(claim, device), KERNELS.plain)
        if isinstance(chosen, Refusal):
            return chosen
        return replace(claim, details=ElementwiseDetails(chosen))

    def _designs(self, claim: Claim, device: Device) -> Iterator[ElementwiseCpuConfig]:
        if self._is_gpu:
            return iter(())
        of = claim.details_as(ElementwiseDetails).config
        assert isinstance(of, ElementwiseCpuConfig)
        registers = VectorRegisters.of(device)
        return configs(ElementwiseCpuConfig.of(of.stages, registers, of.kept, of.has_blocks))

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel."""
        program, config = claim.group.program, claim.details_as(ElementwiseDetails).config
        if isinstance(config, ElementwiseCpuConfig):
            func = elementwise_cpu(program, config)
            concat = concat_of(config.stages, program.inputs)
            func = func if concat is None else func.with_attr(CONCAT, concat)
            return Emission.one(func, claim.group)
        return Emission.one(elementwise_gpu(program, config), claim.group)


def _strided_cost(stage: Stage) -> int:
    """Count the operations that gathers and scatters cost: vectors run along the last axis."""
    wide = [axis for axis in stage.axes if constant(axis.extent) != 1]
    return strided_access_cost(stage, wide[-1:])
