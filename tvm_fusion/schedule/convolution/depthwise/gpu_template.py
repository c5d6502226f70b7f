"""The template of depthwise convolutions over channels-last images on GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm.target import Target

from ....core.contract.template import Claim, Config, Emission, Refusal, Template
from ....device import Device
from ....program.group import Group
from ....program.images import convolution_groups
from ....program.stage import Unstructured
from ...contraction.problem.sum_of_products import analyse
from ...contraction.problem.template import constants_of
from ...index.design_space import member, plain
from ...index.estimate import flops, too_many_parameters, traffic
from ...index.inline import inlined, inlined_size
from .gpu_config import DepthwiseGpuConfig, blocks, depthwise_gpu_configs, registers
from .gpu_kernel import depthwise_gpu
from .gpu_view import DepthwiseView, depthwise_view

_ADDRESSES = 32  # registers besides sums, columns and the weight's vector


@dataclass(frozen=True, eq=False)
class DepthwiseDetails:
    """What a claim remembers until its kernel is made."""

    view: DepthwiseView  # the convolution
    config: DepthwiseGpuConfig  # how it is computed


class GpuDepthwise(Template):
    """Depthwise convolutions whose channels are the last axis; any epilogue."""

    name = "depthwise"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one depthwise convolution with a constant weight."""
        found = self._claim(group, device)
        if isinstance(found, Refusal) and all(convolution_groups(o) < 2 for o in group.members):
            return Refusal("not_mine", found.sentence)
        return found

    def _claim(self, group: Group, device: Device) -> Claim | Refusal:
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        reductions = [stage.title for stage in program.stages if not stage.is_map]
        if len(reductions) != 1:
            sentence = (
                f"A depthwise convolution computes one reduction; there are {len(reductions)} "
                f"({', '.join(dict.fromkeys(reductions))})."
            )
            return Refusal("several_reductions", sentence)
        refusal = too_many_parameters(program) or inlined_size(program)
        if refusal is not None:
            return refusal
        stages = inlined(program)
        contraction = analyse(program, stages)
        if isinstance(contraction, Refusal):
            return contraction
        view = depthwise_view(contraction, constants_of(group))
        if isinstance(view, Refusal):
            return view
        config = next(depthwise_gpu_configs(view, device))
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=flops(stages),
            parallelism=blocks(view, config),
            registers=registers(view, config.lanes, config.pixels) + config.lanes + _ADDRESSES,
            details=DepthwiseDetails(view, config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        details = claim.details_as(DepthwiseDetails)
        func, packing = depthwise_gpu(
            claim.group.program, details.view, details.config, target.kind.name == "cuda"
        )
        return replace(Emission.one(func, claim.group), packing=packing)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate pixels of a thread and shapes of a block."""
        return map(plain, depthwise_gpu_configs(claim.details_as(DepthwiseDetails).view, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claimed convolution."""
        view = claim.details_as(DepthwiseDetails).view
        chosen = member(claim, config, depthwise_gpu_configs(view, device))
        if isinstance(chosen, Refusal):
            return chosen
        return replace(
            claim,
            parallelism=blocks(view, chosen),
            registers=registers(view, chosen.lanes, chosen.pixels) + chosen.lanes + _ADDRESSES,
            details=DepthwiseDetails(view, chosen),
        )
