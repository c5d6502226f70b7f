"""The template for recurrent layers."""

from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

from ...core.contract.template import Claim, Emission, Kernel, Refusal, Slot, Template
from ...core.tir.loops import block, ceildiv, product
from ...core.untouched import SCHEDULED
from ...device import Device
from ...ecg.work import at
from ...errors import UserError
from ...program.group import Group
from ..gpu.launch import STATIC_SHARED_BYTES
from .config import CpuRecurrenceConfig
from .cpu import CpuRecurrence
from .gpu import GpuRecurrence, shared_bytes
from .problem import RecurrentProblem, workspace_types


@dataclass(frozen=True, eq=False)
class RecurrentDetails:
    """What a claim remembers until its kernel is made."""

    problem: RecurrentProblem  # the layer
    config: CpuRecurrenceConfig | None  # of a CPU; a GPU has no choices


class Recurrent(Template):
    """All steps of a recurrent layer in one kernel, behind the projection of the inputs."""

    name = "recurrent"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one recurrent layer.

        Raises
        ------
        UserError
            If the states of a row do not fit a GPU's shared memory.
        """
        problem = RecurrentProblem.of(group)
        if problem is None:
            return Refusal("not_mine", "It is not a single recurrent layer.")
        buffers, layer = problem.buffers, problem.layer
        config = None if self._is_gpu else CpuRecurrenceConfig.of(problem, device)
        shared = shared_bytes(problem) if self._is_gpu else 0
        if shared > STATIC_SHARED_BYTES:  # no template has another way, and TVM has none on GPUs
            raise UserError(
                f"a recurrent layer of {buffers.hidden} units, whose states take {shared} bytes of "
                "a GPU's shared memory",
                f"at most {STATIC_SHARED_BYTES} bytes",
                "compile it for a CPU, or unroll its steps",
            )
        rows = buffers.batch if config is None else ceildiv(buffers.batch, config.rows)
        h, gates = buffers.hidden, len(layer.gates)
        return Claim(
            self,
            group,
            launches=1,
            bytes=group.bytes,
            flops=at(product([buffers.steps, buffers.batch, 2 * layer.directions * gates * h * h])),
            parallelism=at(product([rows, layer.directions])),
            shared_bytes=shared,
            details=RecurrentDetails(problem, config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel and the function that packs the recurrent weights."""
        details = claim.details_as(RecurrentDetails)
        problem, config = details.problem, details.config
        scalars = claim.group.scalars
        if config is None:
            kernel: GpuRecurrence | CpuRecurrence = GpuRecurrence(problem)
            states = []
        else:
            kernel = CpuRecurrence(problem, config)
            states = list(kernel.states.values())
        reads = [kernel.packed if i == problem.weights else b for i, b in enumerate(problem.inputs)]
        func = tirx.PrimFunc(
            [*reads, *scalars, *problem.outputs, *states], block("root", kernel.body())
        ).with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
        writes = [Slot("output", i) for i in range(len(problem.outputs))]
        writes += [Slot("workspace", i) for i in range(len(states))]
        one = Kernel(func, problem.reads(len(scalars)), tuple(writes))
        return Emission(
            (one,), workspace_types(states), packing={problem.weights: kernel.packing()}
        )
