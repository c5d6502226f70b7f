"""The template of direct convolutions on CPUs."""

from __future__ import annotations

from dataclasses import replace

from tvm.target import Target

from ...core.template import Claim, Emission, Refusal, Template
from ...device import Device
from ...program.group import Group
from ...program.stage import Unstructured
from ..contraction.template import constants_of
from ..estimate import flops, too_many_parameters, traffic
from ..inline import inlined, inlined_size
from .config import default
from .dense_cpu import dense_cpu
from .depthwise_cpu import depthwise_config, depthwise_cpu
from .epilogue_cpu import conditions_known
from .problem import NOT_MINE, ConvProblem, conv_problem


class CpuConvolution(Template):
    """Convolutions whose output channels are contiguous: blocked layouts and NHWC."""

    name = "convolution"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one convolution with a constant weight whose results are maps of its sum."""
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        refusal = too_many_parameters(program) or inlined_size(program)
        if refusal is not None:
            return refusal
        stages = inlined(program)
        problem = conv_problem(program, stages, constants_of(group))
        if isinstance(problem, Refusal):
            return problem
        if not conditions_known(problem.contraction.results, problem):
            return Refusal(NOT_MINE, "Results have a part of the channels or pixels only.")
        is_depthwise = problem.c is None
        config = depthwise_config(problem, device) if is_depthwise else default(problem, device)
        if config is None:
            return Refusal(NOT_MINE, "Groups have fewer output channels than a vector.")
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=flops(stages),
            parallelism=_tasks(problem, config),
            details={"problem": problem, "config": config},
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        problem, config = claim.details["problem"], claim.details["config"]
        make = depthwise_cpu if problem.c is None else dense_cpu
        func, packing = make(claim.group.program, problem, config)
        return replace(Emission.one(func, claim.group), packing=packing)


def _tasks(problem: ConvProblem, config) -> int:
    return 2
